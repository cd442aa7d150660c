"""The scores of one model, data set, protocol and target: methods down, scores across."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from vitrail.report.metric import WHOSE, MetricInfo, measures
from vitrail.report.ranking import RankedMethod, standings
from vitrail.report.run import Run
from vitrail.report.values import Values, tallies, threshold, values
from vitrail.scores.presets import find_presets
from vitrail.scores.segmentation import MultiClassSegmentationScores, SegmentationScores
from vitrail.scores.statistics import Array


@dataclass(frozen=True, eq=False)
class Column:
    """One score of all methods.

    Attributes:
        measure: Which score.
        values: By method, those of each image.
        standings: By method, best first, controls last.
    """

    measure: MetricInfo
    values: dict[str, Values] = field(repr=False)
    standings: dict[str, RankedMethod] = field(repr=False)

    @property
    def strongest(self) -> str | None:
        """The best of the controls."""
        return next((name for name, one in self.standings.items() if one.control), None)


@dataclass(frozen=True, eq=False)
class ReportSection:
    """The scores of one model, data set, protocol and target.

    Attributes:
        model: Its title.
        dataset: Its title.
        protocol: A preset's or protocol's name.
        target: Whose class is explained.
        columns: The scores that are there.
        thresholds: By method, the one "best of ten" took; of segmentation only.
    """

    model: str
    dataset: str
    protocol: str
    target: str
    columns: tuple[Column, ...]
    thresholds: dict[str, float] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """All methods, best by the first score first, controls last."""
        names = dict.fromkeys(name for column in self.columns for name in column.standings)
        controls = {name for column in self.columns for name, one in column.standings.items() if one.control}
        return sorted(names, key=lambda name: name in controls)

    @property
    def images(self) -> int:
        """Most pictures any method has a value for."""
        return max(one.images for column in self.columns for one in column.standings.values())

    @property
    def title(self) -> str:
        """The protocol and whose maps it scores."""
        return f"{self.protocol}, {WHOSE.get(self.target, self.target)}"

    @property
    def about(self) -> str:
        """What the protocol does, in words."""
        if self.protocol in ABOUT:
            return ABOUT[self.protocol]
        preset = find_presets(self.protocol)[0]
        levels = "; ".join(dict.fromkeys(str(curve.grid) for curve in preset.curves))
        return f"Pixels are removed by relevance and the model is asked again. After {preset.source}; levels {levels}."

    def column(self, score: str) -> Column | None:
        """A score's column, if it is there."""
        return next((column for column in self.columns if column.measure.score == score), None)


#: The protocols that are not presets, in a sentence.
ABOUT = {
    "segmentation": "Maps, cut at a threshold, against the object's mask.",
    "pointing": "Does the highest point, and the relevance as a whole, lie on the object?",
    "selectivity": "Asked for one of two things in a picture, does the map show that one? A method blind to classes "
    "is right half the time.",
    "complexity": "How few patches carry the relevance. This is about maps alone: neither way is better.",
    "sensitivity": "Does the map stay the same when the picture hardly changes?",
    "sanity": "How alike a map stays while the weights are made random from the head down, each stage on top of those "
    "before. A map that does not change does not depend on what was learnt there: neither way is better by itself.",
    "multiclass": "The maps of a picture's classes, joined into one map of labels, against the mask.",
}


def blocks(run: Run) -> Iterator[ReportSection]:
    """All blocks of a run, in the plan's order; those without a single value are left out."""
    import polars as pl

    from vitrail.bench.protocols import protocol_targets

    plan = run.plan
    rows = run.scores().select("model", "dataset", "image", "method", "target", "protocol", "score", "value", "error")
    for network in plan.models:
        for data in plan.dataset:
            for protocol, target in protocol_targets(plan.protocols_of(data), plan.targets):
                where = {"model": network.title, "dataset": data.title, "protocol": protocol, "target": target}
                own = rows.filter(*(pl.col(name) == value for name, value in where.items())).collect()
                block = _block(own, where, run)
                if block.columns:
                    yield block


def _block(rows: object, where: dict[str, str], run: Run) -> ReportSection:
    found = tallies(rows, where["protocol"])  # type: ignore[arg-type]
    columns = []
    known = next(iter(found.values())).columns if found else ()
    for one in measures(where["protocol"], where["target"], known):
        given = {name: values(found[name], one) for name in run.plan.specs() if name in found}
        there = {name: v for name, v in given.items() if v is not None}
        if there:
            columns.append(Column(one, there, standings(there, one.direction, run.controls)))
    cuts = {
        name: threshold(t)
        for name, t in found.items()
        if isinstance(t, SegmentationScores | MultiClassSegmentationScores) and len(t)
    }
    return ReportSection(**where, columns=tuple(columns), thresholds=cuts)


def per_image(column: Column, methods: list[str]) -> tuple[list[str], Array]:
    """Scores of single images that all of some methods have: ids, and values of shape (methods, images)."""
    each = [column.values[name].each() for name in methods]
    ids = sorted(set.intersection(*(set(own) for own in each))) if each else []
    return ids, np.array([[own[name] for name in ids] for own in each]).reshape(len(each), len(ids))
