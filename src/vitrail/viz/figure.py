"""Matplotlib figures of relevance maps: `figure` compares a few methods, `gallery` many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import InputError, require
from vitrail.methods.postprocess import normalise
from vitrail.viz.colormap import colourise, colours, overlay
from vitrail.viz.types import ExplanationLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Maximum number of rows of `figure`.
MAX_ROWS = 40
#: With more methods than this, `gallery` (one row per method) is easier to read than `figure` (one column per method).
MAX_COLUMNS = 8

Group = Mapping[str, ExplanationLike]

# Sizes in inches.
_BAR_WIDTH = 0.65
_LABEL_WIDTH, _HEADER_HEIGHT = 1.15, 0.2


def figure(
    explanations: Group | Sequence[Group],
    *,
    raw: bool = False,
    opacity: float = 0.75,
    cell: float = 1.7,
) -> Figure:
    """Draw images and maps side by side: one row per target of each image, one column per method.

    Args:
        explanations: Explanations of the same inputs by method name, or a sequence of these with the same methods.
        raw: Draw the maps alone, at patch resolution, instead of overlays.
        opacity: Opacity of the colour where relevance is highest.
        cell: Width of an image in inches.

    Returns:
        A matplotlib figure that is not attached to a window; save it with ``savefig``.
    """
    require("matplotlib", "plot", "draw figures")
    from vitrail.viz.notebook_figure import NotebookFigure

    groups, rows = _targets(explanations)
    if len(rows) > MAX_ROWS:
        raise InputError(f"{len(rows)} targets do not fit into one figure: draw at most {MAX_ROWS} at a time")
    height, width = _size(groups)
    cell_height, columns = cell * height / width, 1 + len(groups[0])
    headings = [_heading(e) for e in groups[0].values()]
    top = 0.24 + 0.13 * max(text.count("\n") for text in headings)
    signs = list(dict.fromkeys(e.signed for e in groups[0].values()))  # a colour bar for each kind of map
    size = (columns * (cell + 0.06) + _BAR_WIDTH * len(signs), len(rows) * (cell_height + 0.26) + top - 0.16)
    drawing = NotebookFigure(figsize=size, dpi=200)
    right = 1 - _BAR_WIDTH * len(signs) / size[0]
    axes = drawing.subplots(
        len(rows), columns, squeeze=False,
        gridspec_kw={"left": 0.05 / size[0], "right": right, "bottom": 0.05 / size[1],
                     "top": 1 - top / size[1], "wspace": 0.04, "hspace": 0.26 / cell_height},
    )  # fmt: skip
    for row, (group, b, k) in zip(axes, rows, strict=True):
        first = next(iter(group.values()))
        _show(row[0], _rgb(first)[b])
        row[0].set_title(first.label(b, k), fontsize=7.5, loc="left", pad=3)
        for spot, explanation in zip(row[1:], group.values(), strict=True):
            _show(spot, _map_pixels(explanation, b, k, raw, opacity))
            if bool(explanation.constant[b, k]):
                _mark_constant(spot, fontsize=8)
            _mark_failure(spot, explanation, b, k)
    for spot, text in zip(axes[0, 1:], headings, strict=True):
        spot.set_title(text, fontsize=8, pad=3)
    for i, signed in enumerate(signs):
        _colour_bar(drawing, axes, right + i * _BAR_WIDTH / size[0], size, signed)
    return drawing


def gallery(
    explanations: Group | Sequence[Group],
    *,
    blocks: int | None = None,
    cell: float = 0.95,
    opacity: float = 0.75,
) -> Figure:
    """Draw many methods: one row per method, one column per target of each image.

    The rows are split into several blocks side by side.

    Args:
        explanations: Explanations of the same inputs by method name, or a sequence of these with the same methods.
        blocks: Number of blocks; by default the number that makes the figure closest to a square.
        cell: Width of an image in inches.
        opacity: Opacity of the colour where relevance is highest.

    Returns:
        A matplotlib figure that is not attached to a window; save it with ``savefig``.
    """
    require("matplotlib", "plot", "draw figures")
    from vitrail.viz.notebook_figure import NotebookFigure

    groups, columns = _targets(explanations)
    names = list(groups[0])
    height, width = _size(groups)
    cell_height, block_width = cell * height / width, _LABEL_WIDTH + len(columns) * cell
    if blocks is None:
        blocks = min(range(1, len(names) + 1), key=lambda n: abs(n * block_width - ceil(len(names) / n) * cell_height))
    rows = ceil(len(names) / blocks)
    size = (blocks * block_width + 0.1, (1 + rows) * cell_height + _HEADER_HEIGHT + 0.1)
    drawing = NotebookFigure(figsize=size, dpi=150)

    def add_axes(block: int, row: int, column: int) -> Any:
        left = block * block_width + _LABEL_WIDTH + column * cell
        bottom = size[1] - _HEADER_HEIGHT - (row + 1) * cell_height
        return drawing.add_axes((left / size[0], bottom / size[1], 0.96 * cell / size[0], 0.96 * cell_height / size[1]))

    for block in range(blocks):
        for column, (group, b, k) in enumerate(columns):
            first = next(iter(group.values()))
            axes = add_axes(block, 0, column)
            _show(axes, _rgb(first)[b])
            axes.set_title(first.label(b, k).partition(" (")[0], fontsize=6.5, pad=2)
        for row, name in enumerate(names[block * rows : (block + 1) * rows], start=1):
            middle = size[1] - _HEADER_HEIGHT - (row + 0.5) * cell_height
            text = _wrap(" ".join(_heading(groups[0][name]).split()))
            drawing.text((block * block_width + 0.06) / size[0], middle / size[1], text, fontsize=7, va="center")
            for column, (group, b, k) in enumerate(columns):
                axes = add_axes(block, row, column)
                _show(axes, _map_pixels(group[name], b, k, False, opacity))
                if bool(group[name].constant[b, k]):
                    _mark_constant(axes, fontsize=5)
    return drawing


def _targets(explanations: Group | Sequence[Group]) -> tuple[list[Group], list[tuple[Group, int, int]]]:
    """Groups of explanations, and (group, image, target) of everything to draw."""
    groups: list[Group] = [explanations] if isinstance(explanations, Mapping) else list(explanations)
    targets = []
    for group in groups:
        first = next(iter(group.values()))
        if first.rgb_images is None:
            raise InputError("these are explanations of texts: draw them with vitrail.text.rendering.figure")
        targets += [(group, b, k) for b in range(first.maps.shape[0]) for k in range(first.maps.shape[1])]
    return groups, targets


def _size(groups: Sequence[Group]) -> tuple[int, int]:
    """Height and width of the maps."""
    maps = next(iter(groups[0].values())).maps
    return int(maps.shape[2]), int(maps.shape[3])


def _rgb(explanation: ExplanationLike) -> np.ndarray[Any, Any]:
    assert explanation.rgb_images is not None
    return explanation.rgb_images


def _map_pixels(explanation: ExplanationLike, image: int, k: int, raw: bool, opacity: float) -> np.ndarray[Any, Any]:
    """One map as pixels: as an overlay, or alone at patch resolution."""
    if raw:
        grid = normalise(explanation.grid[image, k], explanation.signed).float().cpu().numpy()
        return colourise(grid, explanation.signed)
    relevance = explanation.maps[image, k].float().cpu().numpy()
    return overlay(_rgb(explanation)[image], relevance, explanation.signed, opacity)


def _show(axes: Any, pixels: np.ndarray[Any, Any]) -> None:
    axes.imshow(pixels, interpolation="nearest")
    axes.set_axis_off()


def _mark_constant(axes: Any, fontsize: float) -> None:
    """Write over a constant map that it has no relevance."""
    axes.text(
        0.5, 0.5, "no relevance", fontsize=fontsize, color="white", transform=axes.transAxes, ha="center", va="center"
    )


def _mark_failure(axes: Any, explanation: ExplanationLike, image: int, k: int) -> None:
    """Write the verdict below a map that was checked and failed."""
    check = explanation.checks.get((image, k))
    if check is not None and not check.passed:
        axes.text(0.02, 0.02, f"⚠ {check.verdict}", fontsize=5.5, color="white", transform=axes.transAxes, va="bottom",
                  bbox={"facecolor": "black", "alpha": 0.55, "pad": 1.2, "linewidth": 0})  # fmt: skip


def _heading(explanation: ExplanationLike) -> str:
    """The method's title, with its variant on a second line."""
    variant = explanation.method.partition(":")[2]
    return f"{explanation.title}\n{variant}" if variant else explanation.title


def _wrap(text: str, width: int = 16) -> str:
    r"""Break a row label into lines.

    Example:
        >>> _wrap("Transformer Attribution bert")
        'Transformer\nAttribution bert'
    """
    lines = [""]
    for word in text.split():
        lines[-1:] = [f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < width else [lines[-1], word]
    return "\n".join(line for line in lines if line)


def _colour_bar(drawing: Any, axes: Any, right: float, size: tuple[float, float], signed: bool) -> None:
    """Draw a colour bar beside the first row, at a horizontal position."""
    box = axes[0, -1].get_position()
    spot = drawing.add_axes((right + 0.08 / size[0], box.y0, 0.09 / size[0], box.height))
    spot.imshow(np.flipud(colours(signed)[:, None]), aspect="auto", extent=(0, 1, -1 if signed else 0, 1))
    spot.set_xticks([])
    spot.yaxis.tick_right()
    spot.set_yticks([-1, 0, 1] if signed else [0, 1])
    spot.set_yticklabels(["against", "0", "for"] if signed else ["min", "max"], fontsize=6.5)
    spot.tick_params(length=2, width=0.5, pad=2)
    for side in spot.spines.values():
        side.set_linewidth(0.4)
