"""``explain(smooth=…)``: averages over mirrored, scaled and noisy copies of each image."""

from __future__ import annotations

import json
from itertools import product

import pytest
import torch

import vitrail
from vitrail.capture.layout import Area, Layout
from vitrail.errors import InputError, NotApplicableError, OptionError
from vitrail.pipeline.smoothing import FACTORS, Mirror, Smoothing
from vitrail.testing import quick, tiny_vit


def random_images(*size, count=2, seed=0):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mirror_blind_vit():
    """A model whose output for patches does not change when the image is mirrored, up to their order."""
    model = tiny_vit(pool=True).double()
    with torch.no_grad():
        model.position.zero_()
        model.embed.weight.copy_((model.embed.weight + model.embed.weight.flip(-1)) / 2)
    return model


@pytest.mark.parametrize(
    "size", [(16, 64), (64, 16), (19, 67), *(pytest.param(s, marks=pytest.mark.slow) for s in ((32, 32), (36, 38)))]
)
def test_mirrored_maps_come_back_to_their_place(size):
    """For a model that treats both sides alike, mirror images add nothing: the grid and its place are exact."""
    model, images = mirror_blind_vit(), random_images(*size)
    for method in ("transformer_mm", "gradcam_features"):
        found = vitrail.explain(model, images, method, target=1, smooth="flips")
        scaled = [vitrail.explain(model, images * f, method, target=1).grid for f in FACTORS]
        assert torch.allclose(found.grid, torch.stack(scaled).mean(0), rtol=0, atol=1e-14), method
    pixels = vitrail.explain(model, images, "gradient_x_input", target=1, smooth="flips").grid
    scaled = [vitrail.explain(model, images * f, "gradient_x_input", target=1).grid for f in FACTORS]
    assert pixels.shape[-2:] == images.shape[-2:]
    assert torch.allclose(pixels, torch.stack(scaled).mean(0), rtol=0, atol=1e-14)
    assert (pixels < 0).any(), "signed relevance keeps its sign"


def test_flips_are_the_mean_of_six_explanations():
    model, images = tiny_vit().double(), random_images(16, 64)
    classes = model(images).argmax(1)
    found = vitrail.explain(model, images, methods=["rollout", "transformer_mm", "attnlrp"], smooth="flips")
    for name, e in found.items():
        grids = []
        for mirrored, factor in product((False, True), FACTORS):
            changed = (images.flip(-1) if mirrored else images) * factor
            grid = vitrail.explain(model, changed, name, target=classes).grid
            grids.append(grid.flip(-1) if mirrored else grid)
        assert torch.allclose(e.grid, torch.stack(grids).mean(0), rtol=1e-12, atol=1e-14), name
        assert e.targets[:, 0].tolist() == classes.tolist()
        assert torch.equal(e.images, images)
        assert torch.allclose(e.logits, model(images))
        unsigned = e.maps.flatten(2)
        assert not e.signed or float(unsigned.abs().max()) == pytest.approx(1)
        assert e.signed or float(unsigned.min()) == 0


