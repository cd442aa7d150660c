"""Figures for papers: a row for each class, a column for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import InputError, require
from vitrail.viz.colormap import colours, overlay

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitrail.explanation import Explanation

MOST_ROWS = 40


def figure(
    explanations: Mapping[str, Explanation] | Sequence[Mapping[str, Explanation]],
    *,
    raw: bool = False,
    opacity: float = 0.75,
    cell: float = 1.7,
) -> Figure:
    """Input and maps side by side: one row for each target of each image, one column for each method.

    Args:
        explanations: Explanations of the same inputs, by method; or several of these, by the same methods.
        raw: Show the maps alone, patch by patch as the methods gave them, instead of laid over the picture.
        opacity: How much colour covers the picture where relevance is greatest.
        cell: Width of a picture in inches.

    Returns:
        A matplotlib figure, to be saved with ``savefig``; it belongs to no window.
    """
    require("matplotlib", "plot", "draw figures")
    from matplotlib.figure import Figure as Canvas

    groups = [explanations] if isinstance(explanations, Mapping) else list(explanations)
    firsts = [next(iter(group.values())) for group in groups]
    if any(first.images is None for first in firsts):
        raise InputError("a text has no pictures: print its token scores instead")
    rows = [
        (group, b, k)
        for group, first in zip(groups, firsts, strict=True)
        for b in range(first.maps.shape[0])
        for k in range(first.maps.shape[1])
    ]
    if len(rows) > MOST_ROWS:
        raise InputError(f"{len(rows)} rows are too many for one figure: explain at most {MOST_ROWS} targets at a time")
    height, width = firsts[0].maps.shape[2:]
    tall, columns = cell * height / width, 1 + len(groups[0])
    headings = [_heading(e) for e in groups[0].values()]
    top = 0.24 + 0.13 * max(text.count("\n") for text in headings)
    total = (columns * (cell + 0.06) + 0.65, len(rows) * (tall + 0.26) + top - 0.16)
    drawing = Canvas(figsize=total, dpi=200)
    across = 1 - 0.65 / total[0]
    axes = drawing.subplots(
        len(rows), columns, squeeze=False,
        gridspec_kw={"left": 0.05 / total[0], "right": across, "bottom": 0.05 / total[1],
                     "top": 1 - top / total[1], "wspace": 0.04, "hspace": 0.26 / tall},
    )  # fmt: skip
    for line, (group, b, k) in zip(axes, rows, strict=True):
        first = next(iter(group.values()))
        assert first.pictures is not None
        _show(line[0], first.pictures[b])
        line[0].set_title(first.label(b, k), fontsize=7.5, loc="left", pad=3)
        for spot, explanation in zip(line[1:], group.values(), strict=True):
            _show_map(spot, explanation, b, k, raw, opacity)
    for spot, text in zip(axes[0, 1:], headings, strict=True):
        spot.set_title(text, fontsize=8, pad=3)
    _bar(drawing, axes, across, total, any(e.signed for e in groups[0].values()))
    return drawing


def _show(axes: Any, pixels: Any) -> None:
    axes.imshow(pixels, interpolation="nearest")
    axes.set_axis_off()


def _show_map(axes: Any, explanation: Explanation, image: int, k: int, raw: bool, opacity: float) -> None:
    pictures = explanation.pictures
    assert pictures is not None
    if raw:
        from vitrail.postprocess import normalise
        from vitrail.viz.colormap import paint

        grid = normalise(explanation.grid[image, k], explanation.signed).float().cpu().numpy()
        _show(axes, paint(grid, explanation.signed))
    else:
        relevance = explanation.maps[image, k].float().cpu().numpy()
        _show(axes, overlay(pictures[image], relevance, explanation.signed, opacity))
    if bool(explanation.flat[image, k]):
        centred = {"transform": axes.transAxes, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, "no relevance", fontsize=8, color="white", **centred)


def _heading(explanation: Explanation) -> str:
    variant = explanation.method.partition(":")[2]
    return f"{explanation.title}\n{variant}" if variant else explanation.title


def _bar(drawing: Any, axes: Any, across: float, total: tuple[float, float], signed: bool) -> None:
    """A colour bar beside the first row."""
    box = axes[0, -1].get_position()
    spot = drawing.add_axes((across + 0.08 / total[0], box.y0, 0.09 / total[0], box.height))
    spot.imshow(np.flipud(colours(signed)[:, None]), aspect="auto", extent=(0, 1, -1 if signed else 0, 1))
    spot.set_xticks([])
    spot.yaxis.tick_right()
    spot.set_yticks([-1, 0, 1] if signed else [0, 1])
    spot.set_yticklabels(["against", "0", "for"] if signed else ["min", "max"], fontsize=6.5)
    spot.tick_params(length=2, width=0.5, pad=2)
    for side in spot.spines.values():
        side.set_linewidth(0.4)
