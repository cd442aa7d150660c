"""Scores of words in colour, in a terminal, as a page or a figure: warm words speak for a class, cold ones against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from vitrail.explanation import Explanation
    from vitrail.text.result import WordRelevance

FOR, AGAINST = (232, 93, 36), (40, 110, 190)
#: Below this share of the strongest word's score a word is left without colour.
FAINT = 0.02
LINE = 96

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 17px/1.9 system-ui, sans-serif; margin: 0 auto; max-width: 52rem; padding: 1.5rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 1.8rem 0 .2rem; line-height: 1.4; }
h3 { font-size: .85rem; font-weight: 600; opacity: .75; margin: .9rem 0 0; }
p { margin: .1rem 0 .6rem; white-space: pre-wrap; overflow-wrap: anywhere; }
p span { border-radius: 3px; padding: .12em .08em; } .unseen { opacity: .45; }
.key { font-size: .85rem; } .key span { padding: .1em .5em; border-radius: 3px; }
"""


def _texts(explanation: Explanation) -> tuple[WordRelevance, ...]:
    if explanation.text is None:
        raise InputError("this explains no text that was given with a tokenizer: pass tokenizer=… to vitrail.explain")
    return explanation.text


def _pieces(one: WordRelevance, k: int) -> Iterator[tuple[str, float | None, bool]]:
    """A text from start to end: (words or what stands between them, shade or None between words, seen)."""
    done = 0
    for (start, stop), shade, seen in zip(one.spans, one.normalised[k].tolist(), one.seen, strict=True):
        if start > done:
            yield one.text[done:start], None, True
        yield one.text[start:stop], shade, seen
        done = stop
    if done < len(one.text):
        yield one.text[done:], None, True


def _mixed(shade: float) -> tuple[int, int, int]:
    """The colour of a shade on white."""
    weight = min(1.0, abs(shade))
    red, green, blue = (round(255 + weight * (c - 255)) for c in (FOR if shade > 0 else AGAINST))
    return red, green, blue


def terminal(explanation: Explanation, text: int = 0, k: int = 0) -> RenderableType:
    """One text with its words in colour, for ``rich``'s ``Console.print``."""
    from rich.text import Text

    line = Text()
    for piece, shade, seen in _pieces(_texts(explanation)[text], k):
        if shade is None or abs(shade) < FAINT:
            line.append(piece, "" if seen else "dim")
        else:
            line.append(piece, "black on rgb({},{},{})".format(*_mixed(shade)))
    return line


def html(explanations: Mapping[str, Explanation], title: str = "Why these words?") -> str:
    """A page of all texts, targets and methods; one file, nothing fetched."""
    first = next(iter(explanations.values()))
    signed = any(e.signed for e in explanations.values())
    key = _chip(FOR, "for") + (_chip(AGAINST, "against") if signed else "")
    body = [f"<h1>{escape(title)}</h1>", f"<p class='key'>{key}{escape(first.model)}</p>"]
    for b in range(len(_texts(first))):
        for k in range(first.maps.shape[1]):
            body.append(f"<h2>{escape(first.label(b, k))}</h2>")
            for label, explanation in explanations.items():
                dull = " (no relevance)" if bool(explanation.flat[b, k]) else ""
                body.append(f"<h3>{escape(explanation.title)} <code>{escape(label)}</code>{dull}</h3>")
                one = _texts(explanation)[b]
                scores = iter(one.scores[k].tolist())
                body.append("<p>" + "".join(_word(*piece, scores) for piece in _pieces(one, k)) + "</p>")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
        f"content='width=device-width, initial-scale=1'><title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _chip(colour: tuple[int, int, int], word: str) -> str:
    red, green, blue = colour
    return f"<span style='background:rgba({red},{green},{blue},.85)'>{word}</span> "


def _word(piece: str, shade: float | None, seen: bool, scores: Iterator[float]) -> str:
    if shade is None:
        return escape(piece)
    score = next(scores)
    if not seen:
        return f"<span class='unseen' title='not shown to the model'>{escape(piece)}</span>"
    red, green, blue = FOR if shade > 0 else AGAINST
    colour = f" style='background:rgba({red},{green},{blue},{0.85 * abs(shade):.3f})'" if abs(shade) >= FAINT else ""
    return f"<span title='{score:.4g}'{colour}>{escape(piece)}</span>"


def figure(explanations: Mapping[str, Explanation], *, line: int = LINE, size: float = 9.0) -> Figure:
    """All texts, targets and methods as a matplotlib figure, to be saved with ``savefig``.

    Args:
        explanations: Explanations of the same texts, by method.
        line: Characters a line.
        size: Of the letters, in points.
    """
    require("matplotlib", "plot", "draw figures")
    from matplotlib.figure import Figure as Canvas

    first = next(iter(explanations.values()))
    rows = [
        (f"{explanation.title}: {first.label(b, k)}", _lines(_texts(explanation)[b], k, line))
        for b in range(len(_texts(first)))
        for k in range(first.maps.shape[1])
        for explanation in explanations.values()
    ]
    lines = sum(len(words) + 1.7 for _, words in rows)
    tall, wide = size * 1.75 / 72, size * 0.602 / 72  # a letter of the fixed-width face is 0.602 of its size wide
    drawing = Canvas(figsize=((line + 2) * wide, lines * tall + 0.1), dpi=200)
    axes = drawing.add_axes((0, 0, 1, 1))
    axes.set_xlim(-1, line + 1)
    axes.set_ylim(lines, -0.3)
    axes.set_axis_off()
    letters: dict[str, Any] = {"family": "DejaVu Sans Mono", "fontsize": size, "va": "center"}
    y = 0.4
    for heading, words in rows:
        axes.text(0, y, heading, fontsize=size * 0.9, fontweight="bold", va="center")
        for row in words:
            y, x = y + 1, 0.0
            for word, shade in row:
                if abs(shade) >= FAINT:
                    colour = tuple(c / 255 for c in _mixed(shade))
                    axes.add_patch(_box(x - 0.1, y - 0.42, len(word) + 0.2, 0.84, colour))
                axes.text(x, y, word.replace("$", r"\$"), **letters)
                x += len(word) + 1
        y += 1.7
    return drawing


def _box(x: float, y: float, width: float, height: float, colour: tuple[float, ...]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), width, height, facecolor=colour, edgecolor="none")


def _lines(one: WordRelevance, k: int, most: int) -> list[list[tuple[str, float]]]:
    lines: list[list[tuple[str, float]]] = [[]]
    used = 0
    for word, shade in zip(one.words, one.normalised[k].tolist(), strict=True):
        shown = word if len(word) <= most else word[: most - 1] + "…"
        if used + len(shown) > most and lines[-1]:
            lines.append([])
            used = 0
        lines[-1].append((shown, shade))
        used += len(shown) + 1
    return lines


def record(explanation: Explanation) -> list[dict[str, Any]]:
    """All texts with the characters and scores of their words, ready for JSON."""
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
