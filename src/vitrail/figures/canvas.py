"""A page measured in inches: pictures, words, colour bars and small charts where one says, so that nothing overlaps.

Boxes are (left, top, width, height), counted from the upper left corner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vitrail.errors import InputError, require
from vitrail.postprocess import flat, normalise, upsample
from vitrail.viz.colormap import Array, colours, overlay, paint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]

#: Points of headings and of all other words.
HEADING, SMALL = 7.5, 6.5
INK, QUIET, LIGHT = "#1c1c1c", "#6a6a6a", "#d4d4d4"
#: Colours of two kinds of bars or lines that stay apart in grey print: violet and orange of the house.
FIRST, SECOND, THIRD = "#53338c", "#e07a1f", "#2a7f86"
#: Width of a picture, space between pictures, margin, and height of a line of small words.
CELL, GAP, MARGIN, LINE = 1.2, 0.06, 0.08, 0.125
#: Width of a column for a rotated label of up to three lines, and of a colour bar with its words.
SIDE, BAR = 0.34, 0.55
#: Width of a page that is printed without shrinking its words much, and the least width of a picture on it.
PAGE, LEAST = 8.2, 0.75
#: Inches a side that one can still print and open.
LARGEST = 60


@dataclass(frozen=True)
class CanvasGrid:
    """Boxes of one size in rows and columns.

    Attributes:
        left: Left edge.
        top: Upper edge.
        rows: Number of rows.
        columns: Number of columns.
        wide: Width of a box.
        tall: Height of a box.
        across: Space between columns.
        down: Space between rows.

    Example:
        >>> grid = CanvasGrid(0.5, 0.25, 2, 3, 1.0, 1.0, across=0.5, down=0.5)
        >>> grid[1, 2], grid.right, grid.bottom
        ((3.5, 1.75, 1.0, 1.0), 4.5, 2.75)
    """

    left: float
    top: float
    rows: int
    columns: int
    wide: float
    tall: float
    across: float = GAP
    down: float = GAP

    def __getitem__(self, at: tuple[int, int]) -> Box:
        row, column = at
        left = self.left + column * (self.wide + self.across)
        return left, self.top + row * (self.tall + self.down), self.wide, self.tall

    def __iter__(self) -> Iterator[Box]:
        """All boxes, row by row."""
        return (self[row, column] for row in range(self.rows) for column in range(self.columns))

    @property
    def right(self) -> float:
        """Right edge."""
        return self.left + self.columns * (self.wide + self.across) - self.across

    @property
    def bottom(self) -> float:
        """Lower edge."""
        return self.top + self.rows * (self.tall + self.down) - self.down


class Canvas:
    """A matplotlib figure of 200 dots an inch that belongs to no window.

    Args:
        width: In inches.
        height: In inches.
    """

    def __init__(self, width: float, height: float) -> None:
        require("matplotlib", "plot", "draw figures")
        from matplotlib.figure import Figure as Canvas

        if max(width, height) > LARGEST:
            raise InputError(f"a figure of {width:.0f}×{height:.0f} inches is too large: give fewer images or classes")
        self.width, self.height = width, height
        self.figure: Figure = Canvas(figsize=(width, height), dpi=200, facecolor="white")

    def axes(self, box: Box, label: str) -> Any:
        """Axes in a box."""
        left, top, wide, tall = box
        place = (left / self.width, 1 - (top + tall) / self.height, wide / self.width, tall / self.height)
        return self.figure.add_axes(place, label=label)

    def picture(self, box: Box, pixels: Array, remark: str = "") -> Any:
        """A picture that fills a box, or stands in its middle if it is of another shape."""
        axes = self.axes(box, "picture")
        axes.imshow(pixels, interpolation="nearest")
        axes.set_axis_off()
        if remark:
            where = {"ha": "center", "va": "center", "transform": axes.transAxes}
            shade = {"facecolor": "black", "alpha": 0.55, "lw": 0, "pad": 2}
            axes.text(0.5, 0.5, remark, fontsize=SMALL, color="white", bbox=shade, **where)
        return axes

    def words(self, x: float, y: float, text: str, size: float = SMALL, **how: Any) -> None:
        """Words at a point."""
        how = {"ha": "center", "va": "center", "color": INK, "linespacing": 1.1, "parse_math": False, **how}
        self.figure.text(x / self.width, 1 - y / self.height, text, fontsize=size, **how)

    def over(self, box: Box, text: str, size: float = SMALL, lines: int = 2, **how: Any) -> None:
        """Words above a box, in the middle, cut to its width; last lines of neighbours stand on one line."""
        left, top, wide, _ = box
        for i, line in enumerate(reversed(fit(text, wide, size, lines).split("\n"))):
            self.words(left + wide / 2, top - 0.055 - i * 1.2 * size / 72, line, size, va="baseline", **how)

    def under(self, box: Box, text: str, size: float = SMALL, **how: Any) -> None:
        """Words below a box, in the middle, cut to its width."""
        left, top, wide, tall = box
        self.words(left + wide / 2, top + tall + 0.03, fit(text, wide, size), size, va="top", **how)

    def beside(self, box: Box, text: str, size: float = SMALL, **how: Any) -> None:
        """Words to the left of a box, reading upwards, cut to its height."""
        left, top, _, tall = box
        self.words(left - 0.05, top + tall / 2, fit(text, tall, size, 3), size, ha="right", rotation=90, **how)

    def bar(self, box: Box, signed: bool, names: Sequence[str] = ()) -> None:
        """A colour bar in a box; names from low to high."""
        axes = self.axes(box, "bar")
        axes.imshow(np.flipud(colours(signed)[:, None]), aspect="auto", extent=(0, 1, 0, 1))
        axes.set_xticks([])
        axes.yaxis.tick_right()
        names = names or (("against", "0", "for") if signed else ("low", "high"))
        axes.set_yticks(np.linspace(0, 1, len(names)), names, fontsize=SMALL - 0.5, color=INK)
        axes.tick_params(length=2, width=0.5, pad=2)
        for side in axes.spines.values():
            side.set_linewidth(0.4)

    def bars(self, right: float, top: float, tall: float, kinds: Sequence[bool]) -> None:
        """Bars one below the other, right of the pictures; one for each of signed and not, as far as they occur."""
        shown = [kind for kind in (False, True) if kind in kinds]
        each = (tall - 0.16 * (len(shown) - 1)) / max(1, len(shown))
        for i, kind in enumerate(shown):
            self.bar((right + 0.08, top + i * (each + 0.16), 0.08, each), kind)

    def chart(self, box: Box, title: str = "", x: str = "", y: str = "") -> Any:
        """Axes for curves and bars, in the same small type as all the rest."""
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


def overlaid(picture: Array, relevance: Tensor, signed: bool = False) -> Array:
    """A map on any scale and of any size over a picture, as bytes; a constant one leaves the picture grey."""
    big = upsample(relevance.detach().float().cpu(), (picture.shape[0], picture.shape[1]))
    return overlay(picture, normalise(big, signed).numpy(), signed)


def painted(relevance: Tensor, signed: bool = False, most: float | None = None) -> Array:
    """A map by itself, cell by cell; ``most`` is what counts as full colour, the map's own extreme by default."""
    grid = relevance.detach().float().cpu()
    return paint((normalise(grid, signed) if most is None else grid / (most or 1)).numpy(), signed)


