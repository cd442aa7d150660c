"""Complexity, agreement, accumulators and adapters against slow computations from the formulas."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
import vitrail.scores
from tests.scores.score_helpers import CONSTANT, SIZE, image_ids, ten_maps, ten_masks
from vitrail.errors import InputError, OptionError
from vitrail.scores.agreement import AgreementScores, kendall, score_agreement, spearman, top_overlap
from vitrail.scores.complexity import ComplexityScores, effective_complexity, entropy, gini, score_complexity
from vitrail.scores.pointing import PointingScores, score_pointing
from vitrail.scores.segmentation import (
    MultiClassSegmentationScores,
    SegmentationScores,
    count_confusions,
    score_segmentation,
)
from vitrail.scores.selectivity import SelectivityScores, score_selectivity
from vitrail.scores.statistics import SampleScores
from vitrail.testing import tiny_vit
from vitrail.tools.integrations import Attribution, as_maps, explain_func


def test_complexity_follows_the_formulas():
    maps = ten_maps()
    found = score_complexity(maps)
    for i in range(10):
        a = np.ones(SIZE * SIZE) if CONSTANT[i] else np.abs(maps[i].double().numpy()).ravel()
        n, q = len(a), a / a.sum()
        b = np.sort(a + 1e-7)
        slow = sum((2 * j - n - 1) * v for j, v in enumerate(b, 1)) / (n * b.sum())
        assert found["gini"][i].item() == pytest.approx(slow, abs=1e-12)
        if a.mean() > 1e-3:  # the other definition: mean difference between any two positions
            differences = np.abs(b[:, None] - b[None]).mean() / (2 * b.mean())
            assert found["gini"][i].item() == pytest.approx(differences)
        assert found["entropy"][i].item() == pytest.approx(-sum(v * math.log(v) for v in q if v > 0))
        assert found["places"][i].item() == pytest.approx(math.exp(found["entropy"][i].item()) / n)
        assert found["used"][i].item() == pytest.approx((a > 1e-5 * a.max()).mean())
    assert found["gini"][6:].tolist() == pytest.approx([0.0] * 4, abs=1e-9)
    with pytest.raises(InputError, match="images, height, width"):
        score_complexity(maps[0])


def test_complexity_equals_scipy_and_has_its_extremes():
    stats = pytest.importorskip("scipy.stats")
    maps = ten_maps()[:4]
    assert entropy(maps).tolist() == pytest.approx([stats.entropy(m.double().abs().flatten().numpy()) for m in maps])
    one, even = torch.zeros(1, 100), torch.ones(1, 100)
    one[0, 3] = 1
    assert gini(one).item() == pytest.approx(0.99, abs=1e-4)
    assert gini(even).item() == pytest.approx(0, abs=1e-12)
    assert (effective_complexity(one).item(), effective_complexity(even).item()) == (0.01, 1.0)


def _slow_ranks(v):
    return np.array([(v < x).sum() + ((v == x).sum() + 1) / 2 for x in v])


def test_rank_correlations_follow_the_formulas():
    a, b = ten_maps(0)[:6], ten_maps(5)[:6].flip(0)
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


def test_rank_correlations_equal_scipy():
    stats = pytest.importorskip("scipy.stats")
    a, b = ten_maps(0)[:6], ten_maps(5)[:6].flip(0)
    flat = [(x.numpy(), y.numpy()) for x, y in zip(a.flatten(1), b.flatten(1), strict=True)]
    assert spearman(a, b).tolist() == pytest.approx([stats.spearmanr(x, y).statistic for x, y in flat])
    assert kendall(a, b).tolist() == pytest.approx([stats.kendalltau(x, y).statistic for x, y in flat])


def test_top_overlap_counts_positions():
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
    maps = {"c": ten_maps(2), "a": ten_maps(0), "b": ten_maps(1)}
    scores = AgreementScores()
    scores.add(image_ids(10), score_agreement(maps))
    assert scores.methods == ("a", "b", "c")
    matrix = scores.matrix()
    assert np.allclose(matrix, matrix.T)
    assert matrix[0, 2] == pytest.approx(spearman(maps["a"][:6], maps["c"][:6]).mean().item())
    assert scores.matrix("top")[1, 2] == pytest.approx(top_overlap(maps["b"][:6], maps["c"][:6]).mean().item())
    with pytest.raises(InputError, match="one shape"):
        score_agreement({"a": torch.rand(1, 2, 2), "b": torch.rand(1, 2, 3)})


PAIRS = ten_maps(0)[:, None].repeat(1, 2, 1, 1)
CASES = {
    SegmentationScores: lambda i: score_segmentation(ten_maps()[i], ten_masks()[i]),
    MultiClassSegmentationScores: lambda i: count_confusions(
        ten_maps()[i][:, None], torch.ones(len(i), 1).long(), ten_masks()[i], count=2
    ),
    PointingScores: lambda i: score_pointing(ten_maps()[i], ten_masks()[i]),
    SelectivityScores: lambda i: score_selectivity(
        PAIRS[i], torch.stack([ten_masks()[i] == 0, ten_masks()[i] == 1], 1)
    ),
    ComplexityScores: lambda i: score_complexity(ten_maps()[i]),
    AgreementScores: lambda i: score_agreement({"a": ten_maps(0)[i], "b": ten_maps(1)[i]}),
}


@pytest.mark.parametrize("kind", CASES, ids=lambda k: k.__name__)
def test_accumulators_merge_in_any_order(kind):
    ids = image_ids(10)

    def part(indices):
        scores = kind()
        scores.add([ids[i] for i in indices], CASES[kind](list(indices)))
        return scores

    def same(a, b):
        return repr(a) == repr(b)  # bit-identical, and NaN equals NaN

    whole = part(range(10)).summary()
    assert "nan" not in repr(whole)
    assert same((part([3, 0, 9]) + part([1, 2]) + part([8, 7, 6, 5, 4])).summary(), whole)
    assert same((part([8, 7, 6, 5, 4]).merge(part([1, 2])) + part([0, 9, 3])).summary(), whole)
    left, right = part([0, 1]), part(range(2, 10))
    assert same((kind() + left + (right + kind())).summary(), whole)
    assert len(left) == 2, "merging must not change the parts"
    with pytest.raises(InputError, match="added twice"):
        left + part([1, 2])
    with pytest.raises(InputError, match="more than once"):
        part([0, 0])


def test_accumulators_reject_other_scores():
    a, b = SampleScores(), SampleScores()
    a.add(["x"], {"hit": [1.0]})
    b.add(["y"], {"miss": [1.0]})
    with pytest.raises(InputError, match="differ from those added before in hit, miss"):
        a + b
    with pytest.raises(InputError, match="expected one value of each score per id"):
        a.add(["z"], {"hit": [1.0, 0.0]})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
def test_scores_are_the_same_on_an_accelerator():
    maps, masks = ten_maps(0, 64), ten_masks(1, 64)
    both = torch.stack([maps, maps.flip(0)], 1)
    classes, pair = torch.tensor([[1, 2]] * 10), torch.stack([masks == 0, masks == 1], 1)
    scores = {
        "segmentation": lambda d: score_segmentation(maps.to(d), masks),
        "confusions": lambda d: count_confusions(both.to(d), classes, masks),
        "pointing": lambda d: score_pointing(maps.to(d), masks),
        "selectivity": lambda d: score_selectivity(both.to(d), pair),
        "complexity": lambda d: score_complexity(maps.to(d)),
        "agreement": lambda d: score_agreement({"a": maps.to(d), "b": maps.flip(1).to(d)}),
    }
    for name, score in scores.items():
        here, there = score("cpu"), score("cuda")
        for column, values in here.items():
            assert there[column].is_cuda
            close = torch.allclose(values.double(), there[column].cpu().double(), atol=1e-9, equal_nan=True)
            assert close, f"{name}: {column}"


def test_adapters_equal_explain():
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
    with pytest.raises(InputError, match=r"expected \(N, 1, height, width\)"):
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
    assert score_pointing(as_maps(cams), torch.ones(2, 8, 8))["energy"].tolist() == pytest.approx([1.0, 1.0])
    with pytest.raises(InputError, match="attributions have shape"):
        as_maps(np.ones(3))
    with pytest.raises(InputError, match="sign"):
        as_maps(cams, "plus")


def test_the_public_names_exist_and_the_docs_use_only_these():
    assert all(hasattr(vitrail.scores, name) for name in vitrail.scores.__all__)
    assert len(set(vitrail.scores.__all__)) == len(vitrail.scores.__all__)
    root = Path(__file__).resolve().parents[2]
    for page in (root / "README.md", *(root / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?:from|import) vitrail\.scores\.\w", text), f"{page.name} imports a submodule of scores"
        blocks = re.findall(r"from vitrail\.scores import (\([^)]*\)|.+)", text)
        names = {name for block in blocks for name in re.findall(r"\w+", block)}
        assert names <= set(vitrail.scores.__all__), page.name
