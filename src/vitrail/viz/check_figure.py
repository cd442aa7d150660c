"""Figures of checked maps: removal curves beside those of moved copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from vitrail.errors import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The axis of probabilities that are all below this ends at the highest of them.
SMALL = 0.1


class CheckLike(Protocol):
    """The attributes of `vitrail.trust.MapCheck` that are drawn."""

    label: Any
    verdict: Any
    p_value: Any
    levels: Any
    probability: Any
    removed: Any
    kept: Any
    null_removed: Any
    null_kept: Any
    is_probability: Any
    unit: Any


def check_figure(checks: Mapping[str, Any]) -> Figure:
    """Draw one row for each method: most relevant patches removed on the left, kept on the right.

    Returns:
        A matplotlib figure that is not attached to a window; save it with ``savefig``.
    """
    require("matplotlib", "plot", "draw figures")
    from vitrail.viz.notebook_figure import NotebookFigure

    drawing = NotebookFigure(figsize=(6.4, 2.3 * len(checks) + 0.2), dpi=160, layout="constrained")
    axes = drawing.subplots(len(checks), 2, squeeze=False, sharey="row")
    for (left, right), (method, check) in zip(axes, checks.items(), strict=True):
        _draw(left, check, check.removed, check.null_removed, start=check.probability)
        _draw(right, check, check.kept, check.null_kept, start=None)
        left.set_title(f"{method}: {check.verdict}", fontsize=9, loc="left")
        right.set_title(f"p = {check.p_value:.2g}", fontsize=9, loc="right")
        left.set_ylabel(f"probability of {check.label}" if check.is_probability else check.label, fontsize=8)
        if check.is_probability:
            left.set_ylim(*_limits(check))
        left.set_xlabel(f"most relevant {check.unit} removed (%)", fontsize=8)
        right.set_xlabel(f"most relevant {check.unit} kept (%)", fontsize=8)
        left.legend(fontsize=7, frameon=False)
    return drawing


def _limits(check: CheckLike) -> tuple[float, float]:
    """Limits of the axis of probabilities: 0 to 1, or to the highest one where all are small."""
    highest = max(check.probability, *check.removed, *check.null_removed, *check.kept, *check.null_kept)
    top = 1.0 if highest > SMALL or highest <= 0 else 1.1 * float(highest)
    return -0.03 * top, 1.03 * top


def _draw(axis: Any, check: CheckLike, curve: Any, null: Any, start: float | None) -> None:
    order = sorted(range(len(check.levels)), key=lambda i: check.levels[i])
    levels = [100 * check.levels[i] for i in order]
    for values, label, style in ((curve, "this map", "o-"), (null, "moved copies, mean", "o--")):
        if not values:
            continue
        y = [values[i] for i in order]
        x = levels if start is None else [0.0, *levels]
        y = y if start is None else [start, *y]
        axis.plot(x, y, style, markersize=3, linewidth=1.4, label=label, color="C0" if style == "o-" else "0.55")
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
