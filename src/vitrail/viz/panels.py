"""Panels of figures on matplotlib axes: images with titles, colour bars and small charts."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vitrail.errors import FigureSizeError, require
from vitrail.methods.postprocess import is_constant, normalise, upsample
from vitrail.viz.colormap import Array, colourise, colours, overlay
from vitrail.viz.types import ExplanationLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

#: Font sizes of headings and of all other text, in points.
HEADING, SMALL = 7.5, 6.5
#: Colours of text, secondary text and grid lines.
INK, QUIET, LIGHT = "#1c1c1c", "#6a6a6a", "#d4d4d4"
#: Colours of curves and bars; they differ in grey print.
CHART_COLOURS = ("#53338c", "#e07a1f", "#2a7f86")
#: Width of an image, space between images, height of a line of small text, and margin, in inches.
CELL, GAP, LINE, MARGIN = 1.2, 0.06, 0.14, 0.08
#: Width of a rotated label of up to three lines, and of a colour bar with its tick labels, in inches.
LABEL_WIDTH, BAR_WIDTH = 0.36, 0.55
#: Largest height or width of a figure, in inches.
MAX_SIZE = 100


def new_figure(width: float, height: float, dpi: int = 200) -> Figure:
    """Create a figure without a window; width and height are in inches."""
    require("matplotlib", "plot", "draw figures")
    from vitrail.viz.notebook_figure import NotebookFigure

    if max(width, height) > MAX_SIZE:
        raise FigureSizeError(
            f"the figure would be {width:.0f}×{height:.0f} inches, at most {MAX_SIZE} are allowed: "
            "pass fewer images or classes"
        )
    return NotebookFigure(figsize=(width, height), dpi=dpi, facecolor="white")


def add_grid(
    figure: Figure, rows: int, columns: int, size: tuple[float, float], left: float, top: float,
    gaps: tuple[float, float] = (GAP, GAP),
) -> GridSpec:  # fmt: skip
    """Add a grid of boxes of equal size to a figure.

    Args:
        figure: The figure.
        rows: Number of rows.
        columns: Number of columns.
        size: Width and height of a box, in inches.
        left: Distance from the left edge of the figure, in inches.
        top: Distance from its upper edge, in inches.
        gaps: Space between columns and between rows, in inches.
    """
    (wide, tall), (width, height) = size, figure.get_size_inches()
    right, bottom = left + columns * (wide + gaps[0]) - gaps[0], top + rows * (tall + gaps[1]) - gaps[1]
    return figure.add_gridspec(
        rows, columns, left=left / width, right=right / width, top=1 - top / height, bottom=1 - bottom / height,
        wspace=gaps[0] / wide, hspace=gaps[1] / tall,
    )  # fmt: skip


def add_axes(grid: GridSpec) -> Any:
    """Axes of a grid, shape (rows, columns); those that nothing is drawn on are invisible."""
    axes = grid.subplots(squeeze=False)
    for one in axes.flat:
        one.set_axis_off()
    return axes


def image_grid(
    rows: int, columns: int, aspect: float, *, cell: float = CELL, lines: int = 1, below: float = 0.0,
    labels: bool = False,
) -> tuple[Figure, Any]:  # fmt: skip
    """Create a figure of images of equal size.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        aspect: Height of an image as a share of its width.
        cell: Width of an image, in inches.
        lines: Lines of text above the images of each row; 0 for one line above the first row.
        below: Height of what is drawn below the images, in inches.
        labels: Leave room for labels of the second column.

    Returns:
        The figure, and its axes, shape (rows, columns).
    """
    gap, top, left = GAP + lines * LINE, MARGIN + max(lines, 1) * LINE, MARGIN + LABEL_WIDTH
    second = left + cell + GAP + (LABEL_WIDTH if labels else 0)
    width = second + (columns - 1) * (cell + GAP) + BAR_WIDTH
    figure = new_figure(width, top + rows * (cell * aspect + gap) - gap + MARGIN + below)
    size, gaps = (cell, cell * aspect), (GAP, gap)
    grids = [
        add_grid(figure, rows, 1, size, left, top, gaps),
        add_grid(figure, rows, columns - 1, size, second, top, gaps),
    ]
    return figure, np.concatenate([add_axes(grid) for grid in grids], 1)


def show(axes: Any, pixels: Array, title: str = "", *, label: str = "", caption: str = "", note: str = "") -> None:
    """Draw an image on axes.

    Args:
        axes: Matplotlib axes.
        pixels: The image, shape (height, width, 3).
        title: Text above it.
        label: Text left of it, rotated by 90°.
        caption: Text below it.
        note: Text on top of it.
    """
    axes.set_axis_on()
    axes.set_label("image")
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    style = {"color": INK, "parse_math": False, "linespacing": 1.1}
    axes.set_title(title, fontsize=SMALL, pad=2.5, **style)
    axes.set_ylabel(label, fontsize=SMALL, labelpad=2.5, **style)
    axes.set_xlabel(caption, fontsize=SMALL, labelpad=2, **style)
    if note:
        centred = {"ha": "center", "va": "center", "transform": axes.transAxes}
        background = {"facecolor": "black", "alpha": 0.55, "lw": 0, "pad": 2}
        axes.text(0.5, 0.5, note, fontsize=SMALL, color="white", bbox=background, **centred)


def show_map(
    axes: Any, image: Array, relevance: Tensor, title: str = "", *, signed: bool = False, **texts: str
) -> None:
    """Overlay a map of any scale and size on an image; a map without relevance is named so.

    Args:
        axes: Matplotlib axes.
        image: The image, as bytes, shape (height, width, 3).
        relevance: The map, of any grid.
        title: Text above it.
        signed: Whether the map is signed.
        **texts: Other texts, as in `show`.
    """
    note = "no relevance" if bool(is_constant(relevance.detach().float()).all()) else ""
    upsampled = upsample(relevance.detach().float().cpu(), (image.shape[0], image.shape[1]))
    show(axes, overlay(image, normalise(upsampled, signed).numpy(), signed), title, note=note, **texts)


def colour_map(relevance: Tensor, scale: float | None = None) -> Array:
    """Colour a map without an image, cell by cell; ``scale`` is the value of full colour, by default the maximum."""
    grid = relevance.detach().float().cpu()
    return colourise((normalise(grid) if scale is None else grid / (scale or 1)).numpy(), False)


def colour_bar(axes: Any, signed: bool, names: Sequence[str] = (), *, half: bool = False, offset: float = 0.0) -> None:
    """Draw a colour bar right of axes.

    Args:
        axes: Matplotlib axes.
        signed: Whether it is that of signed maps.
        names: Names of its ticks from low to high.
        half: Leave room for the other kind: the bar of signed maps stands below that of unsigned ones.
        offset: Distance from its place right of the axes, as a share of their width.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    bottom, height = (0.0 if signed else 0.57, 0.43) if half else (0.0, 1.0)
    box = axes.get_position()
    place = (box.x1 + (0.07 + offset) * box.width, box.y0 + bottom * box.height, 0.07 * box.width, height * box.height)
    mappable = ScalarMappable(cmap=ListedColormap(list(colours(signed))))
    bar = axes.figure.colorbar(mappable, cax=axes.figure.add_axes(place, label="bar"))
    ticks = names or (("against", "0", "for") if signed else ("low", "high"))
    bar.set_ticks([i / (len(ticks) - 1) for i in range(len(ticks))], labels=ticks, fontsize=SMALL - 0.5)
    bar.ax.tick_params(length=2, width=0.5, pad=2)
    bar.outline.set_linewidth(0.4)


