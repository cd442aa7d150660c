"""Values of each image for each score, from the rows of a run: the input of intervals and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vitrail.scores.comparison import MethodValues
from vitrail.scores.segmentation import (
    THRESHOLDS,
    MultiClassSegmentationScores,
    SegmentationScores,
    best_threshold,
    two_fold,
)
from vitrail.scores.statistics import Array, SampleScores, ScoreFunction, mean_ratio, single_mean

if TYPE_CHECKING:
    import polars as pl

    from vitrail.report.metric import MetricInfo

AnySegmentationScores = SegmentationScores | MultiClassSegmentationScores
#: Columns of scores that are means over images.
_MEAN_COLUMNS = {"map": "ap", "ap_foreground": "ap_foreground", "auroc": "auroc"}


def method_scores(rows: pl.DataFrame, protocol: str) -> dict[str, SampleScores]:
    """Collect the values of each method in the protocol's own accumulator.

    Args:
        rows: Rows of one model, data set, target and protocol.
        protocol: Name of the protocol.
    """
    from vitrail.bench.protocols import PresentClassScores
    from vitrail.bench.results_store import collect_scores

    kinds: dict[str, type[SampleScores]] = {"segmentation": SegmentationScores, "multiclass": PresentClassScores}
    kind = kinds.get(protocol, SampleScores)
    valid = rows.filter(rows["error"].is_null())
    return {str(method): collect_scores(own, kind) for (method,), own in valid.group_by("method", maintain_order=True)}


def metric_values(scores: SampleScores, metric: MetricInfo) -> MethodValues | None:
    """Values of a score for each image; None where the run has none.

    Images for which the score is undefined (NaN) are left out.
    """
    if isinstance(scores, AnySegmentationScores):
        found = _segmentation_values(scores, metric.score)
    elif metric.score in scores.columns:
        found = scores.column(metric.score)[:, None], single_mean
    else:
        return None
    if found is None:
        return None
    table, score = found
    defined = np.isfinite(table).all(1)
    if not defined.any():
        return None
    return MethodValues(tuple(np.array(scores.ids)[defined].tolist()), table[defined], score)


def chosen_threshold(scores: AnySegmentationScores) -> float:
    """Threshold with the best mIoU of the ten, which the scores "best of 10" use."""
    return THRESHOLDS[best_threshold(scores.sweep())]


def _segmentation_values(scores: AnySegmentationScores, name: str) -> tuple[Array, ScoreFunction] | None:
    if name in _MEAN_COLUMNS:
        return scores.column(_MEAN_COLUMNS[name])[:, None], single_mean
    if name.startswith("two_fold"):
        folds = two_fold(scores.sweep(), scores.ids)
        if folds is None:
            return None
        counts = folds[0]
    elif name.startswith("best"):
        counts = scores.sweep().at(best_threshold(scores.sweep()))
    else:
        counts = scores.regions().at(0)
    intersection, union = counts.intersection[:, 0], counts.union[:, 0]
    if name.endswith("miou"):
        return np.concatenate([intersection, union], 1), mean_ratio
    return np.stack([intersection.sum(1), counts.labelled], 1), mean_ratio
