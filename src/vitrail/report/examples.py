"""Pictures worth looking at: where methods do best, where worst, and where they disagree most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.report.metric import MetricInfo
from vitrail.report.run import Run
from vitrail.report.section import Column, ReportSection, per_image
from vitrail.scores.statistics import Array

#: At most so many pairs of model and data set are shown, and so many maps a picture.
PAIRS, MAPS = 6, 8


@dataclass(frozen=True, eq=False)
class ExampleCase:
    """A picture and the methods shown on it.

    Attributes:
        kind: Why it is shown.
        model: Title of the model.
        dataset: Title of the data set.
        image: The picture's id.
        target: Whose class is explained.
        measure: What it was chosen by.
        scores: By method, best first, in the score's own units.
        left_out: How many methods are not shown.
    """

    kind: str
    model: str
    dataset: str
    image: str
    target: str
    measure: MetricInfo
    scores: dict[str, float]
    left_out: int = 0


def choose(values: Array, each: int) -> dict[int, str]:
    """Which images to show: highest and lowest mean over methods, then greatest spread, none twice.

    Args:
        values: Scores, more being better, shape (methods, images).
        each: How many of each kind at most.

    Example:
        >>> choose(np.array([[0.9, 0.1, 0.5, 1.0], [0.8, 0.1, 0.5, 0.0]]), 1)
        {0: 'best', 1: 'worst', 3: 'disagreement'}
    """
    kinds = {"best": -values.mean(0), "worst": values.mean(0), "disagreement": -values.std(0)}
    found: dict[int, str] = {}
    for kind, key in kinds.items():
        order = [int(i) for i in np.argsort(key, kind="stable") if int(i) not in found]
        found |= dict.fromkeys(order[:each], kind)
    return found


def cases(run: Run, blocks: Sequence[ReportSection], each: int) -> list[ExampleCase]:
    """Cases of every model and data set, by the score that tells their pictures apart best."""
    pairs: dict[tuple[str, str], list[tuple[ReportSection, Column]]] = {}
    for block in blocks:
        if block.target in run.plan.targets:
            fit = [(block, column) for column in block.columns if column.measure.direction != "none"]
            pairs.setdefault((block.model, block.dataset), []).extend(fit)
    found: list[ExampleCase] = []
    for own in [own for own in pairs.values() if own][:PAIRS]:
        block, column = max(own, key=lambda pair: distinct(pair[1]))
        found += _cases(run, block, column, each)
    return found


def distinct(column: Column) -> int:
    """How many different values single pictures have: an accuracy at ten levels has few, and says little of one."""
    return sum(len({round(value, 9) for value in own.each().values()}) for own in column.values.values())


def _cases(run: Run, block: ReportSection, column: Column, each: int) -> list[ExampleCase]:
    methods = [name for name in column.standings if name not in run.controls]
    ids, values = per_image(column, methods)
    if not ids:
        return []
    sign = 1 if column.measure.direction == "up" else -1
    found = []
    for at, kind in choose(sign * values, each).items():
        order = np.argsort(-sign * values[:, at], kind="stable")
        shown = order if len(order) <= MAPS else [*order[: MAPS // 2], *order[-MAPS // 2 :]]
        scores = {methods[i]: float(values[i, at]) for i in shown}
        found.append(ExampleCase(kind, block.model, block.dataset, ids[at], block.target, column.measure, scores,
                          len(order) - len(scores)))  # fmt: skip
    order_of = ("best", "worst", "disagreement")
    return sorted(found, key=lambda case: order_of.index(case.kind))
