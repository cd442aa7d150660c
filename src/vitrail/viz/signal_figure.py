"""Matplotlib figure of maps of videos, sound, series and features: one row for each target and method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vitrail.errors import InputError
from vitrail.viz.figure import MAX_ROWS
from vitrail.viz.panels import new_figure, show
from vitrail.viz.types import ExplanationLike

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Sizes in inches.
_WIDTH, _LABEL = 6.4, 0.24


def signal_figure(explanations: Mapping[str, ExplanationLike], *, opacity: float = 0.75) -> Figure:
    """Draw the overlays of all methods below each other, for each target of each input.

    Returns:
        A matplotlib figure that is not attached to a window; save it with ``savefig``.
    """
    first = next(iter(explanations.values()))
    places = [(b, k) for b in range(first.maps.shape[0]) for k in range(first.maps.shape[1])]
    rows = [(b, k, e) for b, k in places for e in explanations.values()]
    if len(rows) > MAX_ROWS:
        raise InputError(f"{len(rows)} maps do not fit into one figure: draw at most {MAX_ROWS} at a time")
    drawn = [np.asarray(e.overlay(b, k, opacity=opacity)) for b, k, e in rows]
    heights = [_WIDTH * pixels.shape[0] / pixels.shape[1] + _LABEL for pixels in drawn]
    figure = new_figure(_WIDTH, sum(heights))
    top = sum(heights)
    for (b, k, e), pixels, height in zip(rows, drawn, heights, strict=True):
        axes = figure.add_axes((0, (top - height) / sum(heights), 1, (height - _LABEL) / sum(heights)))
        show(axes, pixels, f"{e.method}: {e.label(b, k)}")
        top -= height
    return figure
