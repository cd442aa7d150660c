"""Segmentation, pointing and selectivity against slow computations from the formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from tests.scores.score_helpers import (
    CONSTANT,
    SIZE,
    image_ids,
    slow_auroc,
    slow_average_precision,
    slow_segmentation,
    slow_unit,
    ten_maps,
    ten_masks,
)
from vitrail.bench.papers import find_table
from vitrail.data import Scenes
from vitrail.data.annotation import read_annotation
from vitrail.errors import InputError, OptionError
from vitrail.scores.pointing import (
    BoxPointingScores,
    PointingScores,
    box_masks,
    pointing_game,
    relevance_rank_accuracy,
    score_box_pointing,
    score_pointing,
)
from vitrail.scores.segmentation import (
    THRESHOLDS,
    MultiClassSegmentationScores,
    SegmentationScores,
    auroc,
    average_precision,
    count_confusions,
    fold_of,
    label_pixels,
    score_segmentation,
)
from vitrail.scores.selectivity import score_selectivity
from vitrail.scores.statistics import mean_ratio


@pytest.mark.parametrize("ignored", [False, True])
def test_segmentation_follows_the_formulas(ignored):
    maps, masks, ids = ten_maps(), ten_masks(ignored=ignored), image_ids(10)
    scores = SegmentationScores()
    scores.add(ids, score_segmentation(maps, masks))
    s = scores.summary()
    assert (s["images"], s["flat"]) == (10, 4)
    assert (s["pixel_accuracy"], s["miou"]) == pytest.approx(slow_segmentation(maps, masks))
    sweep = [slow_segmentation(maps, masks, lambda _, t=t: t) for t in THRESHOLDS]
    regions = scores.regions()
    assert regions.accuracy()[1:].tolist() == pytest.approx([a for a, _ in sweep])
    assert regions.miou()[1:].tolist() == pytest.approx([m for _, m in sweep])
    best = max(range(10), key=lambda i: (sweep[i][1], -i))
    assert s["best_threshold"] == THRESHOLDS[best]
    assert (s["best_pixel_accuracy"], s["best_miou"]) == pytest.approx(sweep[best])
    own = max(range(10), key=lambda i: (sweep[i][0], -i))
    assert s["own_best_threshold"] == THRESHOLDS[own]
    assert s["own_best_pixel_accuracy"] == pytest.approx(sweep[own][0])
    assert own != best, "the two searches differ on these maps"


def test_two_fold_uses_the_threshold_of_the_other_fold():
    maps, masks, ids = ten_maps(3), ten_masks(4), image_ids(10)
    maps[:5] *= masks[:5].clamp(0, 1) + 0.3
    fold = [fold_of(i) for i in ids]
    assert set(fold) == {0, 1}

    def best_on(k):
        own = [i for i in range(10) if fold[i] == k]
        sweep = [slow_segmentation(maps[own], masks[own], lambda _, t=t: t)[1] for t in THRESHOLDS]
        return THRESHOLDS[int(np.argmax(sweep))]

    picks = [best_on(1), best_on(0)]
    scores = SegmentationScores()
    scores.add(ids, score_segmentation(maps, masks))
    s = scores.summary()
    assert s["two_fold_thresholds"] == picks
    expected = slow_segmentation(maps, masks, lambda i: picks[fold[i]])
    assert (s["two_fold_pixel_accuracy"], s["two_fold_miou"]) == pytest.approx(expected)
    alone = SegmentationScores()
    alone.add(ids[:1], score_segmentation(maps[:1], masks[:1]))
    assert alone.summary()["two_fold_thresholds"] is None
    assert math.isnan(alone.summary()["two_fold_miou"])


def test_average_precision_and_auroc_follow_the_formulas():
    maps, masks = ten_maps(), ten_masks()
    found = score_segmentation(maps, masks)
    assert found["flat"].tolist() == CONSTANT
    for i in range(10):
        ok = ~np.isin(masks[i].numpy(), (255, -1))
        m = masks[i].numpy()[ok] == 1
        r = ((maps[i] - maps[i].min()) / (maps[i].max() - maps[i].min())).numpy()[ok]
        r = np.zeros_like(r) if CONSTANT[i] else r
        both = np.zeros(2 * len(r)) if CONSTANT[i] else np.concatenate([1 - r, r])
        assert found["ap"][i].item() == pytest.approx(slow_average_precision(both, np.concatenate([~m, m])), abs=1e-12)
        assert found["ap_foreground"][i].item() == pytest.approx(slow_average_precision(r, m), abs=1e-12)
        assert found["auroc"][i].item() == pytest.approx(slow_auroc(r, m), abs=1e-12)
    assert found["ap"][6:].tolist() == [0.5] * 4  # a constant map scores one half
    assert found["auroc"][6:].tolist() == [0.5] * 4


def test_average_precision_and_auroc_equal_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    maps, masks = ten_maps(7, 40)[:6], ten_masks(8, 40, ignored=False)[:6]
    found = score_segmentation(maps, masks)
    for i in range(6):
        r = ((maps[i] - maps[i].min()) / (maps[i].max() - maps[i].min())).flatten().numpy()
        m = masks[i].flatten().numpy()
        both = metrics.average_precision_score(np.concatenate([1 - m, m]), np.concatenate([1 - r, r]))
        assert found["ap"][i].item() == pytest.approx(both, abs=1e-12)
        assert found["ap_foreground"][i].item() == pytest.approx(metrics.average_precision_score(m, r), abs=1e-12)
        assert found["auroc"][i].item() == pytest.approx(metrics.roc_auc_score(m, r), abs=1e-12)


def test_average_precision_and_auroc_without_positives():
    scores, nothing = torch.rand(1, 9), torch.zeros(1, 9, dtype=torch.bool)
    assert average_precision(scores, nothing).isnan().all()
    assert auroc(scores, nothing).isnan().all()
    assert auroc(scores, ~nothing).isnan().all()
    void = score_segmentation(torch.rand(1, 3, 3), torch.full((1, 3, 3), 255))
    assert void["ap"].item() == 0
    assert void["foreground"].item() == void["background"].item() == 0


def test_segmentation_accepts_other_dtypes_and_rejects_other_shapes():
    maps, masks = ten_maps(), ten_masks(ignored=False)
    single, double = score_segmentation(maps, masks), score_segmentation(maps.double(), masks.bool())
    assert all(torch.equal(single[name], double[name]) for name in ("foreground", "flat"))
    # The third map is excluded: its values on the tenths equal those of 1 - r, and rounding decides which tie.
    rest = [0, 1, *range(3, 10)]
    assert single["ap"][rest].tolist() == pytest.approx(double["ap"][rest].tolist(), abs=1e-6)
    assert score_segmentation(maps.bfloat16(), masks.to(torch.uint8))["true"].shape == (10, 11)
    with pytest.raises(InputError, match="differ in size"):
        score_segmentation(maps, masks[:, :5])
    with pytest.raises(InputError, match="images, height, width"):
        score_segmentation(maps[None], masks[None])


def test_multi_class_on_a_known_example():
    # Two classes, 1 and 2, on six pixels; the last one is void.
    maps = torch.tensor([[[[0.0, 0.25, 1.0, 0.5, 0.25, 1.0]], [[1.0, 0.5, 0.25, 0.5, 0.0, 1.0]]]])
    classes, masks = torch.tensor([[1, 2]]), torch.tensor([[[2, 0, 1, 1, 0, 255]]])
    assert label_pixels(maps, classes, 0.0).tolist() == [[[2, 2, 1, 1, 1, 1]]]  # a tie of classes: the lower label
    assert label_pixels(maps, classes, 0.5).tolist() == [
        [[2, 0, 1, 0, 0, 1]]
    ]  # a tie with the background: the background
    scores = MultiClassSegmentationScores()
    scores.add(["a"], count_confusions(maps, classes, masks, count=4))
    assert scores.confusion().shape == (10, 4, 4)
    assert scores.confusion()[0].tolist() == [[0, 1, 1, 0], [0, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert scores.confusion()[5].tolist() == [[2, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    s = scores.summary()
    assert s["pixel_accuracy"][0] == pytest.approx(3 / 5)
    assert s["miou"][0] == pytest.approx((0 + 2 / 3 + 1 / 2) / 3)  # label 3 is neither true nor predicted: excluded
    assert s["pixel_accuracy"][5] == pytest.approx(4 / 5)
    assert s["miou"][5] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert s["miou"][3] == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert (s["best_threshold"], s["best_miou"]) == (0.5, s["miou"][5])


def test_multi_class_equals_a_loop_over_pixels():
    g = torch.Generator().manual_seed(0)
    maps = torch.rand(4, 3, SIZE, SIZE, generator=g)
    maps[0, 1], maps[1] = 1.0, (maps[1] * 10).round() / 10
    classes = torch.tensor([[5, 1, 20], [2, 3, -1], [7, -1, -1], [4, 9, 11]])
    masks = torch.randint(0, 21, (4, SIZE, SIZE), generator=g)
    masks[torch.rand(masks.shape, generator=g) < 0.1] = 255
    scores = MultiClassSegmentationScores()
    scores.add(image_ids(4), count_confusions(maps, classes, masks))
    assert scores.summary()["flat"] == 1
    for i, t in enumerate(THRESHOLDS):
        found, truth = label_pixels(maps, classes, t).numpy(), masks.numpy()
        expected = np.zeros((21, 21), dtype=int)
        np.add.at(expected, (truth[truth != 255], found[truth != 255]), 1)
        assert (scores.confusion()[i] == expected).all()
        r = [[slow_unit(m)[0].astype(np.float32) for m in some] for some in maps.numpy()]
        for b, y, x in itertools.product(range(4), range(0, SIZE, 5), range(0, SIZE, 5)):
            ranked = sorted((-r[b][k][y, x], int(c)) for k, c in enumerate(classes[b]) if c > 0)
            assert found[b, y, x] == (ranked[0][1] if -ranked[0][0] > np.float32(t) else 0)
    assert mean_ratio(scores.ratios(0.3).mean(0)) == pytest.approx(scores.summary()["miou"][3])
    with pytest.raises(InputError, match="labels must be 0 to 4"):
        count_confusions(maps, classes, masks, count=5)


def test_box_masks_and_pointing_game():
    masks = box_masks([[[2, 1, 4, 3], [0, 0, 1, 1]], [[9, 9, 12, 12]]], (5, 6))
    assert masks[0].int().tolist() == [[1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0], [0] * 6, [0] * 6]
    assert not masks[1].any()
    scaled = box_masks([[[20, 10, 40, 30]]], (5, 6), scale=[(0.1, 0.1)])
    assert torch.equal(scaled[0] | box_masks([[[0, 0, 1, 1]]], (5, 6))[0], masks[0])
    maps = torch.zeros(2, 5, 6)
    maps[:, 3, 4] = 1
    assert pointing_game(maps, masks, 0).isnan().tolist() == [False, True]
    # The nearest pixel of the mask is one row and one column away: distance √2.
    assert [pointing_game(maps, masks, t)[0].item() for t in (0, 1, 1.4, 1.5, 2)] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("tolerance", [0, 2, 3.5])
def test_tolerance_is_a_euclidean_distance(tolerance):
    maps, masks = torch.rand(6, 15, 17), torch.rand(6, 15, 17) < 0.02
    expected = []
    for m, mask in zip(maps.numpy(), masks.numpy(), strict=True):
        y, x = np.unravel_index(m.argmax(), m.shape)
        distance = min(((a - y) ** 2 + (b - x) ** 2) ** 0.5 for a, b in np.argwhere(mask))
        expected.append(float(distance == 0 or distance < tolerance))
    for ties in ("expected", "first", "any"):
        assert pointing_game(maps, masks, tolerance, ties).tolist() == expected


def test_pointing_follows_the_formulas():
    maps, masks = ten_maps(), ten_masks()
    found = score_pointing(maps, masks)
    assert found["flat"].tolist() == CONSTANT
    for i in range(10):
        m = np.zeros((SIZE, SIZE)) if CONSTANT[i] else maps[i].numpy().astype(np.float64)
        ok = ~np.isin(masks[i].numpy(), (255, -1))
        inside = (masks[i].numpy() == 1) & ok
        k = inside.sum()
        top = m == m.max()
        assert found["hit@0"][i].item() == pytest.approx((top & inside).sum() / top.sum())
        plus = np.maximum(m, 0)[ok].sum()
        assert found["energy"][i].item() == pytest.approx(np.maximum(m, 0)[inside].sum() / plus if plus else 0.0)
        assert found["auroc"][i].item() == pytest.approx(slow_auroc(m[ok], inside[ok]))
        assert found["area"][i].item() == pytest.approx(k / ok.sum())
        draws, rng = [], np.random.default_rng(0)  # ties broken at random, many times
        for _ in range(400):
            order = np.lexsort((rng.random(ok.sum()), -m[ok]))
            draws.append(inside[ok][order[:k]].sum() / k)
        exact = len(set(m.ravel().tolist())) == m.size
        assert found["rank"][i].item() == pytest.approx(np.mean(draws), abs=1e-12 if exact else 0.02)
    assert found["hit@0"][7].item() == pytest.approx(((masks[7] == 1).double().mean()).item())  # chance


def test_pointing_at_the_centre_and_without_an_object():
    masks = box_masks([[[0, 0, 2, 2]], [[0, 0, 4, 4]], []], (4, 4))
    found = score_pointing(torch.rand(3, 4, 4), masks, tolerances=(0,))
    assert found["centre@0"][:2].tolist() == [0.25, 1.0]
    assert all(found[name][2].isnan() for name in ("hit@0", "centre@0", "energy", "rank", "auroc", "area"))
    scores = PointingScores()
    scores.add(["a", "b", "c"], found)
    assert scores.summary()["undefined"] == 1
    assert scores.mean("centre@0") == pytest.approx(0.625)
    assert scores.mean("centre@0", {"a": "cat", "b": "dog", "c": "dog"}) == pytest.approx(0.625)
    assert relevance_rank_accuracy(torch.zeros(1, 4, 4), masks[:1]).item() == pytest.approx(0.25)
    with pytest.raises(OptionError, match="ties"):
        pointing_game(torch.rand(1, 4, 4), masks[:1], ties="last")
    with pytest.raises(InputError, match="images, height, width"):
        score_pointing(torch.rand(3, 4, 5), masks)


def test_box_pointing_tests_each_pair_of_map_and_box():
    g = torch.Generator().manual_seed(2)
    maps = torch.rand(5, 9, 12, generator=g, dtype=torch.float64)
    maps[3], maps[4, 2] = 1.0, 1.0  # a constant map, and a row of maxima
    boxes = [[[0, 0, 6, 9], [6, 0, 12, 9]], [[2, 1, 5, 4], [0, 0, 12, 9], [0.2, 0.2, 0.4, 0.4]], [],
             [[0, 0, 6, 9]], [[0, 0, 3, 9], [0, 3, 12, 9]]]  # fmt: skip
    found = score_box_pointing(maps, boxes)
    for i, own in enumerate(boxes):
        hits = count = 0.0
        peaks = [(y, x) for y in range(9) for x in range(12) if maps[i, y, x] == maps[i].max()]
        for x0, y0, x1, y1 in own:
            inside = [(y, x) for y in range(9) for x in range(12) if x0 <= x + 0.5 < x1 and y0 <= y + 0.5 < y1]
            if inside:
                hits, count = hits + sum(p in inside for p in peaks) / len(peaks), count + 1
        if count:
            assert (found["hits"][i].item(), found["boxes"][i].item()) == pytest.approx((hits, count))
        else:
            assert found["hits"][i].isnan()
    assert found["boxes"].nan_to_num(0).tolist() == [2, 2, 0, 1, 2]
    assert found["flat"].tolist() == [False, False, False, True, False]
    scores = BoxPointingScores()
    scores.add(list("abcde"), found)
    s = scores.summary()
    assert (s["pairs"], s["undefined"], s["flat"]) == (7, 1, 1)
    assert s["accuracy"] == pytest.approx(found["hits"].nan_to_num(0).sum().item() / 7)
    assert found["reachable"].nan_to_num(0).tolist() == [1, 2, 0, 1, 2], "boxes that share a pixel"
    assert s["bound"] == pytest.approx(6 / 7)
    union = score_pointing(maps[:1], box_masks([boxes[0]], (9, 12)))["hit@0"].item()
    assert (union, found["hit_share"][0].item()) == (1.0, 0.5), "the union is easier to hit than each box"
    with pytest.raises(InputError, match="a list of boxes for each image"):
        score_box_pointing(maps, boxes[:2])


def test_no_map_reaches_the_published_pointing_game_per_box(assets):
    shared, count = 0, 0
    for path in sorted((assets / "imagenet" / "boxes").glob("*.xml")):
        x0, y0, x1, y1 = read_annotation(path).corners.T
        # The largest number of boxes that share a point is reached at a left and an upper edge.
        x, y = np.meshgrid(x0, y0)
        inside = (x0 <= x[..., None]) & (x[..., None] <= x1) & (y0 <= y[..., None]) & (y[..., None] <= y1)
        shared, count = shared + inside.sum(2).max(), count + len(x0)
    assert count == 1605
    assert shared / count == pytest.approx(0.755, abs=0.0005)
    published = [
        n.value for n in find_table("vitcx_table1").numbers if n.metric == "PG Acc (%)" and n.value is not None
    ]
    assert sum(value > 100 * shared / count for value in published) > 5
    assert find_table("vitcx_table1").metrics["PG Acc (%)"].protocol == "pointing"


def test_selectivity_follows_the_formulas():
    g = torch.Generator().manual_seed(0)
    maps = torch.rand(6, 2, SIZE, SIZE, generator=g) * 2 - 1
    where = torch.rand(6, SIZE, SIZE, generator=g)
    masks = torch.stack([where < 0.2, where > 0.7], 1)
    maps[3, 0], maps[4, 1] = 0.5, torch.nan
    masks[5, 1] = False
    found = score_selectivity(maps, masks)
    for i in range(5):
        share, mass, between = [], [], []
        for k in (0, 1):
            m = maps[i, k].double().numpy()
            m = np.zeros_like(m) if np.isnan(m).any() or m.min() == m.max() else m
            a, b = masks[i, k].numpy(), masks[i, 1 - k].numpy()
            share.append(0.5 if m[a].mean() == m[b].mean() else float(m[a].mean() > m[b].mean()))
            plus = np.maximum(m, 0)
            mass.append(plus[a].sum() / plus.sum() if plus.sum() else 0.0)
            between.append(plus[a].sum() / plus[a | b].sum() if plus[a | b].sum() else 0.5)
        assert found["share"][i].item() == pytest.approx(np.mean(share))
        assert found["mass"][i].item() == pytest.approx(np.mean(mass))
        assert found["mass_between"][i].item() == pytest.approx(np.mean(between))
        assert found["both"][i].item() == float(share == [1, 1])
    assert found["share"][5].isnan()
    assert found["flat"].tolist() == [0, 0, 0, 1, 1, 0]


def test_selectivity_of_perfect_and_class_agnostic_maps():
    scenes = Scenes("test", pairs=True)
    masks = torch.tensor(np.stack([scenes[i].masks for i in range(3)]))
    truth = score_selectivity(masks.float(), masks)
    assert truth["share"].tolist() == truth["mass"].tolist() == truth["both"].tolist() == [1.0] * 3
    same = torch.rand(3, 1, *masks.shape[2:]).expand(-1, 2, -1, -1)
    assert score_selectivity(same, masks)["share"].tolist() == [0.5] * 3
    with pytest.raises(InputError, match="images, 2"):
        score_selectivity(masks[:, :1].float(), masks[:, :1])
