"""Values of images for each score, from the rows of a run: what intervals and tests are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitrail.scores.segmentation import (
    THRESHOLDS,
    MultiClassSegmentationScores,
    RegionCounts,
    SegmentationScores,
    fold_of,
)
from vitrail.scores.statistics import Array, SampleScores, ScoreFunction, mean_ratio, single_mean

if TYPE_CHECKING:
    import polars as pl

    from vitrail.report.metric import MetricInfo


@dataclass(frozen=True, eq=False)
class Values:
    """What each image adds to a score.

    Attributes:
        ids: The images that have a value, in order of name.
        table: Shape (images, M).
        score: From means of the columns to the score.
    """

    ids: tuple[str, ...]
    table: Array
    score: ScoreFunction = single_mean

    def each(self) -> dict[str, float]:
        """The score of each image by itself."""
        return dict(zip(self.ids, self.score(self.table).tolist(), strict=True))

    def of(self, ids: list[str]) -> Array:
        """The rows of some images."""
        at = {name: i for i, name in enumerate(self.ids)}
        return self.table[[at[name] for name in ids]]


def tallies(rows: pl.DataFrame, protocol: str) -> dict[str, SampleScores]:
    """For each method the values of its images, as the protocol's own tally.

    Args:
        rows: Of one model, data set, target and protocol.
        protocol: Which.
    """
    from vitrail.bench.protocols import PresentClassScores
    from vitrail.bench.results_store import collect_scores

    kinds: dict[str, type[SampleScores]] = {"segmentation": SegmentationScores, "multiclass": PresentClassScores}
    kind = kinds.get(protocol, SampleScores)
    known = rows.filter(rows["error"].is_null())
    return {str(method): collect_scores(own, kind) for (method,), own in known.group_by("method", maintain_order=True)}


def values(tally: SampleScores, measure: MetricInfo) -> Values | None:
    """A score's values; None where the run has none of it.

    Images for which it is undefined (NaN) are left out.
    """
    if isinstance(tally, SegmentationScores | MultiClassSegmentationScores):
        table, score = _regions(tally, measure.score)
    elif measure.score in tally.columns:
        table, score = tally.column(measure.score)[:, None], single_mean
    else:
        return None
    whole = np.isfinite(table).all(1)
    if not whole.any():
        return None
    return Values(tuple(np.array(tally.ids)[whole].tolist()), table[whole], score)


def _regions(tally: SegmentationScores | MultiClassSegmentationScores, name: str) -> tuple[Array, ScoreFunction]:
    own = {"map": "ap", "ap_foreground": "ap_foreground", "auroc": "auroc"}
    if name in own:
        return tally.column(own[name])[:, None], single_mean
    sweep = _sweep(tally)
    if name.startswith("two_fold"):
        at = _two_fold(sweep, tally.ids)
    elif name.startswith("best"):
        at = sweep.at(_best(sweep))
    else:
        at = tally.regions().at(0)
    common, union = at.intersection[:, 0], at.union[:, 0]
    if name.endswith("miou"):
        return np.concatenate([common, union], 1), mean_ratio
    return np.stack([common.sum(1), at.labelled], 1), mean_ratio


def _sweep(tally: SegmentationScores | MultiClassSegmentationScores) -> RegionCounts:
    """Counts at the ten thresholds; of object against ground the first is the map's mean, which is none of them."""
    found = tally.regions()
    if isinstance(tally, MultiClassSegmentationScores):
        return found
    return RegionCounts(found.intersection[:, 1:], found.union[:, 1:], found.labelled)


def _best(sweep: RegionCounts) -> int:
    return int(np.argmax(sweep.miou()))


def _two_fold(sweep: RegionCounts, ids: list[str]) -> RegionCounts:
    """Each half of the images at the threshold that is best on the other; NaN where a half is empty."""
    side = np.array([fold_of(name) for name in ids])
    common, union = (np.full((len(ids), 1, sweep.intersection.shape[2]), np.nan) for _ in range(2))
    for own in (0, 1):
        here, there = np.flatnonzero(side == own), np.flatnonzero(side != own)
        if len(here) and len(there):
            at = sweep.of(here).at(_best(sweep.of(there)))
            common[here], union[here] = at.intersection, at.union
    return RegionCounts(common, union, sweep.labelled)


def threshold(tally: SegmentationScores | MultiClassSegmentationScores) -> float:
    """The one that "best of ten" took."""
    return THRESHOLDS[_best(_sweep(tally))]
