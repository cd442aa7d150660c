"""Perturbation methods (Occlusion, RISE, Score-CAM, ViT-CX): common properties, and exactness of ViT-CX's shortcuts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import vitrail
import vitrail.methods.occlusion
import vitrail.methods.rise
import vitrail.methods.scorecam
import vitrail.methods.vit_cx
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.errors import NotApplicableError, OptionError
from vitrail.methods._masks import joined, similarity, stretched
from vitrail.methods.occlusion import occlusion
from vitrail.methods.probe import Probe
from vitrail.methods.registry import find
from vitrail.methods.rise import RandomMasks, rise
from vitrail.methods.scorecam import scorecam
from vitrail.methods.vit_cx import vit_cx
from vitrail.testing import tiny_vit

SPECS = [
    "occlusion", "occlusion:2x2", "rise:masks=7", "scorecam", "scorecam:official", "scorecam:softmax", "vit_cx",
    "vit_cx:paper", "vit_cx:1", "vit_cx:2,random_masks=7", "vit_cx:3", "vit_cx:4", "vit_cx:5",
    "vit_cx:draws=2,antithetic=true",
]  # fmt: skip


def perturbed_weights(model: torch.nn.Module) -> torch.nn.Module:
    """The model in double precision with noise on its weights, so that no map is trivial."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.double().eval()


def timm_vit() -> torch.nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5)


def timm_deit() -> torch.nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=5)


def timm_swin() -> torch.nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        img_size=32, patch_size=4, window_size=2, embed_dim=8, depths=(2, 2, 2), num_heads=(2, 2, 2), num_classes=5
    )


def torchvision_swin() -> torch.nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 8, [2, 2, 2], [2, 2, 2], [2, 2], num_classes=5)


def hf_swin() -> torch.nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    return SwinForImageClassification(
        SwinConfig(image_size=32, patch_size=4, window_size=2, embed_dim=8, depths=[2, 2, 2], num_heads=[2, 2, 2],
                   num_labels=5)
    )  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return perturbed_weights(tiny_vit())


@pytest.fixture(scope="module")
def images():
    return torch.randn(3, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def probe(model, images, classes=(0, 3), **options) -> Probe:
    """A probe for the same classes of every image, as ``explain`` makes it."""
    model_inputs = ModelInputs((images,))

    def scorer(output, owner, kind):
        return (output if kind == "logit" else output.softmax(-1))[:, list(classes)]

    return Probe(model, model_inputs, read_structure(model, model_inputs), scorer, len(classes), **options)


def chunks_of_five(count: int):
    return iter([slice(i, min(i + 5, count)) for i in range(0, count, 5)])


# -- masks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "size"), [((4, 4), (32, 32)), ((3, 5), (24, 40)), ((7, 7), (30, 61))])
@pytest.mark.parametrize("aligned", [False, True])
def test_similarity_on_the_grid_equals_that_of_full_masks(grid, size, aligned):
    features = torch.randn(23, *grid, dtype=torch.float64) * 3 + 40
    masks = stretched(features, size, chunks_of_five, aligned)
    big = F.interpolate(features[None], size, mode="bilinear", align_corners=aligned)[0].flatten(1)
    low, high = big.amin(1, keepdim=True), big.amax(1, keepdim=True)
    direct = (big - low) / (high - low)
    assert torch.allclose(masks[slice(None)].flatten(1), direct, rtol=0, atol=1e-12)
    unit = direct / direct.norm(dim=1, keepdim=True)
    assert torch.allclose(similarity(masks), unit @ unit.T, rtol=0, atol=1e-10)


def test_cluster_masks_equal_those_from_full_masks():
    features = torch.randn(12, 4, 4, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 2, 1, 1, 0, 2, 3, 0, 0, 1])
    single = stretched(features, (32, 48), chunks_of_five)
    full = torch.stack([single[slice(None)][labels == k].sum(0) for k in range(4)])
    low, high = full.amin((1, 2), keepdim=True), full.amax((1, 2), keepdim=True)
    assert torch.allclose(
        joined(single, labels, False, chunks_of_five)[slice(None)], (full - low) / (high - low), atol=1e-12
    )
    mean = full / labels.bincount()[:, None, None]
    assert torch.allclose(joined(single, labels, True, chunks_of_five)[slice(None)], mean, atol=1e-12)


