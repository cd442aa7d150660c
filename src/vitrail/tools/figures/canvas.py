"""Figure layout in inches: images, text, colour bars and small charts at given positions.

Boxes are (left, top, width, height) in inches, from the upper left corner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vitrail.errors import InputError, require
from vitrail.methods.postprocess import is_constant, normalise, upsample
from vitrail.viz.colormap import Array, colourise, colours, overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]

#: Font sizes of headings and of all other text, in points.
HEADING, SMALL = 7.5, 6.5
#: Colours of text, secondary text and grid lines.
INK, QUIET, LIGHT = "#1c1c1c", "#6a6a6a", "#d4d4d4"
#: Colours of curves and bars; they differ in grey print.
CHART_COLOURS = ("#53338c", "#e07a1f", "#2a7f86")
#: Width of an image, space between images, margin, and height of a line of small text.
CELL, GAP, MARGIN, LINE = 1.2, 0.06, 0.08, 0.125
#: Width of a rotated label of up to three lines, and of a colour bar with its tick labels.
LABEL_WIDTH, BAR_WIDTH = 0.34, 0.55
#: Width of a printed page, and the smallest width of an image on it.
PAGE_WIDTH, MIN_CELL = 8.2, 0.75
#: Largest height or width of a figure.
MAX_SIZE = 60


@dataclass(frozen=True)
class CanvasGrid:
    """A grid of boxes of equal size.

    Attributes:
        left: Left edge.
        top: Upper edge.
        rows: Number of rows.
        columns: Number of columns.
        wide: Width of a box.
        tall: Height of a box.
        column_gap: Space between columns.
        row_gap: Space between rows.

    Example:
        >>> grid = CanvasGrid(0.5, 0.25, 2, 3, 1.0, 1.0, column_gap=0.5, row_gap=0.5)
        >>> grid[1, 2], grid.right, grid.bottom
        ((3.5, 1.75, 1.0, 1.0), 4.5, 2.75)
    """

    left: float
    top: float
    rows: int
    columns: int
    wide: float
    tall: float
    column_gap: float = GAP
    row_gap: float = GAP

    def __getitem__(self, at: tuple[int, int]) -> Box:
        row, column = at
        left = self.left + column * (self.wide + self.column_gap)
        return left, self.top + row * (self.tall + self.row_gap), self.wide, self.tall

    def __iter__(self) -> Iterator[Box]:
        """All boxes, row by row."""
        return (self[row, column] for row in range(self.rows) for column in range(self.columns))

    @property
    def right(self) -> float:
        """Right edge."""
        return self.left + self.columns * (self.wide + self.column_gap) - self.column_gap

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.top + self.rows * (self.tall + self.row_gap) - self.row_gap


class Canvas:
    """A matplotlib figure of 200 dots per inch, drawn without a window.

    Args:
        width: In inches.
        height: In inches.
    """

    def __init__(self, width: float, height: float) -> None:
        require("matplotlib", "plot", "draw figures")
        from vitrail.viz.notebook_figure import NotebookFigure

        if max(width, height) > MAX_SIZE:
            raise InputError(
                f"the figure would be {width:.0f}×{height:.0f} inches, at most {MAX_SIZE} are allowed: "
                "pass fewer images or classes"
            )
        self.width, self.height = width, height
        self.figure: Figure = NotebookFigure(figsize=(width, height), dpi=200, facecolor="white")

    def axes(self, box: Box, label: str) -> Any:
        """Add matplotlib axes in a box."""
        left, top, wide, tall = box
        position = (left / self.width, 1 - (top + tall) / self.height, wide / self.width, tall / self.height)
        return self.figure.add_axes(position, label=label)

    def image(self, box: Box, pixels: Array, note: str = "") -> Any:
        """Draw an image in a box, centred if its aspect ratio differs, with an optional note on top of it."""
        axes = self.axes(box, "image")
        axes.imshow(pixels, interpolation="nearest")
        axes.set_axis_off()
        if note:
            centred = {"ha": "center", "va": "center", "transform": axes.transAxes}
            background = {"facecolor": "black", "alpha": 0.55, "lw": 0, "pad": 2}
            axes.text(0.5, 0.5, note, fontsize=SMALL, color="white", bbox=background, **centred)
        return axes

    def text(self, x: float, y: float, text: str, size: float = SMALL, **style: Any) -> None:
        """Write text at a point; ``style`` goes to matplotlib."""
        style = {"ha": "center", "va": "center", "color": INK, "linespacing": 1.1, "parse_math": False, **style}
        self.figure.text(x / self.width, 1 - y / self.height, text, fontsize=size, **style)

    def text_above(self, box: Box, text: str, size: float = SMALL, lines: int = 2, **style: Any) -> None:
        """Write text above a box, centred and cut to its width; the last lines of neighbours share a baseline."""
        left, top, wide, _ = box
        for i, line in enumerate(reversed(wrap_text(text, wide, size, lines).split("\n"))):
            self.text(left + wide / 2, top - 0.055 - i * 1.2 * size / 72, line, size, va="baseline", **style)

    def text_below(self, box: Box, text: str, size: float = SMALL, **style: Any) -> None:
        """Write text below a box, centred and cut to its width."""
        left, top, wide, tall = box
        self.text(left + wide / 2, top + tall + 0.03, wrap_text(text, wide, size), size, va="top", **style)

    def row_label(self, box: Box, text: str, size: float = SMALL, **style: Any) -> None:
        """Write text left of a box, rotated by 90° and cut to its height."""
        left, top, _, tall = box
        self.text(left - 0.05, top + tall / 2, wrap_text(text, tall, size, 3), size, ha="right", rotation=90, **style)

    def colour_bar(self, box: Box, signed: bool, names: Sequence[str] = ()) -> None:
        """Draw a colour bar in a box; names of its ticks from low to high."""
        axes = self.axes(box, "bar")
        axes.imshow(np.flipud(colours(signed)[:, None]), aspect="auto", extent=(0, 1, 0, 1))
        axes.set_xticks([])
        axes.yaxis.tick_right()
        names = names or (("against", "0", "for") if signed else ("low", "high"))
        axes.set_yticks(np.linspace(0, 1, len(names)), names, fontsize=SMALL - 0.5, color=INK)
        axes.tick_params(length=2, width=0.5, pad=2)
        for side in axes.spines.values():
            side.set_linewidth(0.4)

    def colour_bars(self, right: float, top: float, tall: float, signed: Sequence[bool]) -> None:
        """Draw the colour bars of unsigned and signed maps, as far as they occur, in a column right of the images."""
        shown = [kind for kind in (False, True) if kind in signed]
        each = (tall - 0.16 * (len(shown) - 1)) / max(1, len(shown))
        for i, kind in enumerate(shown):
            self.colour_bar((right + 0.08, top + i * (each + 0.16), 0.08, each), kind)

    def chart(self, box: Box, title: str = "", x: str = "", y: str = "") -> Any:
        """Add axes for curves or bars, in small type."""
        axes = self.axes(box, "chart")
        axes.set_title(title, fontsize=HEADING, color=INK, pad=4)
        axes.set_xlabel(x, fontsize=SMALL, color=INK, labelpad=2)
        axes.set_ylabel(y, fontsize=SMALL, color=INK, labelpad=3)
        axes.tick_params(labelsize=SMALL - 0.5, length=2, width=0.5, pad=2, colors=INK)
        for name, side in axes.spines.items():
            side.set_visible(name in ("left", "bottom"))
            side.set_linewidth(0.5)
        axes.grid(True, axis="y", color=LIGHT, linewidth=0.4)
        axes.set_axisbelow(True)
        return axes


def overlay_map(image: Array, relevance: Tensor, signed: bool = False) -> Array:
    """Overlay a map of any scale and size on an image, as bytes; a constant map leaves the image grey."""
    upsampled = upsample(relevance.detach().float().cpu(), (image.shape[0], image.shape[1]))
    return overlay(image, normalise(upsampled, signed).numpy(), signed)


def colour_map(relevance: Tensor, signed: bool = False, scale: float | None = None) -> Array:
    """Colour a map without an image, cell by cell; ``scale`` is the value of full colour, by default the maximum."""
    grid = relevance.detach().float().cpu()
    return colourise((normalise(grid, signed) if scale is None else grid / (scale or 1)).numpy(), signed)


def empty_map_note(relevance: Tensor) -> str:
    """Note for a map without relevance, "" for others."""
    return "no relevance" if bool(is_constant(relevance.detach().float()).all()) else ""


def wrap_text(text: str, room: float, size: float, lines: int = 2) -> str:
    r"""Wrap text into lines of at most ``room`` inches; further lines are cut, marked by an ellipsis.

    Example:
        >>> wrap_text("soft-coated wheaten terrier (12.3 %)", 1.2, 6.5)
        'soft-coated wheaten\nterrier (12.3 %)'
        >>> wrap_text("unbreakable", 0.3, 6.5)
        'unbr…'
    """
    wrapped: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in _words(paragraph, room, size):
            longer = f"{line}{'' if line.endswith('-') else ' '}{word}" if line else word
            if not line or _width(longer, size) <= room:
                line = longer
            else:
                wrapped.append(line)
                line = word
        wrapped.append(line)
    kept = wrapped[:lines]
    if len(wrapped) > lines:
        kept[-1] += "…"
    return "\n".join(_truncate(line, room, size) for line in kept).replace("\u00a0", " ")


def _words(text: str, room: float, size: float) -> Iterator[str]:
    """Words of a text; one that is longer than a line is split after its hyphens."""
    for word in text.replace(" %", "\u00a0%").split(" "):
        parts = word.split("-") if _width(word, size) > room else [word]
        yield from (f"{part}-" for part in parts[:-1])
        yield parts[-1]


def _truncate(line: str, room: float, size: float) -> str:
    if _width(line, size) <= room:
        return line
    line = line.rstrip("…")
    while len(line) > 1 and _width(line + "…", size) > room:
        line = line[:-1]
    return line.rstrip() + "…"


@lru_cache(maxsize=4096)
def _width(text: str, size: float) -> float:
    """Width of a line of text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text.replace("$", "S"), prop=FontProperties(size=size)).get_extents().width) / 72
