"""Weakly supervised object localisation (WSOL): a box from the thresholded map, compared with the object's boxes.

The box of a map at a threshold is that of the largest connected component of its pixels. MaxBoxAcc is the share of
images whose box overlaps an annotated one enough (IoU ≥ 0.5), at the best threshold for all images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitrail.errors import InputError
from vitrail.scores.segmentation import fold_of, scale_to_unit
from vitrail.scores.statistics import Array, SampleScores

#: Thresholds of the sweep, on maps scaled to [0, 1].
BOX_THRESHOLDS = tuple(i / 20 for i in range(20))
#: Least IoU of a correct box: that of MaxBoxAcc first, then the others of MaxBoxAccV2.
BOX_IOUS = (0.5, 0.3, 0.7)

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


def map_boxes(maps: Tensor, thresholds: Sequence[float] = BOX_THRESHOLDS) -> Tensor:
    """Boxes of maps: at each threshold the box around the largest connected component.

    A pixel counts where its relevance, each map scaled to [0, 1], is at least the threshold. Pixels that touch at a
    corner are connected. Of components with the same number of pixels the first in raster order is taken.

    Args:
        maps: One map per image, shape (B, height, width), on any scale.
        thresholds: T thresholds.

    Returns:
        x0, y0, x1, y1 in pixels, ends exclusive, shape (B, T, 4), int64; zeros where no pixel counts, which is so for a
        constant map at every threshold above 0.

    Example:
        >>> relevance = torch.tensor([[[0.0, 0.9, 0.0, 0.6], [0.0, 1.0, 0.0, 0.0]]])
        >>> map_boxes(relevance, [0.0, 0.5, 0.95])
        tensor([[[0, 0, 4, 2], [1, 0, 2, 2], [1, 1, 2, 2]]])
    """
    unit, _ = scale_to_unit(maps)
    levels = torch.tensor(list(thresholds), dtype=unit.dtype, device=unit.device)[:, None, None]
    boxes = [_component_boxes((one >= levels).cpu().numpy()) for one in unit]
    return torch.from_numpy(np.stack(boxes)) if boxes else torch.zeros(0, len(levels), 4, dtype=torch.int64)


def box_iou(boxes: ArrayLike, others: ArrayLike) -> Array:
    """IoU of each box with each other one, shape (N, M); 0 for boxes without area.

    Args:
        boxes: x0, y0, x1, y1, ends exclusive, shape (N, 4).
        others: The same, shape (M, 4).

    Example:
        >>> box_iou([[0, 0, 2, 2]], [[1, 0, 3, 2], [0, 0, 2, 2], [5, 5, 6, 6]]).round(3).tolist()
        [[0.333, 1.0, 0.0]]
    """
    a, b = (np.asarray(rows, np.float64).reshape(-1, 4) for rows in (boxes, others))
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = (high - low).clip(0).prod(2)
    area_a, area_b = ((rows[:, 2:] - rows[:, :2]).clip(0).prod(1) for rows in (a, b))
    union = area_a[:, None] + area_b[None] - common
    return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=union > 0))


def score_wsol(
    maps: Tensor, boxes: Sequence[ArrayLike], thresholds: Sequence[float] = BOX_THRESHOLDS
) -> dict[str, Tensor]:
    """Compute the IoU of each map's box with the object's box at each threshold.

    Args:
        maps: One map per image, shape (B, height, width), on any scale. Maps that are constant or not finite count as
            zeros.
        boxes: For each image its boxes in pixels of the map, shape (n, 4), ends exclusive. Of several the one that
            overlaps most counts.
        thresholds: T thresholds.

    Returns:
        For each image: ``iou``, shape (B, T), NaN where it has no box; ``flat``, whether the map is constant or not
        finite.

    Example:
        >>> relevance = torch.tensor([[[0.0, 0.9, 0.0, 0.6], [0.0, 1.0, 0.0, 0.0]]])
        >>> score_wsol(relevance, [[[1, 0, 2, 2]]], [0.0, 0.5, 0.95])["iou"].tolist()
        [[0.25, 1.0, 0.5]]
    """
    if maps.dim() != 3 or len(boxes) != len(maps):
        raise InputError(
            "expected maps of shape (images, height, width) and a list of boxes for each image, got "
            f"{tuple(maps.shape)} and {len(boxes)} lists"
        )
    iou = np.full((len(maps), len(thresholds)), np.nan)
    for image, (predicted, rectangles) in enumerate(zip(map_boxes(maps, thresholds).numpy(), boxes, strict=True)):
        truth = np.asarray(rectangles, np.float64).reshape(-1, 4)
        if len(truth):
            iou[image] = box_iou(predicted, truth).max(1)
    return {"iou": torch.from_numpy(iou), "flat": scale_to_unit(maps)[1].cpu()}


@dataclass
class WsolScores(SampleScores):
    """Accumulates the results of `score_wsol`, with the default thresholds.

    A column ``top1``, if present, states whether the prediction is the label; "Top-1 Loc" is the share of
    images with both a correct prediction and a correct box.

    Example:
        >>> scores = WsolScores()
        >>> scores.add(["a", "b"], score_wsol(torch.eye(4).repeat(2, 1, 1), [[[0, 0, 4, 4]], [[0, 0, 1, 1]]]))
        >>> scores.summary()["max_box_acc"], scores.summary()["best_threshold"]
        (0.5, 0.0)
    """

    def correct(self, least_iou: float = BOX_IOUS[0]) -> Array:
        """Whether the box of each image with a box is correct at each threshold, shape (images, T)."""
        return (self._iou() >= least_iou).astype(np.float64)

    def located(self) -> list[str]:
        """Ids of the images that have a box, in the order of `correct`."""
        return [name for name, known in zip(self.ids, self._defined().tolist(), strict=True) if known]

    def at_best(self, least_iou: float = BOX_IOUS[0]) -> Array:
        """Whether each image's box is correct at the best threshold for all images, shape (images,)."""
        correct = self.correct(least_iou)
        return correct[:, best_box_threshold(correct)]

    def two_fold(self, least_iou: float = BOX_IOUS[0]) -> Array | None:
        """The same at the threshold that is best on the other half of the images; None if a half is empty."""
        correct = self.correct(least_iou)
        fold = np.array([fold_of(name) for name in self.located()], dtype=np.int64)
        if not len(fold) or len(set(fold.tolist())) < 2:
            return None
        chosen = np.array([best_box_threshold(correct[fold != k]) for k in (0, 1)])
        return np.asarray(correct[np.arange(len(fold)), chosen[fold]])

    def summary(self) -> dict[str, Any]:
        """MaxBoxAcc and its threshold, the two-fold accuracy, MaxBoxAccV2, and Top-1 Loc where it is known."""
        names = self.located()
        counts = {
            "images": len(self),
            "undefined": len(self) - len(names),
            "flat": int(self.column("flat").sum()),
        }
        if not names:
            return counts | dict.fromkeys(
                ("max_box_acc", "best_threshold", "two_fold_box_acc", "max_box_acc_v2"), np.nan
            )
        halves = self.two_fold()
        scores = counts | {
            "max_box_acc": float(self.at_best().mean()),
            "best_threshold": BOX_THRESHOLDS[best_box_threshold(self.correct())],
            "two_fold_box_acc": np.nan if halves is None else float(halves.mean()),
            "max_box_acc_v2": float(np.mean([self.at_best(least).mean() for least in BOX_IOUS])),
        }
        top1 = self.top1()
        return scores if top1 is None else scores | {"top1_loc": float((self.at_best() * top1).mean())}

    def top1(self) -> Array | None:
        """Whether the prediction of each image of `correct` is its label, shape (images,); None where it is unknown."""
        if "top1" not in self.columns:
            return None
        values = self.column("top1")[self._defined()]
        return None if np.isnan(values).any() else values

    def _defined(self) -> BoolArray:
        return np.asarray(~np.isnan(self.column("iou")).any(1), np.bool_)

    def _iou(self) -> Array:
        return np.asarray(self.column("iou")[self._defined()])


