"""Weakly supervised localisation against slow computations: flood fill, and boxes pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.scores.score_helpers import image_ids
from vitrail.errors import InputError
from vitrail.scores.segmentation import fold_of
from vitrail.scores.wsol import BOX_THRESHOLDS, WsolScores, box_iou, map_boxes, score_wsol


def slow_box(mask):
    """Box of the largest component by flood fill over the eight neighbours; the first in raster order among equals."""
    height, width = len(mask), len(mask[0])
    seen, best = set(), []
    for y in range(height):
        for x in range(width):
            if not mask[y][x] or (y, x) in seen:
                continue
            component, stack = [], [(y, x)]
            seen.add((y, x))
            while stack:
                a, b = stack.pop()
                component.append((a, b))
                for c in range(max(a - 1, 0), min(a + 2, height)):
                    for d in range(max(b - 1, 0), min(b + 2, width)):
                        if mask[c][d] and (c, d) not in seen:
                            seen.add((c, d))
                            stack.append((c, d))
            best = component if len(component) > len(best) else best
    if not best:
        return [0, 0, 0, 0]
    ys, xs = zip(*best, strict=True)
    return [min(xs), min(ys), max(xs) + 1, max(ys) + 1]


def slow_iou(a, b):
    """IoU of two boxes with whole corners, by counting pixels."""
    one, two = ({(y, x) for y in range(c[1], c[3]) for x in range(c[0], c[2])} for c in (a, b))
    return len(one & two) / len(one | two) if one | two else 0.0


def six_maps():
    g = torch.Generator().manual_seed(1)
    maps = torch.rand(6, 17, 23, generator=g, dtype=torch.float64) * 3 - 1
    maps[1:3] = torch.nn.functional.avg_pool2d(maps[1:3], 5, 1, 2)
    maps[3] = (maps[3] > 1).double()  # two values only
    maps[4] = 0.5  # constant
    maps[5, 0, 0] = torch.nan
    return maps


def test_boxes_are_those_of_the_largest_component():
    maps = six_maps()
    boxes = map_boxes(maps)
    assert boxes.shape == (6, len(BOX_THRESHOLDS), 4)
    for i in range(6):
        finite = bool(torch.isfinite(maps[i]).all()) and maps[i].min() < maps[i].max()
        unit = (maps[i] - maps[i].min()) / (maps[i].max() - maps[i].min()) if finite else torch.zeros_like(maps[i])
        for j, threshold in enumerate(BOX_THRESHOLDS):
            assert boxes[i, j].tolist() == slow_box((unit >= threshold).tolist()), (i, threshold)
    assert boxes[4, 0].tolist() == [0, 0, 23, 17], "at threshold 0 every pixel counts"
    assert boxes[4:, 1:].abs().sum() == 0, "a constant or non-finite map has no box above 0"
    spiral = torch.zeros(1, 7, 7)  # one path that turns back on itself, and a lone pixel
    spiral[0, 0], spiral[0, :, 6], spiral[0, 6], spiral[0, 2:, 0], spiral[0, 2, :5] = 1, 1, 1, 1, 1
    spiral[0, 4, 3] = 1
    assert map_boxes(spiral, [0.5]).tolist() == [[[0, 0, 7, 7]]]


def test_iou_counts_pixels():
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 6, (12, 2, 2))
    boxes = np.concatenate([corners.min(1), corners.max(1)], 1)
    found = box_iou(boxes, boxes)
    expected = [[slow_iou(a, b) for b in boxes.tolist()] for a in boxes.tolist()]
    assert found == pytest.approx(np.array(expected))


def test_scores_follow_the_definition():
    maps, ids = six_maps(), image_ids(6)
    boxes = [[[2, 3, 20, 15]], [[0, 0, 5, 5], [4, 4, 23, 17]], [], [[0, 0, 23, 17]], [[0, 0, 23, 17]], [[1, 1, 9, 9]]]
    found = score_wsol(maps, boxes)
    at = map_boxes(maps).tolist()
    for i, own in enumerate(boxes):
        for j in range(len(BOX_THRESHOLDS)):
            if own:
                assert found["iou"][i, j].item() == pytest.approx(max(slow_iou(at[i][j], box) for box in own))
            else:
                assert found["iou"][i, j].isnan()
    scores = WsolScores()
    scores.add(ids, found | {"top1": torch.tensor([1.0, 0, 1, 1, 0, 0])})
    s = scores.summary()
    defined = [i for i in range(6) if boxes[i]]
    iou = {ids[i]: found["iou"][i].tolist() for i in defined}

    def accuracy(names, j, least=0.5):
        return sum(iou[name][j] >= least for name in names) / len(names)

    thresholds = range(len(BOX_THRESHOLDS))
    best = max(thresholds, key=lambda j: (accuracy(iou, j), -j))
    assert (s["images"], s["undefined"], s["flat"]) == (6, 1, 2)
    assert (s["max_box_acc"], s["best_threshold"]) == (accuracy(iou, best), BOX_THRESHOLDS[best])
    each = [max(accuracy(iou, j, least) for j in thresholds) for least in (0.3, 0.5, 0.7)]
    assert s["max_box_acc_v2"] == pytest.approx(sum(each) / 3)
    top1 = dict(zip(ids, (1, 0, 1, 1, 0, 0), strict=True))
    assert s["top1_loc"] == pytest.approx(sum(top1[n] * (iou[n][best] >= 0.5) for n in iou) / len(iou))
    correct = 0.0
    for name in iou:
        others = [other for other in iou if fold_of(other) != fold_of(name)]
        chosen = max(thresholds, key=lambda j: (accuracy(others, j), -j))
        correct += iou[name][chosen] >= 0.5
    assert {fold_of(name) for name in iou} == {0, 1}
    assert s["two_fold_box_acc"] == pytest.approx(correct / len(iou))


def test_images_without_boxes_have_no_score():
    scores = WsolScores()
    scores.add(["a"], score_wsol(torch.rand(1, 4, 4), [[]]))
    assert math.isnan(scores.summary()["max_box_acc"])
    assert "top1_loc" not in scores.summary()
    with pytest.raises(InputError, match="a list of boxes for each image"):
        score_wsol(torch.rand(2, 4, 4), [[]])
