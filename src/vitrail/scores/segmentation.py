"""Segmentation: a map, cut at a threshold, against the object's mask.

Two protocols: object against ground, one map an image (`segmentation`, collected in `Segmentation`), and several
classes, one map for each class of the image (`confusions`, collected in `MultiClass`). Maps and masks have one size;
at which size to compare is the caller's choice.
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
from vitrail.postprocess import is_constant, normalise
from vitrail.scores.statistics import Array, Tally, mean_ratio

#: Thresholds of the sweep; a pixel is foreground where its relevance is greater.
THRESHOLDS = tuple(i / 10 for i in range(10))
#: Labels of pixels that do not count.
IGNORE = (255, -1)


def settle(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Maps in single or double precision, zeros where one is constant or not finite, and a mask of those.

    The mask has the maps' axes, height and width being 1.
    """
    wide = maps.detach() if maps.dtype in (torch.float32, torch.float64) else maps.detach().float()
    dull = is_constant(wide)
    return torch.where(dull, 0.0, wide), dull


def unit(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Each map from 0 to 1, zeros where it is constant or not finite, and which ones those are.

    Args:
        maps: Shape (B, height, width).

    Returns:
        Maps, shape (B, height, width), and a mask, shape (B,).

    Example:
        >>> unit(torch.tensor([[[1.0, 3.0]], [[2.0, 2.0]]]))
        (tensor([[[0., 1.]], [[0., 0.]]]), tensor([False, True]))
    """
    if maps.dim() != 3:
        raise InputError(
            f"maps of shape {tuple(maps.shape)} are not (images, height, width): see vitrail.integrations.as_maps"
        )
    settled, dull = settle(maps)
    return normalise(settled), dull[:, 0, 0]


def average_precision(scores: Tensor, positive: Tensor, valid: Tensor | None = None) -> Tensor:
    """Step-wise area under precision over recall, Σ (Rᵢ − Rᵢ₋₁)·Pᵢ, equal scores being one threshold.

    Args:
        scores: Finite scores, shape (B, …).
        positive: Which entries are to be found, the same shape.
        valid: Which entries count, the same shape; all of them by default.

    Returns:
        Shape (B,), float64; NaN where nothing is to be found.

    Example:
        >>> average_precision(torch.tensor([[0.1, 0.4, 0.35, 0.8]]), torch.tensor([[0, 0, 1, 1]]).bool()).item()
        0.8333333333333333
    """
    tp, fp, more_tp, _ = _steps(scores, positive, valid)
    return (more_tp * tp / (tp + fp).clamp_min(1)).sum(1) / tp[:, -1]


def auroc(scores: Tensor, positive: Tensor, valid: Tensor | None = None) -> Tensor:
    """Chance that a pixel inside has a higher score than one outside, ties counting one half.

    Arguments as for `average_precision`; NaN where one of the two kinds is missing.

    Example:
        >>> auroc(torch.tensor([[0.1, 0.4, 0.35, 0.8]]), torch.tensor([[0, 0, 1, 1]]).bool()).item()
        0.75
    """
    tp, fp, more_tp, more_fp = _steps(scores, positive, valid)
    return (more_fp * (tp - more_tp / 2)).sum(1) / (tp[:, -1] * fp[:, -1])


def segmentation(maps: Tensor, masks: Tensor, ignore: Sequence[int] = IGNORE) -> dict[str, Tensor]:
    """What an image adds to the scores of object against ground.

    Args:
        maps: One map an image, shape (B, height, width), on any scale.
        masks: Labels, shape (B, height, width): 0 the ground, anything else the object.
        ignore: Labels of pixels that do not count.

    Returns:
        For each image: pixels of ``foreground`` and ``background``; ``true`` and ``false``, shape (B, 11), pixels
        called object that are and that are not, with the map's mean as threshold and then with each of the ten;
        ``ap`` of both classes at once, ``ap_foreground`` and ``auroc``; whether the map is ``flat``.

    Example:
        >>> found = segmentation(torch.tensor([[[0.0, 0.2, 0.6, 1.0]]]), torch.tensor([[[0, 0, 1, 1]]]))
        >>> found["true"].tolist(), found["false"].tolist()
        ([[2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1]], [[0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]])
    """
    r, dull = unit(maps)
    masks = _fit(masks, r)
    valid = ~torch.isin(masks.long(), torch.tensor(list(ignore), device=masks.device))
    inside, outside = (masks != 0) & valid, (masks == 0) & valid
    over_mean = r > r.double().mean((1, 2), keepdim=True)  # the map's own threshold: ignored pixels have a say in it
    level = torch.bucketize(r, _thresholds(r))  # how many of the thresholds the pixel exceeds
    kind = torch.where(valid, inside.long(), 2)
    image = torch.arange(len(r), device=r.device)[:, None, None]
    steps = len(THRESHOLDS) + 1
    counts = torch.bincount(((image * 3 + kind) * steps + level).flatten(), minlength=len(r) * 3 * steps)
    above = counts.reshape(len(r), 3, steps).flip(2).cumsum(2).flip(2)[:, :, 1:]
    # Without contrast neither class has a score: both halves are zero, not one of them one, as in the reference.
    both = torch.where(dull[:, None, None, None], 0.0, torch.stack([1 - r, r], 1))
    return {
        "foreground": inside.sum((1, 2)),
        "background": outside.sum((1, 2)),
        "true": torch.cat([(over_mean & inside).sum((1, 2))[:, None], above[:, 1]], 1),
        "false": torch.cat([(over_mean & outside).sum((1, 2))[:, None], above[:, 0]], 1),
        "ap": average_precision(both, torch.stack([outside, inside], 1), torch.stack([valid] * 2, 1)).nan_to_num(0.0),
        "ap_foreground": average_precision(r, inside, valid),
        "auroc": auroc(r, inside, valid),
        "flat": dull,
    }


def label(maps: Tensor, classes: Tensor, background: float) -> Tensor:
    """Several class maps as one map of labels: the class with the highest relevance, if that exceeds the background's.

    Args:
        maps: A map for each class of the image, shape (B, K, height, width); each is scaled to [0, 1] first.
        classes: Their labels, shape (B, K), 1 or more; images with fewer classes are filled up with -1.
        background: Relevance of the ground; ties go to it. Ties between classes go to the lower label.

    Returns:
        Labels, shape (B, height, width), 0 for the ground.

    Example:
        >>> label(torch.tensor([[[[0.0, 1.0, 0.4]], [[1.0, 0.0, 0.2]]]]), torch.tensor([[3, 7]]), 0.4)
        tensor([[[7, 3, 0]]])
    """
    best, winner = _winner(maps, classes)
    return torch.where(best > torch.tensor(background, dtype=best.dtype, device=best.device), winner, 0)


def confusions(
    maps: Tensor, classes: Tensor, masks: Tensor, count: int = 21, ignore: Sequence[int] = IGNORE
) -> dict[str, Tensor]:
    """Pixels by true and found label, for each of the ten thresholds as background.

    Args:
        maps: As for `label`.
        classes: As for `label`.
        masks: Labels, shape (B, height, width), 0 the ground.
        count: Number of labels, the ground included.
        ignore: Labels of pixels that do not count.

    Returns:
        ``confusion``: for each image the entries [threshold, true, found], shape (B, 10·count·count); ``flat``: how
        many of its maps say nothing.
    """
    best, winner = _winner(maps, classes)
    truth = _fit(masks, best).long()
    valid = ~torch.isin(truth, torch.tensor(list(ignore), device=truth.device))
    if bool((valid & ((truth < 0) | (truth >= count))).any()) or int(classes.max()) >= count:
        raise InputError(f"a label is not among the {count}, 0 to {count - 1}, nor one to ignore")
    steps = len(THRESHOLDS) + 1
    image = torch.arange(len(best), device=best.device)[:, None, None].expand_as(truth)
    # One pass over the pixels: how many thresholds the best class of a pixel exceeds says where it wins.
    where = ((image * steps + torch.bucketize(best, _thresholds(best))) * count + truth) * count + winner
    seen = torch.bincount(where[valid], minlength=len(best) * steps * count * count).reshape(-1, steps, count, count)
    won = seen.flip(1).cumsum(1).flip(1)[:, 1:].clone()
    won[..., 0] = seen.sum((1, 3))[:, None] - won[..., 1:].sum(3)
    dull = (is_constant(maps)[..., 0, 0] & (classes > 0).to(maps.device)).sum(1)
    return {"confusion": won.flatten(1), "flat": dull}


class Regions(NamedTuple):
    """Counts of pixels, for N images, T thresholds and C classes.

    Attributes:
        common: True and found, shape (N, T, C).
        union: True or found, shape (N, T, C).
        labelled: Pixels that count, shape (N,).
    """

    common: Array
    union: Array
    labelled: Array

    def accuracy(self) -> Array:
        """Share of pixels of the whole set that are labelled rightly, shape (T,)."""
        return np.asarray(self.common.sum((0, 2)) / (self.labelled.sum() + np.spacing(1.0)))

    def miou(self) -> Array:
        """Mean over classes of intersection over union, both summed over the whole set, shape (T,).

        A class that is in no mask and is never found has no IoU and is left out.
        """
        return mean_ratio(np.concatenate([self.common.sum(0), self.union.sum(0)], 1))

    def of(self, images: NDArray[Any]) -> Regions:
        """The counts of some of the images."""
        return Regions(self.common[images], self.union[images], self.labelled[images])

    def at(self, threshold: int) -> Regions:
        """The counts at one threshold."""
        one = slice(threshold, threshold + 1)
        return Regions(self.common[:, one], self.union[:, one], self.labelled)


@dataclass
class Segmentation(Tally):
    """Collects what `segmentation` returns.

    Example:
        >>> tally = Segmentation()
        >>> tally.add(["a"], segmentation(torch.tensor([[[0.0, 0.2, 0.6, 1.0]]]), torch.tensor([[[0, 0, 1, 1]]])))
        >>> {name: tally.summary()[name] for name in ("pixel_accuracy", "miou", "map", "best_threshold")}
        {'pixel_accuracy': 1.0, 'miou': 1.0, 'map': 1.0, 'best_threshold': 0.2}
    """

    def regions(self) -> Regions:
        """Counts for the mean as threshold, then for each of the ten; classes ground, object."""
        true, false = self.column("true"), self.column("false")
        n1, n0 = self.column("foreground")[:, None], self.column("background")[:, None]
        return Regions(np.stack([n0 - false, true], 2), np.stack([n0 + n1 - true, n1 + false], 2), (n0 + n1)[:, 0])

    def ratios(self, threshold: float | None = None) -> Array:
        """Columns for `statistics.mean_ratio`, which makes the mIoU of them, shape (images, 4); None is the mean."""
        return _ratios(self.regions().at(0 if threshold is None else 1 + THRESHOLDS.index(threshold)))

    def summary(self) -> dict[str, Any]:
        """The mean as threshold, the best of ten, the best of ten on the other half; mAP; scores of the ranking."""
        everything = self.regions()
        sweep = Regions(everything.common[:, 1:], everything.union[:, 1:], everything.labelled)
        return {
            "images": len(self),
            "flat": int(self.column("flat").sum()),
            "pixel_accuracy": float(everything.accuracy()[0]),
            "miou": float(everything.miou()[0]),
            "map": self.mean("ap"),
            **_searched(sweep, self.ids),
            "ap_foreground": self.mean("ap_foreground"),
            "auroc": self.mean("auroc"),
        }


@dataclass
class MultiClass(Tally):
    """Collects what `confusions` returns; see there for an image's entries."""

    def confusion(self) -> NDArray[np.int64]:
        """Pixels of the whole set, by threshold, true label and found label, shape (10, C, C)."""
        return np.asarray(self._each().sum(0), dtype=np.int64)

    def regions(self) -> Regions:
        """Counts for each of the ten thresholds and each class, the ground included."""
        each = self._each()
        common = np.diagonal(each, axis1=2, axis2=3)
        return Regions(common, each.sum(2) + each.sum(3) - common, each[:, 0].sum((1, 2)))

    def ratios(self, threshold: float) -> Array:
        """Columns for `statistics.mean_ratio`, which makes the mIoU of them, shape (images, 2·C)."""
        return _ratios(self.regions().at(THRESHOLDS.index(threshold)))

    def summary(self) -> dict[str, Any]:
        """Pixel accuracy and mIoU at every threshold, at the best one, and at the one best on the other half."""
        sweep = self.regions()
        return {
            "images": len(self),
            "flat": int(self.column("flat").sum()),
            "thresholds": list(THRESHOLDS),
            "pixel_accuracy": sweep.accuracy().tolist(),
            "miou": sweep.miou().tolist(),
            **_searched(sweep, self.ids),
        }

    def _each(self) -> Array:
        entries = self.column("confusion")
        count = round((entries.shape[1] / len(THRESHOLDS)) ** 0.5)
        return entries.reshape(-1, len(THRESHOLDS), count, count)


def half(image: str) -> int:
    """Which half of a set an image belongs to, 0 or 1, by its id alone.

    Example:
        >>> [half(str(i)) for i in range(8)]
        [1, 1, 0, 0, 1, 1, 1, 1]
    """
    return hashlib.sha256(image.encode()).digest()[0] & 1


def _searched(sweep: Regions, ids: Sequence[str]) -> dict[str, Any]:
    """One threshold for both scores, the lowest that maximises mIoU: on the set itself, and on the other half."""
    best = int(np.argmax(sweep.miou()))
    own = sweep.at(best)
    found: dict[str, Any] = {
        "best_threshold": THRESHOLDS[best],
        "best_pixel_accuracy": float(own.accuracy()[0]),
        "best_miou": float(own.miou()[0]),
    }
    side = np.array([half(i) for i in ids])
    halves = [np.flatnonzero(side == k) for k in (0, 1)]
    if min(map(len, halves)) == 0:  # nothing to choose on
        return found | {"two_fold_thresholds": None, "two_fold_pixel_accuracy": np.nan, "two_fold_miou": np.nan}
    picks = [int(np.argmax(sweep.of(other).miou())) for other in reversed(halves)]
    parts = [sweep.of(images).at(pick) for images, pick in zip(halves, picks, strict=True)]
    joined = Regions(*(np.concatenate(counts) for counts in zip(*parts, strict=True)))
    return found | {
        "two_fold_thresholds": [THRESHOLDS[pick] for pick in picks],
        "two_fold_pixel_accuracy": float(joined.accuracy()[0]),
        "two_fold_miou": float(joined.miou()[0]),
    }


def _ratios(at: Regions) -> Array:
    return np.concatenate([at.common[:, 0], at.union[:, 0]], 1)


def _steps(scores: Tensor, positive: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Positives and negatives found so far, from the highest score down, and how many more at each new score."""
    values, order = scores.flatten(1).sort(descending=True)
    counts = positive.new_ones(positive.shape) if valid is None else valid
    last = torch.ones_like(values, dtype=torch.bool)
    last[:, :-1] = values[:, :-1] != values[:, 1:]  # of entries with one score only the last one is a threshold
    found = []
    for kind in (positive & counts, ~positive & counts):
        total = kind.flatten(1).gather(1, order).cumsum(1)
        before = torch.where(last, total, 0).cummax(1).values.roll(1, 1)
        before[:, 0] = 0
        found.append((total.double(), torch.where(last, total - before, 0).double()))
    (tp, more_tp), (fp, more_fp) = found
    return tp, fp, more_tp, more_fp


def _winner(maps: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """The highest relevance of any class at each pixel, and that class; both of shape (B, height, width)."""
    if maps.dim() != 4 or maps.shape[:2] != classes.shape:
        raise InputError(f"maps of shape {tuple(maps.shape)} do not fit classes of shape {tuple(classes.shape)}")
    r = unit(maps.flatten(0, 1))[0].reshape(maps.shape)
    named = classes[:, :, None, None].to(maps.device)
    r = torch.where(named > 0, r, -1.0)
    best = r.amax(1)
    return best, torch.where(r == best[:, None], named, torch.iinfo(named.dtype).max).amin(1)


def _thresholds(like: Tensor) -> Tensor:
    return torch.tensor(THRESHOLDS, dtype=like.dtype, device=like.device)  # one type: 0.1 must not exceed 0.1


def _fit(masks: Tensor, maps: Tensor) -> Tensor:
    if maps.shape != masks.shape:
        raise InputError(f"maps of shape {tuple(maps.shape)} and masks of shape {tuple(masks.shape)} differ in size")
    return masks.to(maps.device)
