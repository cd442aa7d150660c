"""Scores of FunnyBirds from the values of each image, for funnybirds.py and recompute.py."""

from __future__ import annotations

import numpy as np

from vitrail.scores import interval
from vitrail.scores.funnybirds import THRESHOLDED
from vitrail.scores.statistics import Interval

PROTOCOLS = (*THRESHOLDED, "single_deletion", "target_sensitivity")


def dimensions(means: np.ndarray) -> np.ndarray:
    """The mean of the three dimensions from means of values and of what is valid, for `interval`."""
    check, keep, delete, calm, single, target = np.moveaxis(means[..., :6] / means[..., 6:], -1, 0)
    completeness = ((check + keep + delete) / 3 + calm) / 2
    return np.asarray((completeness + single + target) / 3)


def mean_interval(values: np.ndarray) -> Interval | None:
    """The mean of the dimensions with its 95 % interval; None where a protocol is undefined for all images.

    Args:
        values: A column for each of `PROTOCOLS`, NaN where a protocol leaves the image out.
    """
    valid = ~np.isnan(values)
    if not valid.any(0).all():  # such as the correlation of a constant map
        return None
    return interval(np.concatenate([np.nan_to_num(values), valid], 1), dimensions)