def test_constant_feature_maps_are_excluded():
    features = torch.randn(5, 4, 4)
    features[1], features[3] = 0.1, 7.3
    assert len(stretched(features, (30, 30), chunks_of_five)) == 3
    assert len(stretched(features[[1, 3]], (30, 30), chunks_of_five)) == 0


def test_opposite_maps_in_one_cluster_cancel():
    features = torch.rand(1, 4, 4, dtype=torch.float64)
    single = stretched(torch.cat([features, 1 - features]), (16, 16), chunks_of_five)
    assert torch.allclose(
        joined(single, torch.zeros(2, dtype=torch.long), False, chunks_of_five)[slice(None)], torch.zeros(1).double()
    )


def test_random_masks_are_crops_of_upsampled_grids():
    masks = RandomMasks.draw(6, 4, 0.5, 3, torch.zeros(1, 3, 30, 41, dtype=torch.float64))
    generator = torch.Generator().manual_seed(3)
    grids = (torch.rand(6, 4, 4, generator=generator) < 0.5).double()
    shifts = (torch.rand(6, 2, generator=generator) * torch.tensor([8, 11])).floor().int()
    big = F.interpolate(grids[:, None], (40, 55), mode="bilinear", align_corners=False)[:, 0]
    expected = torch.stack([b[y : y + 30, x : x + 41] for b, (y, x) in zip(big, shifts.tolist(), strict=True)])
    assert torch.allclose(masks[slice(None)], expected, atol=1e-12)


# -- all methods ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [timm_vit, timm_deit, timm_swin, torchvision_swin, hf_swin])
def test_perturbation_methods_work_on(make, images):
    model = perturbed_weights(make())
    specs = ["occlusion", "rise:masks=7", "scorecam", "vit_cx", "vit_cx:paper"]
    found = vitrail.explain(model, images[:2], methods=specs, target=[[0, 3]])
    for label, explanation in found.items():
        assert explanation.grid.shape == (2, 2, 32, 32), label
        assert torch.isfinite(explanation.grid).all(), label
        assert not torch.allclose(explanation.grid[:, 0], explanation.grid[:, 1]), label


@pytest.mark.parametrize("make", [timm_swin, torchvision_swin, hf_swin])
@pytest.mark.parametrize("kind", ["Y", "branch"])
def test_swin_features_are_of_the_last_block_of_the_penultimate_stage(make, images, kind):
    assert probe(perturbed_weights(make()), images[:1]).features(kind, stage=-2).shape == (1, 16, 4, 4)


@pytest.mark.parametrize("spec", SPECS)
def test_maps_do_not_depend_on_chunk_or_batch_size(model, images, spec):
    _, method, options = find(spec)
    maps = [method.apply(probe(model, images, max_batch=size), options) for size in (3, 32)]
    assert torch.allclose(*maps, rtol=1e-10, atol=1e-12)
    alone = torch.cat([method.apply(probe(model, images[i : i + 1]), options) for i in range(3)])
    assert torch.allclose(maps[1], alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", ["rise:masks=7", "vit_cx", "vit_cx:paper", "vit_cx:2,random_masks=7"])
def test_maps_depend_on_the_seed(model, images, spec):
    _, method, options = find(spec)
    one, again, other = (method.apply(probe(model, images[:1]), options | {"seed": s}) for s in (4, 4, 5))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize(
    "spec",
    ["occlusion:window=5", "occlusion:window=0", "occlusion:stride=0", "occlusion:stride=2", "rise:masks=0",
     "rise:cells=0", "rise:keep=1", "rise:keep=0", "rise:precision=half", "rise:seed=-1", "rise:masks=2.5",
     "scorecam:scoring=mean", "vit_cx:mode=both", "vit_cx:masks=20", "vit_cx:delta=0", "vit_cx:sigma=-1",
     "vit_cx:draws=0", "vit_cx:3,draws=2", "vit_cx:5,antithetic=true", "vit_cx:2,random_masks=0"],
)  # fmt: skip
def test_invalid_options_raise_before_any_forward_pass(model, images, spec):
    sizes = []
    with pytest.raises(OptionError):
        vitrail.explain(model, images, spec, advance=sizes.append)
    assert not sizes


def test_perturbation_methods_do_not_apply_to_texts():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                     intermediate_size=16)  # fmt: skip
    words = {"input_ids": torch.randint(3, 50, (1, 6))}
    for method in ("occlusion", "rise", "scorecam", "vit_cx"):
        with pytest.raises(NotApplicableError):
            vitrail.explain(transformers.BertForSequenceClassification(config), words, method)


