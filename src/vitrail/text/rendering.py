"""Texts with words coloured by relevance: in the terminal, as an HTML page, as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.errors import FigureSizeError, InputError, require
from vitrail.viz.templating import render
from vitrail.viz.types import MapsLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from vitrail.text.result import WordRelevance

#: RGB colours of words with positive and with negative relevance.
POSITIVE, NEGATIVE = (232, 93, 36), (40, 110, 190)
#: Words with a smaller share of the highest score than this are not coloured.
MIN_SHADE = 0.02
#: Words that fold together; texts of fewer words than the second number do not fold.
FOLD, UNFOLDED = 40, 200
#: A block of words folds where none has this share of the highest relevance.
FOLD_BELOW = 0.1
#: Characters in a line of a figure.
LINE_LENGTH = 96


class TextPiece(NamedTuple):
    """A word, or the characters between two words.

    Attributes:
        text: The characters.
        score: The word's score; None between words.
        shade: The score scaled to [0, 1], or to [-1, 1] if signed; 0 between words.
        seen: Whether the word was part of the model's input.
    """

    text: str
    score: float | None = None
    shade: float = 0.0
    seen: bool = True

    @property
    def colour(self) -> str:
        """Background colour in CSS, or "" for none."""
        if abs(self.shade) < MIN_SHADE:
            return ""
        return _css(POSITIVE if self.shade > 0 else NEGATIVE, 0.85 * abs(self.shade))


def terminal(explanation: MapsLike, text: int = 0, k: int = 0) -> RenderableType:
    """Colour the words of one text for ``rich.console.Console.print``.

    Args:
        explanation: An explanation of texts.
        text: Index of the text.
        k: Index of the target.
    """
    return coloured_words(_texts(explanation)[text], k)


def coloured_words(words: WordRelevance, k: int = 0) -> RenderableType:
    """Colour words by their scores for target k, for ``rich.console.Console.print``."""
    from rich.text import Text

    line = Text()
    for block in folded_blocks(list(_pieces(words, k))):
        if block.folded:
            line.append(f" … {block.words} words … ", "dim")
            continue
        _append(line, block.pieces)
    return line


def _append(line: Any, pieces: Sequence[TextPiece]) -> None:
    """Append words to a line of rich text, in colour."""
    for piece in pieces:
        if abs(piece.shade) < MIN_SHADE:
            line.append(piece.text, "" if piece.seen else "dim")
        else:
            line.append(piece.text, "black on rgb({},{},{})".format(*on_white(piece.shade)))


class TextBlock(NamedTuple):
    """Consecutive words of a text.

    Attributes:
        pieces: The words and the characters between them.
        folded: Whether they are hidden until asked for.
        words: Number of words.
    """

    pieces: Sequence[TextPiece]
    folded: bool
    words: int


def folded_blocks(pieces: Sequence[TextPiece]) -> list[TextBlock]:
    """A text in blocks, of which those without relevant words are folded; a short text is one block.

    Example:
        >>> long = [TextPiece("word ", 1.0, 1.0), *[TextPiece("word ", 0.0)] * 299]
        >>> first, second, *_ = folded_blocks(long)
        >>> first.folded, second.folded, second.words
        (False, True, 40)
    """
    places = [i for i, piece in enumerate(pieces) if piece.score is not None]
    if len(places) < UNFOLDED:
        return [TextBlock(pieces, False, len(places))]
    starts = [0, *places[FOLD::FOLD]]
    found = []
    for start, stop in zip(starts, [*starts[1:], len(pieces)], strict=True):
        part = pieces[start:stop]
        count = sum(piece.score is not None for piece in part)
        # The end of a prompt is where the next word is written.
        folded = stop < len(pieces) and max(abs(piece.shade) for piece in part) < FOLD_BELOW
        found.append(TextBlock(part, folded, count))
    return found


def html(explanations: Mapping[str, MapsLike], title: str = "Word relevance") -> str:
    """Render all texts, targets and methods as one HTML page that loads nothing.

    Args:
        explanations: Explanations of the same texts by method name.
        title: Heading.
    """
    return render("text.html", title=title, **_display(explanations))


def words_html(explanations: Mapping[str, MapsLike]) -> str:
    """Render all texts, targets and methods for a notebook: a part of a page, without styles that reach beyond it."""
    return render("text_words.html", **_display(explanations))


def _display(explanations: Mapping[str, MapsLike]) -> dict[str, Any]:
    """What the templates show: legend, model and sections."""
    first = next(iter(explanations.values()))
    legend = [("for", _css(POSITIVE, 0.85))]
    if any(e.signed for e in explanations.values()):
        legend.append(("against", _css(NEGATIVE, 0.85)))
    sections = [
        {
            "label": first.label(b, k),
            "results": [
                {
                    "title": e.title, "method": name, "constant": bool(e.constant[b, k]),
                    "blocks": folded_blocks(list(_pieces(_texts(e)[b], k))),
                }
                for name, e in explanations.items()
            ],
        }
        for b in range(len(_texts(first)))
        for k in range(first.maps.shape[1])
    ]  # fmt: skip
    return {"legend": legend, "model": first.model, "sections": sections}


def figure(explanations: Mapping[str, MapsLike], *, line_length: int = LINE_LENGTH, font_size: float = 9.0) -> Figure:
    """Draw all texts, targets and methods.

    Args:
        explanations: Explanations of the same texts by method name.
        line_length: Characters in a line.
        font_size: In points.

    Returns:
        A matplotlib figure that is not attached to a window; save it with ``savefig``.
    """
    require("matplotlib", "plot", "draw figures")
    from matplotlib.patches import Rectangle

    from vitrail.viz.notebook_figure import NotebookFigure
    from vitrail.viz.panels import MAX_SIZE

    first = next(iter(explanations.values()))
    rows = [
        (f"{explanation.title}: {first.label(b, k)}", _lines(_texts(explanation)[b], k, line_length))
        for b in range(len(_texts(first)))
        for k in range(first.maps.shape[1])
        for explanation in explanations.values()
    ]
    height = sum(len(lines) + 1.7 for _, lines in rows)
    line_height, letter_width = font_size * 1.75 / 72, font_size * 0.602 / 72  # DejaVu Sans Mono: 0.602 em wide
    size = ((line_length + 2) * letter_width, height * line_height + 0.1)
    if max(size) > MAX_SIZE:
        count = sum(len(lines) for _, lines in rows)
        raise FigureSizeError(
            f"{count} lines of words do not fit into one figure: draw fewer texts, targets or methods at a time"
        )
    drawing = NotebookFigure(figsize=size, dpi=200)
    axes = drawing.add_axes((0, 0, 1, 1))
    axes.set_xlim(-1, line_length + 1)
    axes.set_ylim(height, -0.3)
    axes.set_axis_off()
    font: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": font_size, "va": "center"}
    y = 0.4
    for heading, lines in rows:
        axes.text(0, y, heading, fontsize=font_size * 0.9, fontweight="bold", va="center")
        for line in lines:
            y, x = y + 1, 0.0
            for word, shade in line:
                if abs(shade) >= MIN_SHADE:
                    colour = tuple(channel / 255 for channel in on_white(shade))
                    box = Rectangle((x - 0.1, y - 0.42), len(word) + 0.2, 0.84, facecolor=colour, edgecolor="none")
                    axes.add_patch(box)
                axes.text(x, y, word.replace("$", r"\$"), **font)
                x += len(word) + 1
        y += 1.7
    return drawing


def to_records(explanation: MapsLike) -> list[dict[str, Any]]:
    """Words, character offsets and scores of all texts, as JSON values."""
    return [
        {
            "text": one.text, "windows": one.windows,
            "targets": [explanation.label(b, k) for k in range(explanation.maps.shape[1])],
            "words": [
                {"word": word, "start": span[0], "end": span[1], "seen": seen, "scores": scores}
                for word, span, seen, scores in zip(one.words, one.spans, one.seen, one.scores.T.tolist(), strict=True)
            ],
        }
        for b, one in enumerate(_texts(explanation))
    ]  # fmt: skip


def _texts(explanation: MapsLike) -> Sequence[WordRelevance]:
    if explanation.text is None:
        raise InputError("this explanation has no word scores: pass texts and tokenizer=… to vitrail.explain")
    return explanation.text


def _pieces(one: WordRelevance, k: int) -> Iterator[TextPiece]:
    """Split a text into its words and the characters between them."""
    end = 0
    words = zip(one.spans, one.scores[k].tolist(), one.normalised[k].tolist(), one.seen, strict=True)
    for (start, stop), score, shade, seen in words:
        if start > end:
            yield TextPiece(one.text[end:start])
        yield TextPiece(one.text[start:stop], score, shade, seen)
        end = stop
    if end < len(one.text):
        yield TextPiece(one.text[end:])


def _lines(one: WordRelevance, k: int, length: int) -> list[list[tuple[str, float]]]:
    """Wrap a text into lines of (word, shade); longer words are truncated."""
    lines: list[list[tuple[str, float]]] = [[]]
    used = 0
    for word, shade in zip(one.words, one.normalised[k].tolist(), strict=True):
        shown = word if len(word) <= length else word[: length - 1] + "…"
        if used + len(shown) > length and lines[-1]:
            lines.append([])
            used = 0
        lines[-1].append((shown, shade))
        used += len(shown) + 1
    return lines


def on_white(shade: float) -> tuple[int, int, int]:
    """Blend the colour of a shade with white."""
    weight = min(1.0, abs(shade))
    red, green, blue = (round(255 + weight * (c - 255)) for c in (POSITIVE if shade > 0 else NEGATIVE))
    return red, green, blue


def _css(colour: tuple[int, int, int], alpha: float) -> str:
    return "rgba({},{},{},{:.3f})".format(*colour, alpha)
