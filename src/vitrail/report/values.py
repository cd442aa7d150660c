"""Values of images for each score, from the rows of a run: what intervals and tests are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitrail.scores.segmentation import THRESHOLDS, MultiClass, Regions, Segmentation, half
from vitrail.scores.statistics import Array, Score, Tally, first, mean_ratio

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
    score: Score = first

    def each(self) -> dict[str, float]:
        """The score of each image by itself."""
        return dict(zip(self.ids, self.score(self.table).tolist(), strict=True))

    def of(self, ids: list[str]) -> Array:
        """The rows of some images."""
        at = {name: i for i, name in enumerate(self.ids)}
        return self.table[[at[name] for name in ids]]


def tallies(rows: pl.DataFrame, protocol: str) -> dict[str, Tally]:
    """For each method the values of its images, as the protocol's own tally.

    Args:
        rows: Of one model, data set, target and protocol.
        protocol: Which.
    """
    from vitrail.bench.protocols import PresentClassScores
    from vitrail.bench.results_store import collect_scores

    kinds: dict[str, type[Tally]] = {"segmentation": Segmentation, "multiclass": PresentClassScores}
    kind = kinds.get(protocol, Tally)
    known = rows.filter(rows["error"].is_null())
    return {str(method): collect_scores(own, kind) for (method,), own in known.group_by("method", maintain_order=True)}


def values(tally: Tally, measure: MetricInfo) -> Values | None:
    """A score's values; None where the run has none of it.

    Images for which it is undefined (NaN) are left out.
    """
    if isinstance(tally, Segmentation | MultiClass):
        table, score = _regions(tally, measure.score)
    elif measure.score in tally.columns:
        table, score = tally.column(measure.score)[:, None], first
    else:
        return None
    whole = np.isfinite(table).all(1)
    if not whole.any():
        return None
    return Values(tuple(np.array(tally.ids)[whole].tolist()), table[whole], score)


def _regions(tally: Segmentation | MultiClass, name: str) -> tuple[Array, Score]:
    own = {"map": "ap", "ap_foreground": "ap_foreground", "auroc": "auroc"}
    if name in own:
        return tally.column(own[name])[:, None], first
    sweep = _sweep(tally)
    if name.startswith("two_fold"):
        at = _two_fold(sweep, tally.ids)
    elif name.startswith("best"):
        at = sweep.at(_best(sweep))
    else:
        at = tally.regions().at(0)
    common, union = at.common[:, 0], at.union[:, 0]
    if name.endswith("miou"):
        return np.concatenate([common, union], 1), mean_ratio
    return np.stack([common.sum(1), at.labelled], 1), mean_ratio


def _sweep(tally: Segmentation | MultiClass) -> Regions:
    """Counts at the ten thresholds; of object against ground the first is the map's mean, which is none of them."""
    found = tally.regions()
    if isinstance(tally, MultiClass):
        return found
    return Regions(found.common[:, 1:], found.union[:, 1:], found.labelled)


def _best(sweep: Regions) -> int:
    return int(np.argmax(sweep.miou()))


def _two_fold(sweep: Regions, ids: list[str]) -> Regions:
    """Each half of the images at the threshold that is best on the other; NaN where a half is empty."""
    side = np.array([half(name) for name in ids])
    common, union = (np.full((len(ids), 1, sweep.common.shape[2]), np.nan) for _ in range(2))
    for own in (0, 1):
        here, there = np.flatnonzero(side == own), np.flatnonzero(side != own)
        if len(here) and len(there):
            at = sweep.of(here).at(_best(sweep.of(there)))
            common[here], union[here] = at.common, at.union
    return Regions(common, union, sweep.labelled)


def threshold(tally: Segmentation | MultiClass) -> float:
    """The one that "best of ten" took."""
    return THRESHOLDS[_best(_sweep(tally))]
