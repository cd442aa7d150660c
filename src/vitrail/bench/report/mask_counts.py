"""Number of masks that mask-based methods scored, counted by the images they evaluated."""

from __future__ import annotations

import numpy as np

from vitrail.bench.report.run_folder import Run
from vitrail.methods import find
from vitrail.scores.statistics import Array, Interval, interval

#: Scores of the protocol "explain" that are computed here: mean over images, and standard deviation.
MASKS, MASKS_STD = "masks", "masks_std"


def count_masks(run: Run, model: str, dataset: str, method: str) -> Array:
    """Number of masks of each image, shape (images,); empty for a method that scores no masks."""
    import polars as pl

    from vitrail.bench.parts import EXPLAIN

    _, entry, options = find(method)
    if entry.evaluations_per_mask is None:
        return np.empty(0)
    keys = {"model": model, "dataset": dataset, "method": method, "protocol": EXPLAIN}
    rows = run.costs().filter(*(pl.col(name) == value for name, value in keys.items()))
    # All targets of an image share its masks: their rows repeat one cost.
    images = rows.group_by("image").agg(pl.col("forwards").max()).filter(pl.col("forwards") > 0).sort("image")
    evaluated = images.collect()["forwards"].to_numpy().astype(np.float64)
    return np.asarray(evaluated / entry.evaluations_per_mask(options))


def mask_statistic(counts: Array, score: str) -> Interval | None:
    """Mean number of masks, or their standard deviation, with its interval; None without images.

    Example:
        >>> counts = np.array([60.0, 66.0])
        >>> mask_statistic(counts, "masks").value, mask_statistic(counts, "masks_std").value
        (63.0, 3.0)
    """
    if not len(counts):
        return None
    if score == MASKS:
        return interval(counts)
    moments = np.stack([counts, counts**2], 1)
    return interval(moments, lambda mean: np.sqrt(np.maximum(mean[..., 1] - mean[..., 0] ** 2, 0.0)))