def remark_on(relevance: Tensor) -> str:
    """What to write over a map that says nothing."""
    return "no relevance" if bool(flat(relevance.detach().float()).all()) else ""


def fit(text: str, room: float, size: float, lines: int = 2) -> str:
    r"""Words broken at blanks into lines of at most ``room`` inches, and cut with an ellipsis if there are too many.

    Example:
        >>> fit("soft-coated wheaten terrier (12.3 %)", 1.2, 6.5)
        'soft-coated wheaten\nterrier (12.3 %)'
        >>> fit("unbreakable", 0.3, 6.5)
        'unbr…'
    """
    found: list[str] = []
    for part in text.split("\n"):
        line = ""
        for word in _words(part, room, size):
            longer = f"{line}{'' if line.endswith('-') else ' '}{word}" if line else word
            if not line or _width(longer, size) <= room:
                line = longer
            else:
                found.append(line)
                line = word
        found.append(line)
    cut = found[:lines]
    if len(found) > lines:
        cut[-1] += "…"
    return "\n".join(_shortened(line, room, size) for line in cut).replace("\u00a0", " ")


def _words(text: str, room: float, size: float) -> Iterator[str]:
    """Words of a text; one that is too long by itself is taken apart behind its hyphens."""
    for word in text.replace(" %", "\u00a0%").split(" "):
        parts = word.split("-") if _width(word, size) > room else [word]
        yield from (f"{part}-" for part in parts[:-1])
        yield parts[-1]


def _shortened(line: str, room: float, size: float) -> str:
    if _width(line, size) <= room:
        return line
    line = line.rstrip("…")
    while len(line) > 1 and _width(line + "…", size) > room:
        line = line[:-1]
    return line.rstrip() + "…"


@lru_cache(maxsize=4096)
def _width(text: str, size: float) -> float:
    """Inches a line takes."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    return float(TextPath((0, 0), text.replace("$", "S"), prop=FontProperties(size=size)).get_extents().width) / 72