# -- single methods ------------------------------------------------------------------------------------------------


def test_occlusion_leaves_uncovered_pixels_at_zero(model, images):
    maps = occlusion(probe(model, images[:1]), window=3, stride=2)  # the next window would leave the grid of 4×4
    covered = torch.zeros(32, 32, dtype=torch.bool)
    covered[:24, :24] = True
    assert (maps[..., ~covered] == 0).all()
    assert (maps[..., covered] != 0).all()


def test_occlusion_covers_images_whose_size_is_not_a_multiple_of_16():
    model = perturbed_weights(torchvision_swin())
    maps = occlusion(probe(model, torch.randn(1, 3, 40, 40, dtype=torch.float64)))
    assert (maps[..., 36:, 36:] != 0).all()


def test_rise_finds_the_only_pixel_a_model_reads(model, images):

    class Reader(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return torch.stack([x[:, 0, 9, 20], 0 * self.inner(x)[:, 0]], 1)

    ones = torch.ones(1, 3, 32, 32, dtype=torch.float64)
    model_inputs = ModelInputs((ones,))
    reading = Probe(
        Reader(), model_inputs, read_structure(model, model_inputs), lambda output, owner, kind: output[:, :1], 1
    )
    (top,) = rise(reading, masks=600)[0, 0].flatten().topk(1).indices
    row, column = divmod(int(top), 32)
    assert abs(row - 9) <= 4
    assert abs(column - 20) <= 4


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_rise_in_bfloat16_is_close_to_float32(model, images):
    small = vitrail.testing.tiny_vit()
    exact, near = (
        rise(probe(small, images[:1].float()), masks=40, precision=precision) for precision in ("model", "bfloat16")
    )
    assert near.dtype == torch.float32
    assert 0 < float((exact - near).abs().max()) < 0.02 * float(exact.abs().max())


def test_vit_cx_without_clustering_debias_and_coverage_is_scorecam(model, images):
    ours = vit_cx(probe(model, images), masks="all", debias=False, coverage=False)
    assert torch.allclose(ours, scorecam(probe(model, images)), rtol=1e-12, atol=1e-12)


def test_without_noise_the_impact_is_the_plain_score(model, images):
    notes: dict = {}
    vit_cx(probe(model, images, notes=notes), masks="all", sigma=0.0)
    for impact, plain in zip(notes["impact"], notes["impact_plain"], strict=True):
        assert torch.allclose(impact, plain, rtol=0, atol=1e-14)


@pytest.mark.parametrize("debias", [False, True])
def test_paper_and_released_coverage_are_proportional(model, images, debias, monkeypatch):
    """With the same masks and noise the paper's map is the released one times the squared number of masks."""
    shared_probe = probe(model, images)
    same = shared_probe.features("Y")
    monkeypatch.setattr(Probe, "features", lambda *_, **__: same)
    paper, released = (
        vit_cx(shared_probe, mode=mode, masks="all", debias=debias, sigma=0.0) for mode in ("paper", "released")
    )
    assert torch.allclose(paper, released * same.shape[1] ** 2, rtol=1e-10)


def test_keep_returns_masks_impact_and_coverage(model, images):
    e = vitrail.explain(model, images, "vit_cx", target=[[0, 3]], draws=3, keep=True)
    (counts,) = e.intermediates["count"]
    width = vitrail.explain(model, images, "vit_cx:1", keep=True).intermediates["count"][0][0]
    for i, count in enumerate(counts):
        assert e.intermediates["masks"][0][i].shape == (count, 32, 32)
        assert float(e.intermediates["masks"][0][i].min()) >= 0
        assert float(e.intermediates["masks"][0][i].max()) <= 1
        assert len(e.intermediates["cluster_sizes"][0][i]) == count
        assert int(e.intermediates["cluster_sizes"][0][i].sum()) == width
        assert e.intermediates["impact"][0][i].shape == e.intermediates["impact_plain"][0][i].shape == (2, count)
        assert torch.allclose(e.intermediates["coverage"][0][i], e.intermediates["masks"][0][i].sum(0))
        alike = e.intermediates["similarity"][0][i]
        assert alike["after"]["max"] <= alike["before"]["max"] <= 1 + 1e-12
        assert e.intermediates["stability"][0][i].shape == (2,)


def test_vit_cx_takes_two_forward_passes_per_mask_and_one_for_the_image(model, images):
    sizes: list[int] = []
    vit_cx(probe(model, images[:1], advance=sizes.append), masks="random", random_masks=9)
    assert sum(sizes) == 1 + 2 * 9


@pytest.mark.parametrize("spec", ["vit_cx", "vit_cx:paper", "vit_cx:2,random_masks=9", "scorecam", "occlusion"])
def test_the_unperturbed_image_takes_one_forward_pass(model, images, spec):
    vitrail.explain(model, images[:2], spec)  # also reads the structure of the model, which is cached
    sizes, reported = [], []
    hook = model.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    vitrail.explain(model, images[:2], spec, advance=reported.append)
    hook.remove()
    assert sum(sizes) == 2 + sum(reported)


@pytest.mark.parametrize("spec", ["vit_cx", "vit_cx:paper", "scorecam", "occlusion"])
def test_features_of_the_shared_pass_equal_those_of_a_separate_pass(model, images, spec):
    shared = vitrail.explain(model, images, spec).grid
    separate = vitrail.explain(model, images, methods=[spec, "rollout"])[spec].grid  # features are not kept here
    assert torch.allclose(shared, separate, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("better", [{"draws": 8}, {"antithetic": True}])
def test_more_noise_draws_give_more_stable_maps(model, images, better):
    def spread(**options) -> float:
        maps = [vit_cx(probe(model, images[:1]), delta=0.3, sigma=1.0, seed=s, **options) for s in range(6)]
        return float(torch.stack(maps).std(0).mean())

    assert spread(**better) < 0.8 * spread()


def test_stability_is_the_correlation_between_noise_draws(model, images):
    notes: dict = {}
    vit_cx(probe(model, images[:1], notes=notes), mode="paper", sigma=0.5, draws=2)
    one = vit_cx(probe(model, images[:1]), mode="paper", sigma=0.5, draws=1)[0]
    both = vit_cx(probe(model, images[:1]), mode="paper", sigma=0.5, draws=2)[0]
    pairs = zip(one.flatten(1), (2 * both - one).flatten(1), strict=True)
    expected = torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs])
    assert torch.allclose(notes["stability"][0], expected)


def test_a_single_cluster_and_constant_features_give_finite_maps(model, images, monkeypatch):
    assert torch.isfinite(vit_cx(probe(model, images[:1]), delta=5.0)).all()
    monkeypatch.setattr(Probe, "features", lambda *_, **__: torch.ones(1, 6, 4, 4, dtype=torch.float64))
    for options in ({}, {"masks": "all"}, {"mode": "paper"}, {"debias": False}):
        assert (vit_cx(probe(model, images[:1], notes={}), **options) == 0).all()
    for scoring in ("vitcx", "official", "softmax"):
        assert (scorecam(probe(model, images[:1]), scoring=scoring) == 0).all()
