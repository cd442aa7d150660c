"""Generated words and their sources: an interactive page, the terminal, and a matplotlib figure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from vitrail.errors import require
from vitrail.text.rendering import FOLD, FOLD_BELOW, MIN_SHADE, NEGATIVE, POSITIVE, UNFOLDED, on_white
from vitrail.text.tokens import Span
from vitrail.viz.colormap import to_image
from vitrail.viz.templating import png_uri, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

#: Most cells along a side of an image in the interactive page.
MAX_CELLS = 32


@dataclass(frozen=True, eq=False)
class GenerationRows:
    """Generated words, the units that they depend on, and their relevance.

    Attributes:
        text: The prompt and what was generated.
        start: Number of characters of the prompt.
        units: Characters of the sources.
        words: Characters of the generated words.
        scores: Relevance, shape (words, sources).
        signed: Whether negative relevance is evidence against a word.
        caption: Method and model.
        image_scores: Relevance of the cells of an image, shape (words, rows, columns); None without an image.
        pixels: The image, uint8, shape (height, width, 3); None without an image.
    """

    text: str
    start: int
    units: Sequence[Span]
    words: Sequence[Span]
    scores: Tensor
    signed: bool
    caption: str
    image_scores: Tensor | None = None
    pixels: np.ndarray[Any, Any] | None = None

    def shades(self) -> Tensor:
        """Scores of each word by the largest of its row, in [−1, 1] or, without signs, in [0, 1]."""
        return self._scaled(self.scores)

    def image_shades(self) -> Tensor | None:
        """The same of the cells of the image, at most 32 along a side, shape (words, rows, columns)."""
        if self.image_scores is None:
            return None
        cells = self.image_scores.float()
        fewer = adaptive_avg_pool2d(cells, (min(cells.shape[1], MAX_CELLS), min(cells.shape[2], MAX_CELLS)))
        return self._scaled(fewer.flatten(1)).view(fewer.shape)

    def _scaled(self, scores: Tensor) -> Tensor:
        values = scores.float().nan_to_num(0.0)
        values = values if self.signed else values.clamp_min(0)
        return values / values.abs().amax(1, keepdim=True).clamp_min(1e-30)

    def mean_shades(self) -> Tensor:
        """The mean over all words, scaled in the same way, shape (sources,)."""
        mean = self.shades().mean(0)
        return mean / mean.abs().amax().clamp_min(1e-30)


def generation_html(rows: GenerationRows, title: str) -> str:
    """An interactive page that loads nothing."""
    shades = [[round(value, 3) for value in row] for row in rows.shades().tolist()]
    data = {
        "text": rows.text, "start": rows.start, "units": list(rows.units), "words": list(rows.words), "shades": shades,
        "mean": [round(value, 3) for value in rows.mean_shades().tolist()],
        "scores": [[float(f"{value:.3g}") for value in row] for row in rows.scores.float().tolist()],
        "fold": FOLD, "unfolded": UNFOLDED, "below": FOLD_BELOW, "positive": POSITIVE, "negative": NEGATIVE,
        "least": MIN_SHADE, "image": _image(rows),
    }  # fmt: skip
    encoded = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    return render("generation.html", title=title, caption=rows.caption, data=encoded, signed=rows.signed)


def _image(rows: GenerationRows) -> dict[str, Any] | None:
    """The image as a data URL, and the relevance of its cells for each word."""
    shades = rows.image_shades()
    if shades is None or rows.pixels is None:
        return None
    values = [[round(value, 3) for value in one.flatten().tolist()] for one in shades]
    return {
        "source": png_uri(to_image(rows.pixels)),
        "rows": shades.shape[1],
        "columns": shades.shape[2],
        "shades": values,
    }


def generation_terminal(rows: GenerationRows, word: int | None = None) -> RenderableType:
    """The text coloured by the sources of one word, or of all words, for ``rich.console.Console.print``.

    The word, or everything that was generated, is underlined.
    """
    from rich.text import Text

    shades = (rows.mean_shades() if word is None else rows.shades()[word]).tolist()
    first, last = (rows.start, len(rows.text)) if word is None else rows.words[word]
    line, end = Text(), 0
    for i, ((start, stop), shade) in enumerate(zip(rows.units, shades, strict=True)):
        if folded := _folded(shades, i):
            if folded > 0:
                line.append(f" … {folded} units … ", "dim")
            end = stop
            continue
        line.append(rows.text[end:start])
        style = "underline " if first <= start < last else ""
        if abs(shade) >= MIN_SHADE:
            style += "black on rgb({},{},{})".format(*on_white(shade))
        line.append(rows.text[start:stop], style.strip())
        end = stop
    rest = rows.text[end:]
    line.append(rest, "underline" if rest.strip() and (word is None or last > end) else "")
    return line


def _folded(shades: Sequence[float], index: int) -> int:
    """0 for a unit that is shown; the size of its block for the first of a folded block, −1 for the others."""
    if len(shades) < UNFOLDED:
        return 0
    first = index - index % FOLD
    block = shades[first : first + FOLD]
    if max(map(abs, block)) >= FOLD_BELOW or first + FOLD >= len(shades):
        return 0
    return len(block) if index == first else -1


def generation_figure(rows: GenerationRows) -> Figure:
    """The matrix of generated words by sources, as a figure that is not attached to a window."""
    require("matplotlib", "plot", "draw figures")
    from vitrail.viz.notebook_figure import NotebookFigure

    sources = [rows.text[a:b] for a, b in rows.units]
    words = [rows.text[a:b] for a, b in rows.words]
    size = (min(2.0 + 0.28 * len(sources), 30), min(1.2 + 0.24 * len(words), 30))
    drawing = NotebookFigure(figsize=size, dpi=150)
    axes = drawing.add_subplot(111)
    low = -1.0 if rows.signed else 0.0
    shown: dict[str, Any] = {"cmap": "RdBu_r" if rows.signed else "Oranges", "vmin": low, "vmax": 1.0}
    axes.imshow(rows.shades().numpy(), aspect="auto", interpolation="nearest", **shown)
    axes.set_xticks(range(len(sources)), [_short(one) for one in sources], rotation=90, fontsize=7)
    axes.set_yticks(range(len(words)), [_short(one) for one in words], fontsize=7)
    axes.set_xlabel("source", fontsize=8)
    axes.set_ylabel("generated", fontsize=8)
    axes.set_title(rows.caption, fontsize=8)
    drawing.tight_layout()
    return drawing


def _short(word: str) -> str:
    word = " ".join(word.split())
    return (word if len(word) <= 18 else f"{word[:17]}…").replace("$", r"\$")
