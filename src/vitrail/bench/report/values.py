"""Values of each image for each score, from the rows of a run: the input of intervals and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vitrail.scores.comparison import MethodValues
from vitrail.scores.pointing import BoxPointingScores
from vitrail.scores.rationale import micro_f1
from vitrail.scores.segmentation import (
    THRESHOLDS,
    MultiClassSegmentationScores,
    SegmentationScores,
    best_accuracy_threshold,
    best_threshold,
    two_fold,
)
from vitrail.scores.statistics import Array, SampleScores, ScoreFunction, mean_ratio, single_mean
from vitrail.scores.wsol import BOX_IOUS, WsolScores

if TYPE_CHECKING:
    import polars as pl

    from vitrail.bench.report.metric import MetricInfo

AnySegmentationScores = SegmentationScores | MultiClassSegmentationScores
#: Columns of scores that are means over images.
_MEAN_COLUMNS = {"map": "ap", "ap_foreground": "ap_foreground", "auroc": "auroc"}


def method_scores(rows: pl.DataFrame, protocol: str) -> dict[str, SampleScores]:
    """Collect the values of each method in the protocol's own accumulator."""
    from vitrail.bench.multiclass_protocols import PresentClassScores
    from vitrail.bench.results_table import collect_scores

    kinds: dict[str, type[SampleScores]] = {
        "segmentation": SegmentationScores, "multiclass": PresentClassScores, "multiclass_original": PresentClassScores,
        "wsol": WsolScores, "box_pointing": BoxPointingScores,
    }  # fmt: skip
    kind = kinds.get(protocol, SampleScores)
    valid = rows.filter(rows["error"].is_null())
    return {
        str(method): collect_scores(method_rows, kind)
        for (method,), method_rows in valid.group_by("method", maintain_order=True)
    }


def metric_values(scores: SampleScores, metric: MetricInfo) -> MethodValues | None:
    """Values of a score for each image; None where the run has none.

    Images for which the score is undefined (NaN) are left out.
    """
    if isinstance(scores, WsolScores):
        return _wsol_values(scores, metric.score)
    if isinstance(scores, AnySegmentationScores):
        table_and_score = _segmentation_values(scores, metric.score)
    elif isinstance(scores, BoxPointingScores) and metric.score == "accuracy":
        table_and_score = np.stack([scores.column("hits"), scores.column("boxes")], 1), mean_ratio
    elif metric.score.startswith("micro@"):
        table_and_score = _micro_f1_values(scores, metric.score.partition("@")[2])
    elif metric.score in scores.columns:
        table_and_score = scores.column(metric.score)[:, None], single_mean
    else:
        return None
    if table_and_score is None:
        return None
    table, score = table_and_score
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
    elif name.startswith("own_best"):
        counts = scores.sweep().at(best_accuracy_threshold(scores.sweep()))
    elif name.startswith("best"):
        counts = scores.sweep().at(best_threshold(scores.sweep()))
    else:
        counts = scores.regions().at(0)
    intersection, union = counts.intersection[:, 0], counts.union[:, 0]
    if name.endswith("miou"):
        return np.concatenate([intersection, union], 1), mean_ratio
    return np.stack([intersection.sum(1), counts.labelled], 1), mean_ratio


def _wsol_values(scores: WsolScores, name: str) -> MethodValues | None:
    """Whether each image's box is correct; for the mean over three IoUs one column for each."""
    if not scores.located():
        return None
    at_threshold: Array | None = scores.at_best()
    if name == "two_fold_box_acc":
        at_threshold = scores.two_fold()
    elif name == "max_box_acc_v2":
        at_threshold = np.mean([scores.at_best(least) for least in BOX_IOUS], 0)
    elif name == "top1_loc":
        top1 = scores.top1()
        at_threshold = None if top1 is None else scores.at_best() * top1
    return None if at_threshold is None else MethodValues(tuple(scores.located()), at_threshold[:, None], single_mean)


def _micro_f1_values(scores: SampleScores, k: str) -> tuple[Array, ScoreFunction] | None:
    """Correct, selected and marked words of each text, from which `micro_f1` computes the F1 of all texts together."""
    names = (f"hits@{k}", f"picked@{k}", "marked")
    if not set(names) <= set(scores.columns):
        return None
    return np.stack([scores.column(name) for name in names], 1), micro_f1
