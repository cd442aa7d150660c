"""Matplotlib figures of maps: `figure` compares a few methods, `gallery` many, `signal_figure` draws signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import FigureSizeError, InputError
from vitrail.methods.postprocess import normalise
from vitrail.viz.colormap import colourise, overlay
from vitrail.viz.panels import GAP, add_axes, add_grid, colour_bar, method_heading, new_figure, show
from vitrail.viz.types import ExplanationLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Maximum number of rows of `figure`.
MAX_ROWS = 40
#: With more methods than this, `gallery` (one row per method) is easier to read than `figure` (one column per method).
MAX_COLUMNS = 8

Group = Mapping[str, ExplanationLike]

# Sizes in inches.
_BAR_WIDTH, _LABEL_HEIGHT = 0.65, 0.26
_LABEL_WIDTH, _HEADER_HEIGHT = 1.15, 0.2
_SIGNAL_WIDTH, _TITLE_HEIGHT = 6.4, 0.24


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
    groups, rows = _targets(explanations)
    if len(rows) > MAX_ROWS:
        raise FigureSizeError(f"{len(rows)} targets do not fit into one figure: draw at most {MAX_ROWS} at a time")
    cell_height, columns = cell * _aspect(groups), 1 + len(groups[0])
    headings = [method_heading(e) for e in groups[0].values()]
    top = 0.24 + 0.13 * max(text.count("\n") for text in headings)
    signs = list(dict.fromkeys(e.signed for e in groups[0].values()))  # a colour bar for each kind of map
    width = columns * (cell + GAP) + _BAR_WIDTH * len(signs)
    drawing = new_figure(width, len(rows) * (cell_height + _LABEL_HEIGHT) + top - 0.16)
    axes = add_axes(
        add_grid(drawing, len(rows), columns, (cell, cell_height), 0.05, top, (GAP, _LABEL_HEIGHT)),
    )
    for row, (group, b, k) in zip(axes, rows, strict=True):
        first = next(iter(group.values()))
        show(row[0], _rgb(first)[b])
        _draw_box(row[0], first, b, k)
        row[0].set_title(first.label(b, k), fontsize=7.5, loc="left", pad=3)
        for one, explanation in zip(row[1:], group.values(), strict=True):
            _show_map(one, explanation, b, k, raw, opacity)
            _draw_box(one, explanation, b, k, raw)
            _mark_failure(one, explanation, b, k)
    for one, text in zip(axes[0, 1:], headings, strict=True):
        one.set_title(text, fontsize=8, pad=3)
    for i, signed in enumerate(signs):
        colour_bar(axes[0, -1], signed, () if signed else ("min", "max"), offset=i * _BAR_WIDTH / cell)
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
    groups, columns = _targets(explanations)
    names = list(groups[0])
    cell_height, block_width = cell * _aspect(groups), _LABEL_WIDTH + len(columns) * cell
    if blocks is None:
        blocks = min(range(1, len(names) + 1), key=lambda n: abs(n * block_width - ceil(len(names) / n) * cell_height))
    rows = ceil(len(names) / blocks)
    drawing = new_figure(blocks * block_width + 0.1, (1 + rows) * cell_height + _HEADER_HEIGHT + 0.1, dpi=150)
    size, gaps = (0.96 * cell, 0.96 * cell_height), (0.04 * cell, 0.04 * cell_height)
    for block in range(blocks):
        shown, left = names[block * rows : (block + 1) * rows], block * block_width + _LABEL_WIDTH
        axes = add_axes(add_grid(drawing, 1 + len(shown), len(columns), size, left, _HEADER_HEIGHT, gaps))
        for column, (group, b, k) in enumerate(columns):
            first = next(iter(group.values()))
            show(axes[0, column], _rgb(first)[b], first.label(b, k).partition(" (")[0])
            for one, name in zip(axes[1:, column], shown, strict=True):
                _show_map(one, group[name], b, k, False, opacity, fontsize=5)
        for one, name in zip(axes[1:, 0], shown, strict=True):
            text = "\n".join(wrap(method_heading(groups[0][name]).replace("\n", " "), 16))
            box = one.get_position()
            x = box.x0 + (0.06 - _LABEL_WIDTH) / drawing.get_figwidth()
            drawing.text(x, (box.y0 + box.y1) / 2, text, fontsize=7, va="center")
    return drawing


def signal_figure(explanations: Mapping[str, ExplanationLike], *, opacity: float = 0.75) -> Figure:
    """Draw the overlays of videos, sound, series or features below each other, for each target and method.

    Returns:
        A matplotlib figure that is not attached to a window; save it with ``savefig``.
    """
    first = next(iter(explanations.values()))
    places = [(b, k) for b in range(first.maps.shape[0]) for k in range(first.maps.shape[1])]
    rows = [(b, k, e) for b, k in places for e in explanations.values()]
    if len(rows) > MAX_ROWS:
        raise FigureSizeError(f"{len(rows)} maps do not fit into one figure: draw at most {MAX_ROWS} at a time")
    drawn = [np.asarray(e.overlay(b, k, opacity=opacity)) for b, k, e in rows]
    heights = [_SIGNAL_WIDTH * pixels.shape[0] / pixels.shape[1] + _TITLE_HEIGHT for pixels in drawn]
    figure = new_figure(_SIGNAL_WIDTH, sum(heights))
    top = sum(heights)
    for (b, k, e), pixels, height in zip(rows, drawn, heights, strict=True):
        axes = figure.add_axes((0, (top - height) / sum(heights), 1, (height - _TITLE_HEIGHT) / sum(heights)))
        show(axes, pixels, f"{e.method}: {e.label(b, k)}")
        top -= height
    return figure


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


def _aspect(groups: Sequence[Group]) -> float:
    """Height of the maps divided by their width."""
    maps = next(iter(groups[0].values())).maps
    return float(maps.shape[2] / maps.shape[3])


def _rgb(explanation: ExplanationLike) -> np.ndarray[Any, Any]:
    assert explanation.rgb_images is not None
    return explanation.rgb_images


def _show_map(
    axes: Any, explanation: ExplanationLike, image: int, k: int, raw: bool, opacity: float, fontsize: float = 8
) -> None:
    """Draw one map as an overlay, or alone at patch resolution; a constant map is marked."""
    signed = explanation.signed
    if raw:
        pixels = colourise(normalise(explanation.grid[image, k], signed).float().cpu().numpy(), signed)
    else:
        relevance = explanation.maps[image, k].float().cpu().numpy()
        pixels = overlay(_rgb(explanation)[image], relevance, signed, opacity)
    show(axes, pixels)
    if bool(explanation.constant[image, k]):
        centred = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, "no relevance", fontsize=fontsize, color="white", **centred)


def _draw_box(axes: Any, explanation: ExplanationLike, image: int, k: int, raw: bool = False) -> None:
    """Outline the box of a target, if it has one."""
    named = explanation.named_targets
    corners = None if named is None else named[image][k].corners
    if corners is None:
        return
    from matplotlib.patches import Rectangle

    height, width = (explanation.grid if raw else explanation.maps).shape[-2:]
    left, top, right, bottom = (s * n - 0.5 for s, n in zip(corners, (width, height, width, height), strict=True))
    for colour, line in (("black", 2.0), ("white", 1.0)):
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=line))


def _mark_failure(axes: Any, explanation: ExplanationLike, image: int, k: int) -> None:
    """Write the verdict below a map that was checked and failed."""
    check = explanation.checks.get((image, k))
    if check is not None and not check.passed:
        axes.text(0.02, 0.02, f"⚠ {check.verdict}", fontsize=5.5, color="white", transform=axes.transAxes, va="bottom",
                  bbox={"facecolor": "black", "alpha": 0.55, "pad": 1.2, "linewidth": 0})  # fmt: skip
