"""Scores against slow computations written from their formulas, and against libraries where they are installed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import vitrail
from vitrail.adapters import Attribution, as_maps, explain_func
from vitrail.data import Scenes
from vitrail.errors import InputError, OptionError
from vitrail.scores.agreement import Agreement, agreement, kendall, spearman, top_overlap
from vitrail.scores.complexity import Complexity, complexity, entropy, gini, used
from vitrail.scores.pointing import Pointing, box_masks, hits, pointing, rank_accuracy
from vitrail.scores.segmentation import (
    THRESHOLDS,
    MultiClass,
    Segmentation,
    auroc,
    average_precision,
    confusions,
    half,
    label,
    segmentation,
)
from vitrail.scores.selectivity import Selectivity, selectivity
from vitrail.scores.statistics import Tally, compare, difference, holm, interval, mean_ratio, p_value
from vitrail.testing import tiny_vit

SIZE = 12


def _maps(seed=0, size=SIZE):
    """Ten maps: smooth, tied, with values on the thresholds, signed, tiny, and four that say nothing."""
    g = torch.Generator().manual_seed(seed)
    r = torch.rand(10, size, size, generator=g)
    r[1] = (r[1] * 4).round()  # many ties
    r[2] = (r[2] * 10).round() / 10  # exactly on the thresholds
    r[3] = r[3].clamp_min(0.8) - 0.8  # mostly zeros
    r[4] = r[4] * 2 - 1
    r[5] = r[5] * 1e-20
    r[6], r[7], r[8] = 0.0, 3.7, torch.nan
    r[9, 0, 0] = torch.inf
    return r


def _masks(seed=1, size=SIZE, ignored=True):
    g = torch.Generator().manual_seed(seed)
    masks = (torch.rand(10, size, size, generator=g) < 0.3).long()
    if ignored:
        masks[torch.rand(10, size, size, generator=g) < 0.1] = 255
        masks[0, 0, 0] = -1
    return masks


DULL = [False] * 6 + [True] * 4


def _slow_unit(m):
    m = m.astype(np.float64)
    if not np.isfinite(m).all() or m.max() == m.min():
        return np.zeros_like(m), True
    return (m - m.min()) / (m.max() - m.min()), False


def _slow_ap(score, positive):
    """Precision at every distinct threshold, times the recall it adds."""
    area, recall = 0.0, 0.0
    for t in sorted(set(score.tolist()), reverse=True):
        chosen = score >= t
        now = (chosen & positive).sum() / positive.sum()
        area += (now - recall) * (chosen & positive).sum() / chosen.sum()
        recall = now
    return area


def _slow_auroc(score, positive):
    a, b = score[positive][:, None], score[~positive][None]
    return ((a > b) + 0.5 * (a == b)).mean()


def _slow_segmentation(maps, masks, choose=lambda i: "mean"):
    correct = labelled = 0
    inter, union = np.zeros(2), np.zeros(2)
    for i, (m, mask) in enumerate(zip(maps.numpy(), masks.numpy(), strict=True)):
        r, _ = _slow_unit(m)
        t = choose(i)
        # Comparing as the map is stored, in single precision: 0.1 is not greater than 0.1.
        found = r > r.mean() if t == "mean" else r.astype(np.float32) > np.float32(t)
        ok = ~np.isin(mask, (255, -1))
        correct += (found == (mask == 1))[ok].sum()
        labelled += ok.sum()
        for c in (0, 1):
            p, q = (found == c) & ok, (mask == c) & ok
            inter[c] += (p & q).sum()
            union[c] += (p | q).sum()
    return correct / labelled, (inter / union).mean()


def _ids(n):
    return [f"image-{i}" for i in range(n)]


# --- segmentation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ignored", [False, True])
def test_segmentation_follows_the_formulas(ignored):
    maps, masks, ids = _maps(), _masks(ignored=ignored), _ids(10)
    tally = Segmentation()
    tally.add(ids, segmentation(maps, masks))
    s = tally.summary()
    assert (s["images"], s["flat"]) == (10, 4)
    assert (s["pixel_accuracy"], s["miou"]) == pytest.approx(_slow_segmentation(maps, masks))
    sweep = [_slow_segmentation(maps, masks, lambda _, t=t: t) for t in THRESHOLDS]
    regions = tally.regions()
    assert regions.accuracy()[1:].tolist() == pytest.approx([a for a, _ in sweep])
    assert regions.miou()[1:].tolist() == pytest.approx([m for _, m in sweep])
    best = max(range(10), key=lambda i: (sweep[i][1], -i))
    assert s["best_threshold"] == THRESHOLDS[best]
    assert (s["best_pixel_accuracy"], s["best_miou"]) == pytest.approx(sweep[best])


def test_two_fold_takes_the_threshold_of_the_other_half():
    maps, masks, ids = _maps(3), _masks(4), _ids(10)
    maps[:5] *= masks[:5].clamp(0, 1) + 0.3
    side = [half(i) for i in ids]
    assert set(side) == {0, 1}

    def best_on(k):
        own = [i for i in range(10) if side[i] == k]
        sweep = [_slow_segmentation(maps[own], masks[own], lambda _, t=t: t)[1] for t in THRESHOLDS]
        return THRESHOLDS[int(np.argmax(sweep))]

    picks = [best_on(1), best_on(0)]
    tally = Segmentation()
    tally.add(ids, segmentation(maps, masks))
    s = tally.summary()
    assert s["two_fold_thresholds"] == picks
    expected = _slow_segmentation(maps, masks, lambda i: picks[side[i]])
    assert (s["two_fold_pixel_accuracy"], s["two_fold_miou"]) == pytest.approx(expected)
    alone = Segmentation()
    alone.add(ids[:1], segmentation(maps[:1], masks[:1]))
    assert alone.summary()["two_fold_thresholds"] is None
    assert math.isnan(alone.summary()["two_fold_miou"])


def test_areas_follow_the_formulas():
    maps, masks = _maps(), _masks()
    found = segmentation(maps, masks)
    assert found["flat"].tolist() == DULL
    for i in range(10):
        ok = ~np.isin(masks[i].numpy(), (255, -1))
        m = masks[i].numpy()[ok] == 1
        r = ((maps[i] - maps[i].min()) / (maps[i].max() - maps[i].min())).numpy()[ok]
        r = np.zeros_like(r) if DULL[i] else r
        both = np.zeros(2 * len(r)) if DULL[i] else np.concatenate([1 - r, r])
        assert found["ap"][i].item() == pytest.approx(_slow_ap(both, np.concatenate([~m, m])), abs=1e-12)
        assert found["ap_foreground"][i].item() == pytest.approx(_slow_ap(r, m), abs=1e-12)
        assert found["auroc"][i].item() == pytest.approx(_slow_auroc(r, m), abs=1e-12)
    assert found["ap"][6:].tolist() == [0.5] * 4  # a constant map scores one half
    assert found["auroc"][6:].tolist() == [0.5] * 4


def test_areas_equal_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    maps, masks = _maps(7, 40)[:6], _masks(8, 40, ignored=False)[:6]
    found = segmentation(maps, masks)
    for i in range(6):
        r = ((maps[i] - maps[i].min()) / (maps[i].max() - maps[i].min())).flatten().numpy()
        m = masks[i].flatten().numpy()
        both = metrics.average_precision_score(np.concatenate([1 - m, m]), np.concatenate([1 - r, r]))
        assert found["ap"][i].item() == pytest.approx(both, abs=1e-12)
        assert found["ap_foreground"][i].item() == pytest.approx(metrics.average_precision_score(m, r), abs=1e-12)
        assert found["auroc"][i].item() == pytest.approx(metrics.roc_auc_score(m, r), abs=1e-12)


def test_areas_without_anything_to_find():
    scores, nothing = torch.rand(1, 9), torch.zeros(1, 9, dtype=torch.bool)
    assert average_precision(scores, nothing).isnan().all()
    assert auroc(scores, nothing).isnan().all()
    assert auroc(scores, ~nothing).isnan().all()
    void = segmentation(torch.rand(1, 3, 3), torch.full((1, 3, 3), 255))
    assert void["ap"].item() == 0
    assert void["foreground"].item() == void["background"].item() == 0


def test_segmentation_takes_other_types_and_refuses_other_shapes():
    maps, masks = _maps(), _masks(ignored=False)
    single, double = segmentation(maps, masks), segmentation(maps.double(), masks.bool())
    assert all(torch.equal(single[name], double[name]) for name in ("foreground", "flat"))
    # The third is left out: its values on the tenths meet those of 1 - r, and rounding says which ones tie.
    rest = [0, 1, *range(3, 10)]
    assert single["ap"][rest].tolist() == pytest.approx(double["ap"][rest].tolist(), abs=1e-6)
    assert segmentation(maps.bfloat16(), masks.to(torch.uint8))["true"].shape == (10, 11)
    with pytest.raises(InputError, match="differ in size"):
        segmentation(maps, masks[:, :5])
    with pytest.raises(InputError, match="images, height, width"):
        segmentation(maps[None], masks[None])


def test_multi_class_by_hand():
    # Two classes, 1 and 2, on six pixels; the last one is void.
    maps = torch.tensor([[[[0.0, 0.25, 1.0, 0.5, 0.25, 1.0]], [[1.0, 0.5, 0.25, 0.5, 0.0, 1.0]]]])
    classes, masks = torch.tensor([[1, 2]]), torch.tensor([[[2, 0, 1, 1, 0, 255]]])
    assert label(maps, classes, 0.0).tolist() == [[[2, 2, 1, 1, 1, 1]]]  # 0.5 against 0.5: the lower label
    assert label(maps, classes, 0.5).tolist() == [[[2, 0, 1, 0, 0, 1]]]  # 0.5 against the ground: the ground
    tally = MultiClass()
    tally.add(["a"], confusions(maps, classes, masks, count=4))
    assert tally.confusion().shape == (10, 4, 4)
    assert tally.confusion()[0].tolist() == [[0, 1, 1, 0], [0, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert tally.confusion()[5].tolist() == [[2, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    s = tally.summary()
    assert s["pixel_accuracy"][0] == pytest.approx(3 / 5)
    assert s["miou"][0] == pytest.approx((0 + 2 / 3 + 1 / 2) / 3)  # label 3 is neither there nor found: left out
    assert s["pixel_accuracy"][5] == pytest.approx(4 / 5)
    assert s["miou"][5] == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert s["miou"][3] == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert (s["best_threshold"], s["best_miou"]) == (0.5, s["miou"][5])


def test_multi_class_equals_labels_counted_one_by_one():
    g = torch.Generator().manual_seed(0)
    maps = torch.rand(4, 3, SIZE, SIZE, generator=g)
    maps[0, 1], maps[1] = 1.0, (maps[1] * 10).round() / 10
    classes = torch.tensor([[5, 1, 20], [2, 3, -1], [7, -1, -1], [4, 9, 11]])
    masks = torch.randint(0, 21, (4, SIZE, SIZE), generator=g)
    masks[torch.rand(masks.shape, generator=g) < 0.1] = 255
    tally = MultiClass()
    tally.add(_ids(4), confusions(maps, classes, masks))
    assert tally.summary()["flat"] == 1
    for i, t in enumerate(THRESHOLDS):
        found, truth = label(maps, classes, t).numpy(), masks.numpy()
        expected = np.zeros((21, 21), dtype=int)
        np.add.at(expected, (truth[truth != 255], found[truth != 255]), 1)
        assert (tally.confusion()[i] == expected).all()
        r = [[_slow_unit(m)[0].astype(np.float32) for m in some] for some in maps.numpy()]
        for b, y, x in itertools.product(range(4), range(0, SIZE, 5), range(0, SIZE, 5)):
            ranked = sorted((-r[b][k][y, x], int(c)) for k, c in enumerate(classes[b]) if c > 0)
            assert found[b, y, x] == (ranked[0][1] if -ranked[0][0] > np.float32(t) else 0)
    assert mean_ratio(tally.ratios(0.3).mean(0)) == pytest.approx(tally.summary()["miou"][3])
    with pytest.raises(InputError, match="label is not among"):
        confusions(maps, classes, masks, count=5)


# --- pointing -------------------------------------------------------------------------------------------------------


def test_boxes_and_hits():
    masks = box_masks([[[2, 1, 4, 3], [0, 0, 1, 1]], [[9, 9, 12, 12]]], (5, 6))
    assert masks[0].int().tolist() == [[1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0], [0] * 6, [0] * 6]
    assert not masks[1].any()
    scaled = box_masks([[[20, 10, 40, 30]]], (5, 6), scale=[(0.1, 0.1)])
    assert torch.equal(scaled[0] | box_masks([[[0, 0, 1, 1]]], (5, 6))[0], masks[0])
    maps = torch.zeros(2, 5, 6)
    maps[:, 3, 4] = 1
    assert hits(maps, masks, 0).isnan().tolist() == [False, True]
    # The nearest pixel of the mask is one step down and one step right away: distance √2.
    assert [hits(maps, masks, t)[0].item() for t in (0, 1, 1.4, 1.5, 2)] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("tolerance", [0, 2, 3.5])
def test_tolerance_is_a_distance(tolerance):
    maps, masks = torch.rand(6, 15, 17), torch.rand(6, 15, 17) < 0.02
    expected = []
    for m, mask in zip(maps.numpy(), masks.numpy(), strict=True):
        y, x = np.unravel_index(m.argmax(), m.shape)
        distance = min(((a - y) ** 2 + (b - x) ** 2) ** 0.5 for a, b in np.argwhere(mask))
        expected.append(float(distance == 0 or distance < tolerance))
    for ties in ("expected", "first", "any"):
        assert hits(maps, masks, tolerance, ties).tolist() == expected


def test_pointing_follows_the_formulas():
    maps, masks = _maps(), _masks()
    found = pointing(maps, masks)
    assert found["flat"].tolist() == DULL
    for i in range(10):
        m = np.zeros((SIZE, SIZE)) if DULL[i] else maps[i].numpy().astype(np.float64)
        ok = ~np.isin(masks[i].numpy(), (255, -1))
        inside = (masks[i].numpy() == 1) & ok
        k = inside.sum()
        top = m == m.max()
        assert found["hit@0"][i].item() == pytest.approx((top & inside).sum() / top.sum())
        plus = np.maximum(m, 0)[ok].sum()
        assert found["energy"][i].item() == pytest.approx(np.maximum(m, 0)[inside].sum() / plus if plus else 0.0)
        assert found["auroc"][i].item() == pytest.approx(_slow_auroc(m[ok], inside[ok]))
        assert found["area"][i].item() == pytest.approx(k / ok.sum())
        draws, rng = [], np.random.default_rng(0)  # ties broken at random, many times
        for _ in range(400):
            order = np.lexsort((rng.random(ok.sum()), -m[ok]))
            draws.append(inside[ok][order[:k]].sum() / k)
        exact = len(set(m.ravel().tolist())) == m.size
        assert found["rank"][i].item() == pytest.approx(np.mean(draws), abs=1e-12 if exact else 0.02)
    assert found["hit@0"][7].item() == pytest.approx(((masks[7] == 1).double().mean()).item())  # chance


def test_pointing_at_the_middle_and_at_nothing():
    masks = box_masks([[[0, 0, 2, 2]], [[0, 0, 4, 4]], []], (4, 4))
    found = pointing(torch.rand(3, 4, 4), masks, tolerances=(0,))
    assert found["centre@0"][:2].tolist() == [0.25, 1.0]
    assert all(found[name][2].isnan() for name in ("hit@0", "centre@0", "energy", "rank", "auroc", "area"))
    tally = Pointing()
    tally.add(["a", "b", "c"], found)
    assert tally.summary()["undefined"] == 1
    assert tally.mean("centre@0") == pytest.approx(0.625)
    assert tally.mean("centre@0", {"a": "cat", "b": "dog", "c": "dog"}) == pytest.approx(0.625)
    assert rank_accuracy(torch.zeros(1, 4, 4), masks[:1]).item() == pytest.approx(0.25)
    with pytest.raises(OptionError, match="ties"):
        hits(torch.rand(1, 4, 4), masks[:1], ties="last")
    with pytest.raises(InputError, match="images, height, width"):
        pointing(torch.rand(3, 4, 5), masks)


# --- selectivity ----------------------------------------------------------------------------------------------------


def test_selectivity_follows_the_formulas():
    g = torch.Generator().manual_seed(0)
    maps = torch.rand(6, 2, SIZE, SIZE, generator=g) * 2 - 1
    where = torch.rand(6, SIZE, SIZE, generator=g)
    masks = torch.stack([where < 0.2, where > 0.7], 1)
    maps[3, 0], maps[4, 1] = 0.5, torch.nan
    masks[5, 1] = False
    found = selectivity(maps, masks)
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


def test_selectivity_of_the_truth_and_of_a_class_agnostic_map():
    scenes = Scenes("test", pairs=True)
    masks = torch.tensor(np.stack([scenes[i].masks for i in range(3)]))
    truth = selectivity(masks.float(), masks)
    assert truth["share"].tolist() == truth["mass"].tolist() == truth["both"].tolist() == [1.0] * 3
    same = torch.rand(3, 1, *masks.shape[2:]).expand(-1, 2, -1, -1)
    assert selectivity(same, masks)["share"].tolist() == [0.5] * 3
    with pytest.raises(InputError, match="images, 2"):
        selectivity(masks[:, :1].float(), masks[:, :1])


# --- complexity -----------------------------------------------------------------------------------------------------


def test_complexity_follows_the_formulas():
    maps = _maps()
    found = complexity(maps)
    for i in range(10):
        a = np.ones(SIZE * SIZE) if DULL[i] else np.abs(maps[i].double().numpy()).ravel()
        n, q = len(a), a / a.sum()
        b = np.sort(a + 1e-7)
        slow = sum((2 * j - n - 1) * v for j, v in enumerate(b, 1)) / (n * b.sum())
        assert found["gini"][i].item() == pytest.approx(slow, abs=1e-12)
        if a.mean() > 1e-3:  # the other definition: mean difference between any two places
            differences = np.abs(b[:, None] - b[None]).mean() / (2 * b.mean())
            assert found["gini"][i].item() == pytest.approx(differences)
        assert found["entropy"][i].item() == pytest.approx(-sum(v * math.log(v) for v in q if v > 0))
        assert found["places"][i].item() == pytest.approx(math.exp(found["entropy"][i].item()) / n)
        assert found["used"][i].item() == pytest.approx((a > 1e-5 * a.max()).mean())
    assert found["gini"][6:].tolist() == pytest.approx([0.0] * 4, abs=1e-9)
    with pytest.raises(InputError, match="images, height, width"):
        complexity(maps[0])


def test_complexity_equals_scipys_entropy_and_has_its_ends():
    stats = pytest.importorskip("scipy.stats")
    maps = _maps()[:4]
    assert entropy(maps).tolist() == pytest.approx([stats.entropy(m.double().abs().flatten().numpy()) for m in maps])
    one, even = torch.zeros(1, 100), torch.ones(1, 100)
    one[0, 3] = 1
    assert gini(one).item() == pytest.approx(0.99, abs=1e-4)
    assert gini(even).item() == pytest.approx(0, abs=1e-12)
    assert (used(one).item(), used(even).item()) == (0.01, 1.0)


# --- agreement ------------------------------------------------------------------------------------------------------


def _slow_ranks(v):
    return np.array([(v < x).sum() + ((v == x).sum() + 1) / 2 for x in v])


def test_rank_correlations_follow_the_formulas():
    a, b = _maps(0)[:6], _maps(5)[:6].flip(0)
    slow, tau = [], []
    for x, y in zip(a.flatten(1).numpy(), b.flatten(1).numpy(), strict=True):
        slow.append(np.corrcoef(_slow_ranks(x), _slow_ranks(y))[0, 1])
        pairs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in itertools.combinations(range(len(x)), 2)]
        p, q = np.array(pairs, dtype=float).T
        tau.append((p * q).sum() / math.sqrt((p != 0).sum() * (q != 0).sum()))
    assert spearman(a, b).tolist() == pytest.approx(slow)
    assert kendall(a, b).tolist() == pytest.approx(tau)
    assert spearman(a, a).tolist() == pytest.approx([1.0] * 6)
    assert spearman(a, torch.zeros_like(a)).isnan().all()
    assert kendall(a, torch.zeros_like(a)).isnan().all()
    with pytest.raises(OptionError, match="grid"):
        kendall(torch.rand(1, 65, 65), torch.rand(1, 65, 65))


def test_rank_correlations_equal_scipys():
    stats = pytest.importorskip("scipy.stats")
    a, b = _maps(0)[:6], _maps(5)[:6].flip(0)
    flat = [(x.numpy(), y.numpy()) for x, y in zip(a.flatten(1), b.flatten(1), strict=True)]
    assert spearman(a, b).tolist() == pytest.approx([stats.spearmanr(x, y).statistic for x, y in flat])
    assert kendall(a, b).tolist() == pytest.approx([stats.kendalltau(x, y).statistic for x, y in flat])


def test_top_overlap_counts_places():
    a, b = torch.rand(5, 10, 10), torch.rand(5, 10, 10)
    k = 20
    for i, share in enumerate(top_overlap(a, b, 0.2).tolist()):
        sets = [set(np.argsort(-m[i].flatten().numpy())[:k].tolist()) for m in (a, b)]
        assert share == pytest.approx(len(sets[0] & sets[1]) / k)
    tied = (a * 3).round()
    assert top_overlap(tied, tied).tolist() == pytest.approx([1.0] * 5)
    assert top_overlap(tied, 1 - tied).tolist() == pytest.approx([0.0] * 5)
    assert top_overlap(torch.tensor([[1.0, 0.0, 0.0]]), torch.zeros(1, 3), 1 / 3).item() == pytest.approx(1 / 3)


def test_agreement_matrix():
    maps = {"c": _maps(2), "a": _maps(0), "b": _maps(1)}
    tally = Agreement()
    tally.add(_ids(10), agreement(maps))
    assert tally.methods == ("a", "b", "c")
    matrix = tally.matrix()
    assert np.allclose(matrix, matrix.T)
    assert matrix[0, 2] == pytest.approx(spearman(maps["a"][:6], maps["c"][:6]).mean().item())
    assert tally.matrix("top")[1, 2] == pytest.approx(top_overlap(maps["b"][:6], maps["c"][:6]).mean().item())
    with pytest.raises(InputError, match="one shape"):
        agreement({"a": torch.rand(1, 2, 2), "b": torch.rand(1, 2, 3)})


# --- tallies --------------------------------------------------------------------------------------------------------

PAIRS = _maps(0)[:, None].repeat(1, 2, 1, 1)
CASES = {
    Segmentation: lambda i: segmentation(_maps()[i], _masks()[i]),
    MultiClass: lambda i: confusions(_maps()[i][:, None], torch.ones(len(i), 1).long(), _masks()[i], count=2),
    Pointing: lambda i: pointing(_maps()[i], _masks()[i]),
    Selectivity: lambda i: selectivity(PAIRS[i], torch.stack([_masks()[i] == 0, _masks()[i] == 1], 1)),
    Complexity: lambda i: complexity(_maps()[i]),
    Agreement: lambda i: agreement({"a": _maps(0)[i], "b": _maps(1)[i]}),
}


@pytest.mark.parametrize("kind", CASES, ids=lambda k: k.__name__)
def test_tallies_merge_in_any_order(kind):
    ids = _ids(10)

    def part(indices):
        tally = kind()
        tally.add([ids[i] for i in indices], CASES[kind](list(indices)))
        return tally

    def same(a, b):
        return repr(a) == repr(b)  # to the last bit, and NaN is NaN

    whole = part(range(10)).summary()
    assert "nan" not in repr(whole)
    assert same((part([3, 0, 9]) + part([1, 2]) + part([8, 7, 6, 5, 4])).summary(), whole)
    assert same((part([8, 7, 6, 5, 4]).merge(part([1, 2])) + part([0, 9, 3])).summary(), whole)
    left, right = part([0, 1]), part(range(2, 10))
    assert same((kind() + left + (right + kind())).summary(), whole)
    assert len(left) == 2, "merging leaves the parts alone"
    with pytest.raises(InputError, match="counted twice"):
        left + part([1, 2])
    with pytest.raises(InputError, match="more than once"):
        part([0, 0])


def test_tallies_refuse_other_values():
    a, b = Tally(), Tally()
    a.add(["x"], {"hit": [1.0]})
    b.add(["y"], {"miss": [1.0]})
    with pytest.raises(InputError, match="another kind"):
        a + b
    with pytest.raises(InputError, match="as many"):
        a.add(["z"], {"hit": [1.0, 0.0]})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
def test_scores_are_the_same_on_an_accelerator():
    maps, masks = _maps(0, 64), _masks(1, 64)
    both = torch.stack([maps, maps.flip(0)], 1)
    classes, pair = torch.tensor([[1, 2]] * 10), torch.stack([masks == 0, masks == 1], 1)
    scores = {
        "segmentation": lambda d: segmentation(maps.to(d), masks),
        "confusions": lambda d: confusions(both.to(d), classes, masks),
        "pointing": lambda d: pointing(maps.to(d), masks),
        "selectivity": lambda d: selectivity(both.to(d), pair),
        "complexity": lambda d: complexity(maps.to(d)),
        "agreement": lambda d: agreement({"a": maps.to(d), "b": maps.flip(1).to(d)}),
    }
    for name, score in scores.items():
        here, there = score("cpu"), score("cuda")
        for column, values in here.items():
            assert there[column].is_cuda
            close = torch.allclose(values.double(), there[column].cpu().double(), atol=1e-9, equal_nan=True)
            assert close, f"{name}: {column}"


# --- statistics -----------------------------------------------------------------------------------------------------


def test_holm_on_known_examples():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]).tolist() == [1.0, 1.0]
    assert holm([0.02]).tolist() == [0.02]
    assert holm([]).tolist() == []


def test_bootstrap_equals_a_loop_in_mean_and_spread():
    values = np.random.default_rng(0).gamma(2.0, size=200)
    rng = np.random.default_rng(1)
    slow = [rng.choice(values, 200).mean() for _ in range(4000)]
    found = interval(values, resamples=4000)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.02)
    assert interval(values) == interval(values)
    assert interval(values, seed=1) != interval(values)
    wide = interval(values, level=0.99)
    assert wide.low < found.low < found.high < wide.high


def test_intervals_cover_what_they_should():
    rng = np.random.default_rng(0)
    inside = 0
    for i in range(300):
        _, low, high = interval(rng.normal(1.0, 2.0, 80), resamples=400, seed=i)
        inside += low <= 1.0 <= high
    assert 0.91 <= inside / 300 <= 0.98


def test_ratios_of_sums():
    rng = np.random.default_rng(0)
    under = rng.integers(5, 50, (60, 2)).astype(float)
    over = np.floor(under * rng.random((60, 2)))
    table = np.concatenate([over, under], 1)
    found = interval(table, mean_ratio, resamples=3000)
    assert found.value == pytest.approx((over.sum(0) / under.sum(0)).mean())
    slow = []
    for _ in range(3000):
        i = rng.integers(0, 60, 60)
        slow.append((over[i].sum(0) / under[i].sum(0)).mean())
    assert (found.low, found.high) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.01)
    tally = Segmentation()
    tally.add(_ids(10), segmentation(_maps(), _masks()))
    assert interval(tally.ratios(), mean_ratio).value == pytest.approx(tally.summary()["miou"])
    assert interval(tally.ratios(0.4), mean_ratio).value == pytest.approx(tally.regions().miou()[5])


def test_p_values_are_those_of_all_swaps():
    a, b = np.array([1.0, 2.0, 4.0, 0.5, 3.0, 2.5]), np.array([0.5, 2.5, 3.0, 0.0, 1.0, 2.0])
    d = a - b
    swaps = [abs((np.array(s) * d).mean()) >= abs(d.mean()) - 1e-12 for s in itertools.product([1, -1], repeat=6)]
    assert p_value(a, b, resamples=20000) == pytest.approx(np.mean(swaps), abs=0.01)
    assert p_value(a, b) == p_value(b, a)
    assert p_value(a, a) == 1.0
    assert p_value(np.arange(50.0) + 1, np.arange(50.0), resamples=999) == 0.001
    ratio = np.stack([a, a + b], 1)
    other = np.stack([b, a + b], 1)
    assert p_value(ratio, other, mean_ratio, resamples=5000) == pytest.approx(np.mean(swaps), abs=0.03)
    with pytest.raises(InputError, match="same images"):
        p_value(a, b[:5])
    with pytest.raises(InputError, match="NaN"):
        p_value(a, np.where(a > 3, np.nan, b))


def test_p_values_of_nothing_are_even():
    rng = np.random.default_rng(0)
    p = [p_value(rng.normal(size=40), rng.normal(size=40), resamples=199, seed=i) for i in range(300)]
    assert np.mean(np.array(p) <= 0.05) < 0.09
    assert 0.42 < np.mean(p) < 0.58


def test_compare():
    rng = np.random.default_rng(0)
    base = rng.random(200)
    noise = rng.normal(size=200)
    values = {"worse": base - 0.1 + 0.02 * noise, "good": base, "twin": base + 0.01 * noise[::-1]}
    values["worse"][7] = np.nan  # left out for all
    rows = compare(values, resamples=1000)
    assert {rows[0].name, rows[1].name} == {"good", "twin"}
    assert rows[2].name == "worse"
    known = np.arange(200) != 7
    by = {r.name: r for r in rows}
    best = rows[0].name
    for name, row in by.items():
        assert row.mean == pytest.approx(values[name][known].mean())
        assert row.low < row.mean < row.high
        own = difference(values[name][known], values[best][known], resamples=1000)
        assert (row.difference, row.difference_low, row.difference_high) == pytest.approx(tuple(own))
    assert math.isnan(rows[0].p)
    assert rows[0].difference == rows[0].difference_low == 0
    assert by["worse"].p_holm == pytest.approx(2 * by["worse"].p)
    assert by["worse"].p == pytest.approx(1 / 1001)
    assert rows[1].p > 0.05
    # The difference is known far better than either mean: that is what pairing is for.
    assert by["worse"].difference_high - by["worse"].difference_low < 0.2 * (by["worse"].high - by["worse"].low)
    assert compare(values, higher=False, resamples=100)[0].name == "worse"
    with pytest.raises(InputError, match="same images"):
        compare({"a": [1.0, 2.0], "b": [1.0]})


# --- adapters -------------------------------------------------------------------------------------------------------


def test_adapters_give_what_explain_gives():
    model, images = tiny_vit(), torch.randn(3, 3, 32, 32)
    e = vitrail.explain(model, images, "transformer_mm", target=[0, 1, 2])
    there = Attribution(model, "transformer_mm").attribute(images, target=torch.tensor([0, 1, 2]))
    assert torch.equal(there, e.maps)
    array = explain_func(model, images.double().numpy(), np.array([0, 1, 2]), method="transformer_mm", device="cpu")
    assert array.shape == (3, 1, 32, 32)
    assert np.allclose(array, e.maps.numpy())
    one = Attribution(model, "transformer_mm").attribute(images, target=torch.tensor(1))
    assert torch.equal(one, vitrail.explain(model, images, "transformer_mm", target=1).maps)
    assert Attribution(model).attribute(images).shape == (3, 1, 32, 32)
    assert torch.equal(as_maps(e), e.maps[:, 0])
    with pytest.raises(InputError, match="one map an image"):
        as_maps(vitrail.explain(model, images, "rollout", target="top2"))


def test_maps_of_other_libraries():
    signed = torch.randn(2, 3, 8, 8, requires_grad=True)
    assert torch.equal(as_maps(signed), signed.detach().sum(1))
    assert torch.equal(as_maps(signed, "abs"), signed.detach().sum(1).abs())
    assert as_maps(signed, "positive").min() == 0
    cams = np.random.default_rng(0).random((2, 8, 8)).astype("float32")
    assert np.array_equal(as_maps(cams).numpy(), cams)
    assert as_maps(cams[0]).shape == (1, 8, 8)
    assert as_maps(np.ones((2, 8, 8), dtype=np.uint8)).dtype == torch.float32
    assert pointing(as_maps(cams), torch.ones(2, 8, 8))["energy"].tolist() == pytest.approx([1.0, 1.0])
    with pytest.raises(InputError, match="neither"):
        as_maps(np.ones(3))
    with pytest.raises(InputError, match="sign"):
        as_maps(cams, "plus")
