"""Segmentation scores: thresholded maps against object masks (pixel accuracy, mIoU, mAP).

Two protocols: foreground against background with one map per image (`score_segmentation`, accumulated in
`SegmentationScores`), and several classes with one map for each class of the image (`count_confusions`, accumulated in
`MultiClassSegmentationScores`). Maps and masks must have the same size; the caller chooses which.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import InputError
from vitrail.methods.postprocess import is_constant, normalise
from vitrail.scores.statistics import Array, SampleScores, mean_ratio

#: Thresholds of the sweep; a pixel is foreground where its relevance exceeds the threshold.
THRESHOLDS = tuple(i / 10 for i in range(10))
#: Labels of pixels that do not count.
IGNORE = (255, -1)


def sanitise_maps(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Set constant and non-finite maps to zero.

    Returns:
        The maps in float32 or float64, and a mask of the maps that were set to zero, with height and width 1.
    """
    values = maps.detach() if maps.dtype in (torch.float32, torch.float64) else maps.detach().float()
    constant = is_constant(values)
    return torch.where(constant, 0.0, values), constant


def scale_to_unit(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each map to [0, 1]; constant and non-finite maps become zero.

    Returns:
        Maps, shape (B, height, width), and a mask of the constant and non-finite ones, shape (B,).

    Example:
        >>> scale_to_unit(torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]]))
        (tensor([[[0., 1.]], [[0., 0.]]]), tensor([False, True]))
    """
    if maps.dim() != 3:
        raise InputError(
            f"maps must have shape (images, height, width), got {tuple(maps.shape)}: "
            "see vitrail.integrations for other libraries' maps"
        )
    finite, constant = sanitise_maps(maps)
    return normalise(finite), constant[:, 0, 0]


def average_precision(scores: Tensor, positive: Tensor, valid: Tensor | None = None) -> Tensor:
    """Average precision Σ (Rᵢ − Rᵢ₋₁)·Pᵢ, with equal scores as one threshold, as in scikit-learn.

    Args:
        scores: Finite scores, shape (B, …).
        positive: Positive entries, the same shape.
        valid: Entries that count, the same shape; all by default.

    Returns:
        Shape (B,), float64; NaN where there is no positive entry.

    Example:
        >>> average_precision(torch.tensor([[0.1, 0.4, 0.35, 0.8]]), torch.tensor([[0, 0, 1, 1]]).bool()).item()
        0.8333333333333333
    """
    tp, fp, more_tp, _ = _cumulative_counts(scores, positive, valid)
    return (more_tp * tp / (tp + fp).clamp_min(1)).sum(1) / tp[:, -1]


def auroc(scores: Tensor, positive: Tensor, valid: Tensor | None = None) -> Tensor:
    """Area under the ROC curve: probability that a positive entry scores above a negative one; ties count one half.

    Arguments as for `average_precision`; NaN where there is no positive or no negative entry.

    Example:
        >>> auroc(torch.tensor([[0.1, 0.4, 0.35, 0.8]]), torch.tensor([[0, 0, 1, 1]]).bool()).item()
        0.75
    """
    tp, fp, more_tp, more_fp = _cumulative_counts(scores, positive, valid)
    return (more_fp * (tp - more_tp / 2)).sum(1) / (tp[:, -1] * fp[:, -1])


def score_segmentation(maps: Tensor, masks: Tensor, ignore: Sequence[int] = IGNORE) -> dict[str, Tensor]:
    """Compute the counts and ranking scores of each image, foreground against background.

    Args:
        maps: One map per image, shape (B, height, width), on any scale.
        masks: Labels, shape (B, height, width): 0 for the background, every other label is foreground.
        ignore: Labels of pixels that do not count.

    Returns:
        For each image: number of ``foreground`` and ``background`` pixels; ``true`` and ``false`` positives, shape
        (B, 11), with the map's mean as threshold and then with each of ``THRESHOLDS``; ``ap`` of both classes jointly,
        ``ap_foreground`` and ``auroc``; ``flat``, whether the map is constant or not finite.

    Example:
        >>> found = score_segmentation(torch.tensor([[[0.0, 0.2, 0.6, 1.0]]]), torch.tensor([[[0, 0, 1, 1]]]))
        >>> found["true"].tolist(), found["false"].tolist()
        ([[2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]], [[0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]])
    """
    r, constant = scale_to_unit(maps)
    masks = _check_masks(masks, r)
    valid = ~torch.isin(masks.long(), torch.tensor(list(ignore), device=masks.device))
    inside, outside = (masks != 0) & valid, (masks == 0) & valid
    over_mean = r > r.double().mean((1, 2), keepdim=True)  # the mean includes ignored pixels
    level = torch.bucketize(r, _thresholds(r))  # number of thresholds the pixel exceeds
    kind = torch.where(valid, inside.long(), 2)
    image = torch.arange(len(r), device=r.device)[:, None, None]
    steps = len(THRESHOLDS) + 1
    counts = torch.bincount(((image * 3 + kind) * steps + level).flatten(), minlength=len(r) * 3 * steps)
    above = counts.reshape(len(r), 3, steps).flip(2).cumsum(2).flip(2)[:, :, 1:]
    # Of a constant map both scores are zero, not 1 − r and r, as in the reference code.
    both = torch.where(constant[:, None, None, None], 0.0, torch.stack([1 - r, r], 1))
    return {
        "foreground": inside.sum((1, 2)),
        "background": outside.sum((1, 2)),
        "true": torch.cat([(over_mean & inside).sum((1, 2))[:, None], above[:, 1]], 1),
        "false": torch.cat([(over_mean & outside).sum((1, 2))[:, None], above[:, 0]], 1),
        "ap": average_precision(both, torch.stack([outside, inside], 1), torch.stack([valid] * 2, 1)).nan_to_num(0.0),
        "ap_foreground": average_precision(r, inside, valid),
        "auroc": auroc(r, inside, valid),
        "flat": constant,
    }


def label_pixels(maps: Tensor, classes: Tensor, background: float) -> Tensor:
    """Combine class maps into one label map: the class with the highest relevance, if it exceeds the background's.

    Args:
        maps: A map for each class of the image, shape (B, K, height, width); each is scaled to [0, 1] first.
        classes: Their labels, shape (B, K), at least 1; images with fewer classes are padded with -1.
        background: Relevance of the background, which wins ties. Ties between classes go to the lower label.

    Returns:
        Labels, shape (B, height, width), 0 for the background.

    Example:
        >>> label_pixels(torch.tensor([[[[0.0, 1.0, 0.4]], [[1.0, 0.0, 0.2]]]]), torch.tensor([[3, 7]]), 0.4)
        tensor([[[7, 3, 0]]])
    """
    highest, label = _most_relevant_class(maps, classes)
    return torch.where(highest > torch.tensor(background, dtype=highest.dtype, device=highest.device), label, 0)


def count_confusions(
    maps: Tensor, classes: Tensor, masks: Tensor, count: int = 21, ignore: Sequence[int] = IGNORE
) -> dict[str, Tensor]:
    """Count pixels by true and predicted label, with each of ``THRESHOLDS`` as the background's relevance.

    Args:
        maps: As for `label_pixels`.
        classes: As for `label_pixels`.
        masks: Labels, shape (B, height, width), 0 for the background.
        count: Number of labels, including the background.
        ignore: Labels of pixels that do not count.

    Returns:
        For each image: ``confusion``, the matrix [threshold, true, predicted], shape (B, 10·count·count); ``flat``, the
        number of its maps that are constant or not finite.
    """
    highest, label = _most_relevant_class(maps, classes)
    truth = _check_masks(masks, highest).long()
    valid = ~torch.isin(truth, torch.tensor(list(ignore), device=truth.device))
    if bool((valid & ((truth < 0) | (truth >= count))).any()) or int(classes.max()) >= count:
        raise InputError(f"labels must be 0 to {count - 1} or in ignore={tuple(ignore)}: pass count= or ignore=")
    steps = len(THRESHOLDS) + 1
    image = torch.arange(len(highest), device=highest.device)[:, None, None].expand_as(truth)
    # One pass over the pixels: a class is predicted at the thresholds that its relevance exceeds.
    index = ((image * steps + torch.bucketize(highest, _thresholds(highest))) * count + truth) * count + label
    counts = torch.bincount(index[valid], minlength=len(highest) * steps * count * count)
    counts = counts.reshape(-1, steps, count, count)
    confusion = counts.flip(1).cumsum(1).flip(1)[:, 1:].clone()
    confusion[..., 0] = counts.sum((1, 3))[:, None] - confusion[..., 1:].sum(3)
    constant = (is_constant(maps)[..., 0, 0] & (classes > 0).to(maps.device)).sum(1)
    return {"confusion": confusion.flatten(1), "flat": constant}


class RegionCounts(NamedTuple):
    """Pixel counts of N images at T thresholds for C classes.

    Attributes:
        intersection: Intersection of true and predicted region, shape (N, T, C).
        union: Union of true and predicted region, shape (N, T, C).
        labelled: Number of pixels that count, shape (N,).
    """

    intersection: Array
    union: Array
    labelled: Array

    def accuracy(self) -> Array:
        """Pixel accuracy over all images, shape (T,)."""
        return np.asarray(self.intersection.sum((0, 2)) / (self.labelled.sum() + np.spacing(1.0)))

    def miou(self) -> Array:
        """Mean over classes of the IoU, with intersection and union summed over all images, shape (T,).

        A class that is in no mask and is never predicted has no IoU and is excluded.
        """
        return mean_ratio(np.concatenate([self.intersection.sum(0), self.union.sum(0)], 1))

    def of(self, images: NDArray[Any]) -> RegionCounts:
        """Counts of some of the images."""
        return RegionCounts(self.intersection[images], self.union[images], self.labelled[images])

    def at(self, threshold: int) -> RegionCounts:
        """Counts at one threshold, given by its index."""
        one = slice(threshold, threshold + 1)
        return RegionCounts(self.intersection[:, one], self.union[:, one], self.labelled)


@dataclass
class SegmentationScores(SampleScores):
    """Accumulates the results of `score_segmentation`.

    Example:
        >>> maps, masks = torch.tensor([[[0.0, 0.2, 0.6, 1.0]]]), torch.tensor([[[0, 0, 1, 1]]])
        >>> scores = SegmentationScores()
        >>> scores.add(["a"], score_segmentation(maps, masks))
        >>> {name: scores.summary()[name] for name in ("pixel_accuracy", "miou", "map", "best_threshold")}
        {'pixel_accuracy': 1.0, 'miou': 1.0, 'map': 1.0, 'best_threshold': 0.2}
    """

    def regions(self) -> RegionCounts:
        """Counts for the mean as threshold, then for each of ``THRESHOLDS``; classes background and foreground."""
        true, false = self.column("true"), self.column("false")
        n1, n0 = self.column("foreground")[:, None], self.column("background")[:, None]
        return RegionCounts(np.stack([n0 - false, true], 2), np.stack([n0 + n1 - true, n1 + false], 2), (n0 + n1)[:, 0])

    def sweep(self) -> RegionCounts:
        """Counts for each of ``THRESHOLDS``, without the mean."""
        counts = self.regions()
        return RegionCounts(counts.intersection[:, 1:], counts.union[:, 1:], counts.labelled)

    def ratios(self, threshold: float | None = None) -> Array:
        """Intersections and unions, from which `mean_ratio` computes the mIoU, shape (images, 4); None is the mean."""
        return _ratios(self.regions().at(0 if threshold is None else 1 + THRESHOLDS.index(threshold)))

    def summary(self) -> dict[str, Any]:
        """Scores with the mean as threshold, the best threshold and the two-fold one; mAP, foreground AP and AUROC."""
        everything = self.regions()
        return {
            "images": len(self),
            "flat": int(self.column("flat").sum()),
            "pixel_accuracy": float(everything.accuracy()[0]),
            "miou": float(everything.miou()[0]),
            "map": self.mean("ap"),
            **_search_threshold(self.sweep(), self.ids),
            "ap_foreground": self.mean("ap_foreground"),
            "auroc": self.mean("auroc"),
        }


@dataclass
class MultiClassSegmentationScores(SampleScores):
    """Accumulates the results of `count_confusions`."""

    def confusion(self) -> NDArray[np.int64]:
        """Pixel counts of all images by threshold, true label and predicted label, shape (10, C, C)."""
        return np.asarray(self._each().sum(0), dtype=np.int64)

    def regions(self) -> RegionCounts:
        """Counts for each of ``THRESHOLDS`` and each class, including the background."""
        each = self._each()
        intersection = np.diagonal(each, axis1=2, axis2=3)
        return RegionCounts(intersection, each.sum(2) + each.sum(3) - intersection, each[:, 0].sum((1, 2)))

    def sweep(self) -> RegionCounts:
        """Counts for each of ``THRESHOLDS``."""
        return self.regions()

    def ratios(self, threshold: float) -> Array:
        """Intersections and unions, from which `mean_ratio` computes the mIoU, shape (images, 2·C)."""
        return _ratios(self.regions().at(THRESHOLDS.index(threshold)))

    def summary(self) -> dict[str, Any]:
        """Pixel accuracy and mIoU at every threshold, at the best threshold and at the two-fold one."""
        sweep = self.regions()
        return {
            "images": len(self),
            "flat": int(self.column("flat").sum()),
            "thresholds": list(THRESHOLDS),
            "pixel_accuracy": sweep.accuracy().tolist(),
            "miou": sweep.miou().tolist(),
            **_search_threshold(sweep, self.ids),
        }

    def _each(self) -> Array:
        entries = self.column("confusion")
        count = round((entries.shape[1] / len(THRESHOLDS)) ** 0.5)
        return entries.reshape(-1, len(THRESHOLDS), count, count)


def fold_of(image: str) -> int:
    """Assign an image to one of two folds, 0 or 1, by a hash of its id.

    Example:
        >>> [fold_of(str(i)) for i in range(8)]
        [1, 1, 0, 0, 1, 1, 1, 1]
    """
    return hashlib.sha256(image.encode()).digest()[0] & 1


def best_threshold(counts: RegionCounts) -> int:
    """Index of the lowest threshold with the highest mIoU."""
    return int(np.argmax(counts.miou()))


def best_accuracy_threshold(counts: RegionCounts) -> int:
    """Index of the lowest threshold with the highest pixel accuracy."""
    return int(np.argmax(counts.accuracy()))


def two_fold(counts: RegionCounts, ids: Sequence[str]) -> tuple[RegionCounts, list[int]] | None:
    """Take each fold of the images at the threshold that is best on the other fold; see `fold_of`.

    Returns:
        Counts of all images, each at the threshold of its fold, and the indices of the two thresholds; None if a fold
        is empty.
    """
    fold = np.array([fold_of(i) for i in ids])
    folds = [np.flatnonzero(fold == k) for k in (0, 1)]
    if min(map(len, folds)) == 0:  # no images to choose the threshold on
        return None
    chosen = [best_threshold(counts.of(other)) for other in reversed(folds)]
    image, at = np.arange(len(ids)), np.array(chosen)[fold]
    intersection, union = counts.intersection[image, at], counts.union[image, at]
    return RegionCounts(intersection[:, None], union[:, None], counts.labelled), chosen


def _search_threshold(sweep: RegionCounts, ids: Sequence[str]) -> dict[str, Any]:
    """Scores at the lowest threshold that maximises mIoU: chosen on all images, and chosen on the other fold.

    ``own_best_pixel_accuracy`` is at the threshold that maximises the pixel accuracy itself: a search for each score.
    """
    best, own_best = best_threshold(sweep), best_accuracy_threshold(sweep)
    at_best = sweep.at(best)
    scores: dict[str, Any] = {
        "best_threshold": THRESHOLDS[best],
        "best_pixel_accuracy": float(at_best.accuracy()[0]),
        "best_miou": float(at_best.miou()[0]),
        "own_best_threshold": THRESHOLDS[own_best],
        "own_best_pixel_accuracy": float(sweep.at(own_best).accuracy()[0]),
    }
    folds = two_fold(sweep, ids)
    if folds is None:
        return scores | {"two_fold_thresholds": None, "two_fold_pixel_accuracy": np.nan, "two_fold_miou": np.nan}
    joined, chosen = folds
    return scores | {
        "two_fold_thresholds": [THRESHOLDS[index] for index in chosen],
        "two_fold_pixel_accuracy": float(joined.accuracy()[0]),
        "two_fold_miou": float(joined.miou()[0]),
    }


def _ratios(at: RegionCounts) -> Array:
    return np.concatenate([at.intersection[:, 0], at.union[:, 0]], 1)


def _cumulative_counts(scores: Tensor, positive: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cumulative true and false positives from the highest score down, and their increments at each threshold."""
    values, order = scores.flatten(1).sort(descending=True)
    counts = positive.new_ones(positive.shape) if valid is None else valid
    last = torch.ones_like(values, dtype=torch.bool)
    last[:, :-1] = values[:, :-1] != values[:, 1:]  # of entries with equal scores the last one is the threshold
    totals = []
    for kind in (positive & counts, ~positive & counts):
        total = kind.flatten(1).gather(1, order).cumsum(1)
        before = torch.where(last, total, 0).cummax(1).values.roll(1, 1)
        before[:, 0] = 0
        totals.append((total.double(), torch.where(last, total - before, 0).double()))
    (tp, more_tp), (fp, more_fp) = totals
    return tp, fp, more_tp, more_fp


def _most_relevant_class(maps: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Highest relevance of any class at each pixel, and that class; both of shape (B, height, width)."""
    if maps.dim() != 4 or maps.shape[:2] != classes.shape:
        raise InputError(
            f"maps (B, K, height, width) and classes (B, K) differ: {tuple(maps.shape)} and {tuple(classes.shape)}"
        )
    r = scale_to_unit(maps.flatten(0, 1))[0].reshape(maps.shape)
    named = classes[:, :, None, None].to(maps.device)
    r = torch.where(named > 0, r, -1.0)
    best = r.amax(1)
    return best, torch.where(r == best[:, None], named, torch.iinfo(named.dtype).max).amin(1)


def _thresholds(like: Tensor) -> Tensor:
    return torch.tensor(
        THRESHOLDS, dtype=like.dtype, device=like.device
    )  # same dtype as the map: 0.1 must not exceed 0.1


def _check_masks(masks: Tensor, maps: Tensor) -> Tensor:
    if maps.shape != masks.shape:
        raise InputError(f"maps of shape {tuple(maps.shape)} and masks of shape {tuple(masks.shape)} differ in size")
    return masks.to(maps.device)