def best_box_threshold(correct: Array) -> int:
    """Index of the lowest threshold with the most correct boxes.

    Args:
        correct: See `WsolScores.correct`.
    """
    return int(np.argmax(correct.mean(0)))


def _component_boxes(masks: BoolArray) -> IntArray:
    """Box of the largest connected component of each mask, shape (T, height, width) to (T, 4).

    A component is found from runs of pixels in a row, which are fewer than pixels. Two runs of neighbouring rows are
    connected if they overlap or touch at a corner.
    """
    count, height, width = masks.shape
    edges = np.diff(np.pad(masks, ((0, 0), (0, 0), (1, 1))).astype(np.int8), axis=2)
    mask, y, start = np.nonzero(edges == 1)
    stop = np.nonzero(edges == -1)[2]
    line = mask * height + y
    first_key, last_key = line * (width + 2) + start, line * (width + 2) + stop
    low = np.searchsorted(last_key, first_key + width + 2, "left")
    high = np.searchsorted(first_key, last_key + width + 2, "right")
    touching = np.where(y < height - 1, (high - low).clip(0), 0)
    one = np.repeat(np.arange(len(line)), touching)
    other = np.arange(len(one)) - np.repeat(touching.cumsum() - touching, touching) + np.repeat(low, touching)
    component = _connect(len(line), one, other)
    size = np.bincount(component, stop - start, minlength=len(line))
    roots = np.flatnonzero(component == np.arange(len(line)))
    order = roots[np.lexsort((roots, -size[roots], mask[roots]))]
    filled, first = np.unique(mask[order], return_index=True)
    largest = np.full(count, -1)
    largest[filled] = order[first]
    chosen = component == largest[mask]
    boxes = np.zeros((count, 4), np.int64)
    boxes[filled, :2] = max(height, width)
    for column, values, extreme in (
        (0, start, np.minimum),
        (1, y, np.minimum),
        (2, stop, np.maximum),
        (3, y + 1, np.maximum),
    ):
        extreme.at(boxes[:, column], mask[chosen], values[chosen])
    return boxes


def _connect(count: int, one: IntArray, other: IntArray) -> IntArray:
    """Label each of a number of nodes by the lowest node it is connected with.

    Args:
        count: Number of nodes.
        one: First node of each edge.
        other: Second node of each edge.
    """
    label = np.arange(count)
    while True:
        low = np.minimum(label[one], label[other])
        lower = label.copy()
        for nodes in (one, other, label[one], label[other]):  # the nodes, and those they are labelled by
            np.minimum.at(lower, nodes, low)
        lower = lower[lower]
        if np.array_equal(lower, label):
            return label
        label = lower