def test_noise_is_smoothgrad_for_a_gradient():
    """Averaging a gradient over noisy copies is SmoothGrad, with the same noise for the same seed."""
    model, images = tiny_vit().double(), random_images(32, 32)
    options = {"reduce": "sum", "target": 2}
    plain = {"samples": 1, "sigma": 0.0, **options}
    for seed, size in ((0, None), (3, 5)):
        found = vitrail.explain(
            model, images, "smoothgrad", smooth="noise", smooth_samples=4, smooth_noise=0.2, smooth_seed=seed,
            batch_size=size, **plain,
        )  # fmt: skip
        expected = vitrail.explain(model, images, "smoothgrad", samples=4, sigma=0.2, seed=seed, **options)
        assert torch.allclose(found.grid, expected.grid, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("smooth", ["flips", "noise"])
def test_batches_change_nothing(smooth):
    model, images = tiny_vit().double(), random_images(32, 32, count=3)
    target = [[0, 1], [2, 3], [vitrail.ClassGroup([1, 4]), 0]]
    methods = ["transformer_mm", "rise:masks=20"]
    given = {"methods": methods, "smooth": smooth, "smooth_samples": 3}
    whole = vitrail.explain(model, images, target=target, **given)
    for size in (1, 2, 4):
        some = vitrail.explain(model, images, target=target, batch_size=size, **given)
        for name in methods:
            assert torch.allclose(some[name].maps, whole[name].maps, atol=1e-6)
            assert some[name].targets.tolist() == whole[name].targets.tolist()
    sizes = []
    handle = model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    vitrail.explain(model, images, "rollout", target=1, smooth=smooth, smooth_samples=3, batch_size=2)
    handle.remove()
    assert max(sizes) == 2


def test_the_class_is_that_of_the_clean_image():
    """With noise so strong that copies are predicted otherwise, all copies explain the same class."""
    model, images = tiny_vit().double(), random_images(32, 32, count=1)
    own = int(model(images).argmax())
    strong = {"smooth": "noise", "smooth_samples": 6, "smooth_noise": 5.0}
    for target in (None, "top2"):
        free = vitrail.explain(model, images, "transformer_mm", target=target, **strong)
        assert int(free.targets[0, 0]) == own
        fixed = vitrail.explain(model, images, "transformer_mm", target=free.targets, **strong)
        assert torch.equal(free.grid, fixed.grid)
    function = vitrail.explain(model, images, "transformer_mm", target=lambda y: y[:, own], **strong)
    assert function.targets is None
    assert torch.allclose(function.grid, free.grid[:, :1])


@pytest.mark.slow
def test_every_method_takes_it():
    model, images = tiny_vit(), random_images(32, 32, count=1).float()
    found = vitrail.explain(model, images, methods=quick(), target=1, smooth="noise", smooth_samples=2)
    for name, e in found.items():
        assert e.maps.shape == (1, 1, 32, 32), name
        assert e.smoothing == Smoothing("noise", 2), name


@pytest.mark.slow
def test_windows_are_mirrored_too():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=24, depths=(2, 2),
                              num_heads=(2, 2), num_classes=5).eval()  # fmt: skip
    images = random_images(64, 64, count=1).float()
    for method, stitch in (("gradcam_features", False), ("rollout", True)):
        found = vitrail.explain(model, images, method, target=1, smooth="flips", stitch=stitch)
        one = vitrail.explain(model, images, method, target=1, stitch=stitch)
        assert found.grid.shape == one.grid.shape
        assert found.maps.shape == one.maps.shape


def test_the_manifest_and_checks_know_it(tmp_path):
    model, images = tiny_vit(), random_images(32, 32, count=1).float()
    e = vitrail.explain(model, images, "transformer_mm", target=1, smooth="noise", smooth_samples=3)
    stated = json.loads((e.save(tmp_path) / "manifest.json").read_text())["smoothing"]
    assert stated == {"smooth": "noise", "smooth_samples": 3, "smooth_noise": 0.15, "smooth_seed": 0}
    plain = vitrail.explain(model, images, "transformer_mm", target=1)
    assert "smoothing" not in plain.manifest()
    again = e.source.explain(images, {"transformer_mm": {}}, 1)["transformer_mm"]
    assert torch.equal(again.grid, e.grid), "a check computes smoothed maps again"
    checks = [one.check(tests=["class"], budget="full").forwards for one in (plain, e)]
    assert checks[1] - checks[0] == 1 + 3 * 3 - 3, "the cost of a check counts the copies"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"smooth": "blur"}, "smooth='blur' is not one of 'flips', 'noise' or None"),
        ({"smooth": "noise", "smooth_samples": 0}, "smooth_samples=0 must be an integer of at least 1"),
        ({"smooth": "noise", "smooth_noise": -1}, "smooth_noise=-1 is a standard deviation"),
        ({"smooth": "noise", "smooth_seed": True}, "smooth_seed=True must be an integer"),
        ({"smooth": "flips", "keep": True}, "keep=True does not go with smooth="),
    ],
)
def test_wrong_settings_are_named(given, message):
    with pytest.raises(OptionError, match=message):
        vitrail.explain(tiny_vit(), torch.zeros(1, 3, 32, 32), "rollout", **given)


def test_what_cannot_be_mirrored_is_refused():
    padded = Layout(prefix=0, grid=(3, 3), readout="mean", area=Area((0, 0), (48, 48)))
    with pytest.raises(NotApplicableError, match="pads its 40×40 images"):
        Mirror.of(torch.zeros(1, 3, 40, 40), padded)
    smaller = Layout(prefix=0, grid=(2, 2), readout="mean", area=Area((0, 0), (32, 32)))
    mirror = Mirror.of(torch.zeros(1, 3, 40, 40), smaller)
    with pytest.raises(NotApplicableError, match="5×5 grid covers more"):
        mirror.relevance(torch.zeros(1, 1, 5, 5))
    with pytest.raises(InputError, match="a text cannot be mirrored"):
        vitrail.explain(tiny_vit(), ["a text"], "rollout", tokenizer=object(), smooth="noise")
