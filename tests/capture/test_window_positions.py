"""Attention inside windows, stitched into attention between all patches."""

from __future__ import annotations

import pytest
import torch

import vitrail
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.perturbed_features import PASSES
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import ALL
from vitrail.capture.window_positions import find_positions, stitch
from vitrail.errors import ModelError, NotApplicableError
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.tools.diagnose import diagnose

WINDOW = 7


def timm_swin():
    import timm

    return timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, embed_dim=24, depths=(2, 2), num_heads=(2, 3), num_classes=4
    )


def torchvision_swin():
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer([4, 4], 24, [2, 3], [2, 3], [WINDOW, WINDOW], num_classes=4)


def hf_swin():
    import transformers

    return transformers.SwinForImageClassification(
        transformers.SwinConfig(
            image_size=56, patch_size=4, embed_dim=24, depths=[2, 2], num_heads=[2, 3], num_labels=4
        )
    )


@pytest.fixture(params=[timm_swin, torchvision_swin, hf_swin])
def swin(request):
    torch.manual_seed(2)
    return request.param().double().eval()


def test_patches_are_found_where_rolling_and_cutting_put_them(swin):
    model_inputs = ModelInputs((torch.randn(1, 3, 56, 56, dtype=torch.float64),))
    positions = find_positions(swin, model_inputs, read_structure(swin, model_inputs))
    places = positions.indices

    def cut(shift):
        grid = torch.arange(14 * 14).view(14, 14).roll((-shift, -shift), (0, 1))
        return grid.view(2, WINDOW, 2, WINDOW).permute(0, 2, 1, 3).reshape(4, WINDOW**2)

    assert torch.equal(places[0], cut(0))
    assert torch.equal(places[1], cut(WINDOW // 2))
    assert places[2].shape == (1, 49)
    assert positions.grids[:4] == ((14, 14), (14, 14), (7, 7), (7, 7))


def test_stitched_rows_sum_to_one_and_read_everything(swin):
    images = torch.randn(2, 3, 56, 56, dtype=torch.float64)
    model_inputs = ModelInputs((images,))
    structure = read_structure(swin, model_inputs)
    with forward_pass(swin, model_inputs, structure, [{"A": ALL, "A_mean": ALL}]) as one:
        trace = stitch(one.trace(), find_positions(swin, model_inputs, structure))
    for block in trace.blocks:
        assert torch.allclose(block.A_mean.sum(-1), torch.ones_like(block.A_mean[..., 0]))
        assert torch.allclose(block.A.mean(1), block.A_mean)
    assert [b.pool for b in trace.blocks].count(True) == 1
    found = vitrail.explain(swin, images, methods=["rollout", "transformer_mm"], target=[[0, 1]], stitch=True)
    assert found["rollout"].grid.shape == (2, 2, 14, 14)
    assert torch.allclose(found["rollout"].grid.sum((-2, -1)), torch.ones(2, 2, dtype=torch.float64))
    assert not torch.allclose(found["transformer_mm"].grid[:, 0], found["transformer_mm"].grid[:, 1])


def test_stitching_is_asked_for_and_only_where_it_helps():
    images = torch.randn(1, 3, 56, 56)
    with pytest.raises(NotApplicableError, match="or stitch=True"):
        vitrail.explain(timm_swin(), images, "rollout")
    with pytest.raises(NotApplicableError, match="gradtoken does not apply"):
        vitrail.explain(timm_swin(), images, "gradtoken", stitch=True)


def test_the_doctor_finds_windows():
    model = timm_swin()
    found = diagnose(LoadedModel(model, Preprocess((56, 56)), name="swin"))
    assert "windowed" in " ".join(value for _, value in found.properties)
    works = {name for name, works, _ in found.methods if works}
    assert {"gradcam_features", "gradient_x_input", "rise", "vit_cx"} <= works
    assert not {"rollout", "gradtoken", "vtranm"} & works


class Checked(torch.nn.Module):
    """A model that checks the range of its pixels."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        if x.min() < 0 or x.max() > 1:
            raise ValueError("pixels must be between 0 and 1")
        return self.inner(x)


def test_a_model_that_refuses_noise_is_measured_on_shuffled_pixels():
    torch.manual_seed(2)
    inner, image = timm_swin().double().eval(), torch.rand(1, 3, 56, 56, dtype=torch.float64)
    maps = [
        vitrail.explain(model, image, "transformer_mm", target=1, stitch=True).grid for model in (inner, Checked(inner))
    ]
    assert torch.allclose(*maps)
    with pytest.raises(ModelError, match="pixels must be between 0 and 1"):
        vitrail.explain(Checked(inner), image - 2, "transformer_mm", target=1, stitch=True)


class Binary(torch.nn.Module):
    """A model of black and white pixels."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        if not bool(((x == 0) | (x == 1)).all()):
            raise ValueError("pixels must be 0 or 1")
        return self.inner(x)


def few_distinct_patches():
    return (torch.rand(1, 3, 56, 56, generator=torch.Generator().manual_seed(2)) > 0.97).double()


def test_an_image_with_few_distinct_patches_is_no_source_of_positions():
    """Rows that are alike do not show which of them a window holds."""
    torch.manual_seed(2)
    with pytest.raises(NotApplicableError, match="where their patches come from does not show"):
        vitrail.explain(Binary(timm_swin().double().eval()), few_distinct_patches(), "rollout", target=1, stitch=True)


def test_a_model_that_checks_its_pixels_is_measured_in_their_range():
    """Also on an image with few distinct patches; the order of patches is measured there too."""
    torch.manual_seed(2)
    inner, image = timm_swin().double().eval(), few_distinct_patches()
    maps = [vitrail.explain(model, image, "rollout", target=1, stitch=True).grid for model in (inner, Checked(inner))]
    assert torch.equal(*maps)
    matrix = reorder(inner, inner.patch_embed, torch.arange(14 * 14))
    for order in ORDERS.values():
        matrix.copy_(torch.eye(14 * 14)[order])
        with pytest.raises(NotApplicableError, match="not in the order of the image"):
            vitrail.explain(Checked(inner), image, "rollout", target=1, stitch=True)


def reorder(model, module, order):
    """Put what a module returns into another order, by a matrix that a call does not show; returns the matrix."""
    matrix, forward = torch.eye(len(order), dtype=torch.float64)[order], module.forward
    module.forward = lambda x: (matrix @ forward(x).flatten(1, 2)).view(1, 14, 14, -1)
    return matrix


RASTER = torch.arange(14 * 14).view(14, 14)
MIRRORED = RASTER.flip(1).flatten()
ORDERS = {
    "mirrored": MIRRORED,
    "rolled": RASTER.roll(1, 0).flatten(),
    "transposed": RASTER.T.flatten(),
    "permuted": torch.randperm(14 * 14, generator=torch.Generator().manual_seed(3)),
}


class CountedPasses(torch.nn.Module):
    """Counts the images that a model evaluates."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.images = inner, 0

    def forward(self, x):
        self.images += len(x)
        return self.inner(x)


def test_joining_windows_evaluates_a_bounded_number_of_images():
    torch.manual_seed(2)
    model, image = CountedPasses(timm_swin().eval()), torch.rand(1, 3, 56, 56)
    for _ in range(2):  # the first call measures the structure as well
        model.images = 0
        vitrail.explain(model, image, "rollout", target=1, stitch=True)
    assert PASSES < model.images <= PASSES + 4


@pytest.mark.parametrize("order", ORDERS)
def test_each_order_of_patches_is_refused_from_one_batch(order):
    torch.manual_seed(2)
    model, image = timm_swin().eval(), torch.randn(1, 3, 56, 56)
    embed = model.patch_embed.forward
    model.patch_embed.forward = lambda x: embed(x).flatten(1, 2)[:, ORDERS[order]].unflatten(1, (14, 14))
    with pytest.raises(NotApplicableError, match="not in the order of the image"):
        vitrail.explain(model, image, "rollout", target=1, stitch=True)


@pytest.mark.parametrize("method", ["rollout", "transformer_mm"])
def test_windows_of_patches_in_another_order_are_refused(method):
    torch.manual_seed(2)
    model, image = timm_swin().double().eval(), torch.rand(1, 3, 56, 56, dtype=torch.float64)
    matrix = reorder(model, model.patch_embed, torch.arange(14 * 14))
    vitrail.explain(model, image, method, target=1, stitch=True)
    matrix.copy_(matrix[MIRRORED])
    with pytest.raises(NotApplicableError, match="not in the order of the image"):
        vitrail.explain(model, image, method, target=1, stitch=True)


def test_windows_that_change_after_a_call_are_measured_again():
    image, maps = torch.rand(1, 3, 56, 56, dtype=torch.float64), []
    for first in (torch.arange(14 * 14), MIRRORED):
        torch.manual_seed(2)
        model = timm_swin().double().eval()
        matrix = reorder(model, model.layers[0].blocks[0].norm1, first)
        vitrail.explain(model, image, "rollout", target=1, stitch=True)
        matrix.copy_(torch.eye(14 * 14)[MIRRORED])
        maps.append(vitrail.explain(model, image, "rollout", target=1, stitch=True).grid)
    assert torch.equal(*maps)


@pytest.mark.parametrize("size", [(32, 72), (64, 80)])  # of 8 × 18 patches, as many as 12 × 12, and of 16 × 20
def test_windows_of_an_image_that_is_no_square(size):
    import timm

    torch.manual_seed(2)
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=size, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 3),
        num_classes=4,
    ).double().eval()  # fmt: skip
    image, grid = torch.rand(1, 3, *size, dtype=torch.float64), (size[0] // 4, size[1] // 4)
    found = vitrail.explain(model, image, "rollout", target=1, stitch=True)
    assert found.grid.shape == (1, 1, *grid)
    model_inputs = ModelInputs((image,))
    positions = find_positions(model, model_inputs, read_structure(model, model_inputs))
    assert positions.grids == (grid, grid, *[(grid[0] // 2, grid[1] // 2)] * 2)
