"""ViT-CX between paper and program: bundles and single options, mask counts, mask similarity, overdetermination."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vitrail
from vitrail.bench.report.mask_counts import count_masks, mask_statistic
from vitrail.capture.structure import read_structure
from vitrail.errors import InputError, OptionError
from vitrail.methods import find
from vitrail.methods._masks import mean_similarity, similarity, stretched
from vitrail.scores import OverdeterminationScores, score_overdetermination
from vitrail.testing import tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def grid(spec, **options):
    return vitrail.explain(tiny_vit(seed=1), IMAGES, spec, target=[[0, 2]], **options).grid


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bundle", "features", "cluster", "noise"),
    [("paper", "attention", "mean", "shared"), ("released", "norm1", "sum", "per_mask")],
)
def test_bundles_are_their_options(bundle, features, cluster, noise):
    spelled = grid(f"vit_cx:mode={bundle},features={features},cluster={cluster},noise={noise},delta=0.3")
    assert torch.equal(grid(f"vit_cx:{bundle},delta=0.3"), spelled)


def test_each_option_changes_the_map_alone():
    released = grid("vit_cx:delta=0.3")
    changed = [grid(f"vit_cx:delta=0.3,{o}") for o in ("features=attention", "features=skip", "features=block",
                                                       "cluster=mean", "noise=shared", "linkage=single")]  # fmt: skip
    maps = [released, *changed]
    assert not any(torch.equal(a, b) for i, a in enumerate(maps) for b in maps[:i])


def test_feature_maps_are_those_of_the_last_block():
    """In the order of computation: the norm, the attention's branch, its sum with the stream, the block's output."""
    from vitrail.capture.inputs import ModelInputs
    from vitrail.methods.probe import Probe

    model, seen = tiny_vit().double(), {}
    last, images = model.blocks[-1], IMAGES.double()
    handles = [
        last.norm1.register_forward_hook(lambda _, args, out: seen.update(X=args[0], Y=out)),
        last.register_forward_hook(lambda _, __, out: seen.update(out=out)),
    ]
    model(images)
    for handle in handles:
        handle.remove()
    inputs = ModelInputs((images,))
    probe = Probe(model, inputs, read_structure(model, inputs), lambda *_: torch.zeros(1), 1)
    maps = {kind: probe.features(kind).flatten(2).mT for kind in ("Y", "branch", "sum", "out")}
    assert torch.allclose(maps["Y"], seen["Y"][:, 1:])
    assert torch.allclose(maps["sum"], seen["X"][:, 1:] + maps["branch"])
    assert torch.allclose(maps["out"], seen["out"][:, 1:])


@pytest.mark.parametrize(
    "options", [{"features": "norm2"}, {"cluster": "max"}, {"noise": "none"}, {"linkage": "ward"}, {"mode": "both"}]
)
def test_unknown_choices_are_refused(options):
    with pytest.raises(OptionError, match="is not one of"):
        grid("vit_cx", **options)


# -- masks -------------------------------------------------------------------------------------------------------------


def test_mean_similarity_is_the_mean_over_pairs():
    grids = torch.rand(5, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    masks = stretched(grids, (16, 16), lambda count: iter([slice(0, count)]))
    big = masks[:].flatten(1)
    cosines = [float(torch.cosine_similarity(big[i], big[j], 0)) for i in range(5) for j in range(i + 1, 5)]
    assert mean_similarity(masks) == pytest.approx((np.mean(cosines), max(cosines)))
    assert similarity(masks).shape == (5, 5)
    e = vitrail.explain(tiny_vit(seed=1), IMAGES, "vit_cx", target=1, keep=True)
    before = [one["before"]["mean"] for one in e.intermediates["similarity"][0]]
    assert all(-1 <= value <= 1 for value in before)


@pytest.mark.parametrize("spec", ["vit_cx", "vit_cx:3", "vit_cx:draws=2,antithetic=true", "vit_cx:2,random_masks=7"])
def test_masks_are_counted_by_the_images_evaluated(spec):
    """All images a method evaluates are those of its masks, so their number is a count of the masks."""
    evaluated = []
    vitrail.explain(tiny_vit(seed=1), IMAGES[:1], spec, target=1, advance=evaluated.append)
    kept = vitrail.explain(tiny_vit(seed=1), IMAGES[:1], spec, target=1, keep=True).intermediates["count"]
    _, method, options = find(spec)
    assert sum(evaluated) == method.evaluations_per_mask(options) * kept[0][0]


def test_counted_masks_of_a_run():
    pl = pytest.importorskip("polars")
    rows = [("m", "d", spec, "explain", image, n)
            for spec, counts in {"vit_cx": (120, 132), "vit_cx:3": (60, 66), "rollout": (1, 1)}.items()
            for image, n in zip("ab", counts, strict=True)]  # fmt: skip
    rows += [("m", "d", "vit_cx", "vitcx", "a", 999)]
    names = ["model", "dataset", "method", "protocol", "image", "forwards"]
    run = SimpleNamespace(costs=lambda: pl.DataFrame(rows, schema=names, orient="row").lazy())
    for spec in ("vit_cx", "vit_cx:3"):
        counts = count_masks(run, "m", "d", spec)
        assert counts.tolist() == [60, 66]
        assert mask_statistic(counts, "masks").value == 63
        assert mask_statistic(counts, "masks_std").value == pytest.approx(3)
    assert mask_statistic(count_masks(run, "m", "d", "rollout"), "masks") is None


# -- overdetermination -------------------------------------------------------------------------------------------------


def test_overdetermination_of_a_data_set():
    impacts = [torch.tensor([0.95, 1.0, 0.99]), torch.tensor([0.1, 0.9]), torch.tensor([0.91])]
    scores = OverdeterminationScores()
    scores.add(["a", "b"], score_overdetermination(impacts[:2]))
    other = OverdeterminationScores()
    other.add(["c"], score_overdetermination(impacts[2:]))
    found = (other + scores).summary()
    variances = [float(np.var([0.95, 1.0, 0.99])), 0.0]
    assert found["share"] == pytest.approx(2 / 3)
    assert found["variance"] == pytest.approx(np.mean(variances), rel=1e-5)
    assert (found["images"], found["masks"]) == (3, 2.0)
    with pytest.raises(InputError, match="image 1"):
        score_overdetermination([torch.ones(2), torch.ones(0)])
    none = OverdeterminationScores()
    none.add(["b"], score_overdetermination(impacts[1:2]))
    assert np.isnan(none.summary()["variance"])


def test_impacts_of_vit_cx_are_what_the_score_takes():
    e = vitrail.explain(tiny_vit(seed=1), IMAGES, "vit_cx", target=1, keep=True)
    impacts = [one[0] for one in e.intermediates["impact"][0]]
    found = score_overdetermination(impacts)
    assert found["masks"].tolist() == [float(n) for n in e.intermediates["count"][0]]
    assert torch.allclose(found["mean"], torch.stack([own.double().mean() for own in impacts]))


@pytest.mark.slow
def test_report_sets_the_number_of_masks_beside_the_paper(tmp_path):
    pytest.importorskip("pydantic")
    from tests.bench.bench_helpers import open_store
    from vitrail.bench.report.paper_comparison import compare_with_paper
    from vitrail.bench.report.run_folder import Run

    text = """
name = "masks"
paper = "vitcx_table2"
models = ["scenes"]
methods = ["vit_cx", "vit_cx:3"]
controls = false
protocols = ["pointing"]
dataset = { name = "scenes", options = { split = "test", count = 2 } }
"""
    store = open_store(text, tmp_path / "runs", tmp_path)
    for task in store.missing():
        task.perform("cpu")
    store.export()
    (table,) = compare_with_paper(Run(store.folder), []).tables
    cells = [row.cells["Number of masks, mean"] for row in table.rows if row.method in ("vit_cx", "vit_cx:3")]
    assert [cell.published_text for cell in cells] == ["70.0", "70.0"]
    assert cells[0].ours.value == cells[1].ours.value > 1, "both cluster the same maps"
