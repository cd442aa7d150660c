"""Selection of example images: best, worst and largest disagreement between methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.bench.report.metric import MetricInfo
from vitrail.bench.report.run_folder import Run
from vitrail.bench.report.section import MetricColumn, ReportSection, image_scores
from vitrail.scores.statistics import Array

#: Largest numbers of pairs of model and data set, and of maps per image.
MAX_PAIRS, MAX_MAPS = 6, 8


@dataclass(frozen=True, eq=False)
class SelectedExample:
    """An image and the methods shown on it.

    Attributes:
        kind: "best", "worst" or "disagreement".
        model: Title of the model.
        dataset: Title of the data set.
        image: Id of the image.
        target: Explained class.
        metric: Score by which it was selected.
        scores: By method, best first, in the score's own units.
        left_out: Number of methods that are not shown.
    """

    kind: str
    model: str
    dataset: str
    image: str
    target: str
    metric: MetricInfo
    scores: dict[str, float]
    left_out: int = 0


def select_images(values: Array, count: int) -> dict[int, str]:
    """Select images with the highest and lowest mean over methods and the largest spread, each image once.

    Args:
        values: Scores, higher being better, shape (methods, images).
        count: Largest number of images of each kind.

    Example:
        >>> select_images(np.array([[0.9, 0.1, 0.5, 1.0], [0.8, 0.1, 0.5, 0.0]]), 1)
        {0: 'best', 1: 'worst', 3: 'disagreement'}
    """
    keys = {"best": -values.mean(0), "worst": values.mean(0), "disagreement": -values.std(0)}
    selected: dict[int, str] = {}
    for kind, key in keys.items():
        order = [int(i) for i in np.argsort(key, kind="stable") if int(i) not in selected]
        selected |= dict.fromkeys(order[:count], kind)
    return selected


def select_examples(run: Run, sections: Sequence[ReportSection], count: int) -> list[SelectedExample]:
    """Select examples of every model and data set, by the score that takes most distinct values on single images."""
    pairs: dict[tuple[str, str], list[tuple[ReportSection, MetricColumn]]] = {}
    for section in sections:
        if section.target in run.plan.targets:
            columns = [(section, column) for column in section.columns if column.metric.direction != "none"]
            pairs.setdefault((section.model, section.dataset), []).extend(columns)
    examples: list[SelectedExample] = []
    for candidates in [candidates_of for candidates_of in pairs.values() if candidates_of][:MAX_PAIRS]:
        section, column = max(candidates, key=lambda pair: count_distinct(pair[1]))
        examples += _examples(run, section, column, count)
    return examples


def count_distinct(column: MetricColumn) -> int:
    """Number of distinct values on single images, summed over methods; an accuracy at ten levels has few."""
    return sum(len({round(value, 9) for value in values.per_sample().values()}) for values in column.values.values())


def _examples(run: Run, section: ReportSection, column: MetricColumn, count: int) -> list[SelectedExample]:
    methods = [name for name in column.ranking if name not in run.controls]
    ids, values = image_scores(column, methods)
    if not ids:
        return []
    sign = 1 if column.metric.direction == "up" else -1
    examples = []
    for index, kind in select_images(sign * values, count).items():
        order = np.argsort(-sign * values[:, index], kind="stable")
        shown = order if len(order) <= MAX_MAPS else [*order[: MAX_MAPS // 2], *order[-MAX_MAPS // 2 :]]
        scores = {methods[i]: float(values[i, index]) for i in shown}
        examples.append(
            SelectedExample(
                kind, section.model, section.dataset, ids[index], section.target, column.metric, scores,
                len(order) - len(scores),
            )
        )  # fmt: skip
    kinds = ("best", "worst", "disagreement")
    return sorted(examples, key=lambda example: kinds.index(example.kind))
