"""The figure of a job's maps: with the verdict of each map, and what the colours mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vitrail.pipeline.explanation import Explanations
from vitrail.trust.map_check import MapCheck
from vitrail.viz.colormap import colours
from vitrail.viz.figure import MAX_COLUMNS, gallery

PASSED, FAILED, UNKNOWN = "#17663a", "#a3201c", "#4d565e"
NOT_CHECKED = "not checked"


def map_figure(explanations: Explanations) -> Any:
    """Draw maps or words of several methods, each with the verdict of its check, and a legend of the colours."""
    first = next(iter(explanations.values()))
    if first.of_texts:
        figure = explanations.figure()
        _write_list(figure, explanations)
        return figure
    if first.signal is not None:
        figure = _without_checks(explanations).figure()
        places = [(e, k) for k in range(first.maps.shape[1]) for e in explanations.values()]
        for axes, (explanation, k) in zip(figure.axes, places, strict=True):
            _write(axes, explanation.checks.get((0, k)), 1.01, "bottom", 6.5)
        _add_legend(figure, sorted({e.signed for e in explanations.values()}))
        return figure
    if len(explanations) > MAX_COLUMNS:
        figure = gallery(_without_checks(explanations))
        _write_in_gallery(figure, explanations)
        _add_legend(figure, sorted({e.signed for e in explanations.values()}))
        return figure
    figure = _without_checks(explanations).figure()  # has its colour bars
    axes = figure.axes[: first.maps.shape[1] * (1 + len(explanations))]
    for row in range(first.maps.shape[1]):
        for column, explanation in enumerate(explanations.values(), start=1):
            _write(axes[row * (1 + len(explanations)) + column], explanation.checks.get((0, row)), -0.02, "top", 6.5)
    return figure


def verdict_text(check: MapCheck | None) -> str:
    """The verdict of a check in the words of the page.

    Example:
        >>> verdict_text(None)
        'not checked'
    """
    return NOT_CHECKED if check is None else check.verdict


def _without_checks(explanations: Explanations) -> Explanations:
    """The same without checks, whose verdicts are written below the maps instead of on them."""
    return Explanations({label: replace(e, checks={}) for label, e in explanations.items()})


def _colour(check: MapCheck | None) -> str:
    return UNKNOWN if check is None else PASSED if check.passed else FAILED


def _write(axes: Any, check: MapCheck | None, y: float, align: str, size: float) -> None:
    mark = "" if check is None else "✓ " if check.passed else "✗ "
    axes.text(0.0, y, mark + verdict_text(check), transform=axes.transAxes, fontsize=size, color=_colour(check),
              va=align, ha="left", bbox={"facecolor": "white", "alpha": 0.85, "pad": 0.8, "linewidth": 0})  # fmt: skip


def _write_in_gallery(figure: Any, explanations: Explanations) -> None:
    """Write the verdicts into the cells; the axes of a block are its images, then one row for each method."""
    entries, columns = list(explanations.values()), target_count(explanations)
    cells = iter(figure.axes)
    at = 0
    rows = -(-len(entries) // max(1, _blocks(len(figure.axes), len(entries), columns)))
    while at < len(entries):
        for _ in range(columns):
            next(cells)
        for explanation in entries[at : at + rows]:
            for k in range(columns):
                _write(next(cells), explanation.checks.get((0, k)), 0.02, "bottom", 4.5)
        at += rows


def target_count(explanations: Explanations) -> int:
    """Number of targets of each explanation."""
    return int(next(iter(explanations.values())).maps.shape[1])


def _blocks(axes: int, methods: int, columns: int) -> int:
    """Number of blocks of a gallery: each has the images once more.

    Example:
        >>> _blocks(axes=20, methods=16, columns=1), _blocks(axes=36, methods=16, columns=2)
        (4, 2)
    """
    return axes // columns - methods


def _write_list(figure: Any, explanations: Explanations) -> None:
    """Write the verdicts of a text's methods, and what the colours mean, below the figure."""
    verdicts = [
        f"{e.title}: " + ", ".join(verdict_text(e.checks.get((0, k))) for k in range(target_count(explanations)))
        for e in explanations.values()
    ]
    legend = "Orange: for the class. Blue: against the class. Check of each method: "
    figure.text(0.01, -0.01, legend + "; ".join(verdicts) + ".", fontsize=7, va="top", wrap=True)


def _add_legend(figure: Any, signs: list[bool]) -> None:
    """Draw colour bars below a figure, one for each kind of map."""
    width, height = figure.get_size_inches()
    for i, signed in enumerate(signs):
        left = (0.1 + 2.4 * i) / width
        bar = figure.add_axes((left, -0.22 / height, 1.0 / width, 0.1 / height))
        bar.imshow(np.asarray(colours(signed))[None], aspect="auto")
        bar.set_axis_off()
        words = "against … for the class" if signed else "least … most relevant"
        figure.text(left + 1.06 / width, -0.17 / height, words, fontsize=6.5, va="center")