def method_heading(explanation: ExplanationLike) -> str:
    """The method's title, with its variant on a second line."""
    variant = explanation.method.partition(":")[2]
    return f"{explanation.title}\n{variant}" if variant else explanation.title


def style_chart(axes: Any, title: str = "", x: str = "", y: str = "") -> Any:
    """Style axes for curves or bars, in small type."""
    axes.set_axis_on()
    axes.set_label("chart")
    axes.set_title(title, fontsize=HEADING, color=INK, pad=4)
    axes.set_xlabel(x, fontsize=SMALL, color=INK, labelpad=2)
    axes.set_ylabel(y, fontsize=SMALL, color=INK, labelpad=3)
    axes.tick_params(labelsize=SMALL - 0.5, length=2, width=0.5, pad=2, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_linewidth(0.5)
    axes.grid(True, axis="y", color=LIGHT, linewidth=0.4)
    axes.set_axisbelow(True)
    return axes


def annotate(axes: Any, x: float, y: float, text: str, points: float = 2) -> None:
    """Write a value some points above a position of a chart."""
    axes.annotate(text, (x, y), xytext=(0, points), textcoords="offset points", ha="center", fontsize=SMALL, color=INK)


def wrap_text(text: str, width: float, size: float = SMALL, lines: int = 2) -> str:
    r"""Wrap text into lines of about ``width`` inches; further lines are cut, marked by an ellipsis.

    Example:
        >>> wrap_text("soft-coated wheaten terrier (12.3 %)", 1.2, 6.5)
        'soft-coated wheaten\nterrier (12.3 %)'
    """
    room = max(4, int(width * 72 / (0.53 * size)))
    wrapped = [line for part in text.split("\n") for line in wrap(part, room) or [""]]
    return "\n".join([*wrapped[: lines - 1], wrapped[lines - 1] + "…"] if len(wrapped) > lines else wrapped)
