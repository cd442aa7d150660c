"""Choice of blocks and principal components of methods on feature maps."""

from __future__ import annotations

import pytest
import torch

import vitrail
from vitrail.errors import OptionError
from vitrail.methods._blocks import principal_component
from vitrail.testing import tiny_vit

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
FEATURE_METHODS = ("gradcam_features", "gradcam", "cdam", "scorecam", "vit_cx")


@pytest.mark.parametrize("method", FEATURE_METHODS)
def test_a_block_that_does_not_exist_is_named_with_the_range(method):
    for block in (3, -4):
        with pytest.raises(OptionError, match=f"block={block} is out of range: this model has 3 blocks, 0 to 2"):
            vitrail.explain(tiny_vit(), IMAGES, method, target=1, block=block)


@pytest.mark.parametrize("block", ["first", 1.5, None, [], [0, True], "1+"])
def test_a_choice_that_is_none_is_named(block):
    with pytest.raises(OptionError, match=r"is no choice of blocks|must be a whole number or a word or a list"):
        vitrail.explain(tiny_vit(), IMAGES, "gradcam_features", target=1, block=block)


@pytest.mark.parametrize("method", FEATURE_METHODS)
def test_blocks_count_from_both_ends(method):
    def grid(**options):
        return vitrail.explain(tiny_vit(), IMAGES, method, target=1, **options).grid

    assert torch.equal(grid(), grid(block=-1))
    assert torch.equal(grid(block=1), grid(block=-2))
    assert not torch.allclose(grid(block=0), grid(block=-1))


def test_lists_and_names_mean_the_same():
    model = tiny_vit()
    named = vitrail.explain(model, IMAGES, "gradcam_features:block=0+-1", target=1)
    listed = vitrail.explain(model, IMAGES, "gradcam_features", target=1, block=[0, 2])
    assert torch.equal(named.grid, listed.grid)
    each = [vitrail.explain(model, IMAGES, "gradcam_features", target=1, block=b).grid for b in (0, 2)]
    scaled = [one / one.amax((2, 3), keepdim=True).clamp_min(1e-30) for one in each]
    assert torch.allclose(listed.grid, (scaled[0] + scaled[1]) / 2)


@pytest.mark.slow
def test_blocks_with_other_grids_are_enlarged_to_the_finest():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=24, depths=(2, 2),
                              num_heads=(2, 2), num_classes=5).eval()  # fmt: skip
    images = torch.randn(1, 3, 64, 64)
    shapes = {
        block: tuple(vitrail.explain(model, images, "gradcam_features", target=1, block=block).grid.shape[2:])
        for block in (0, 1, 3, "1+3")
    }
    assert shapes == {0: (16, 16), 1: (16, 16), 3: (8, 8), "1+3": (16, 16)}
    one = vitrail.explain(model, images, methods=["scorecam:block=0", "vit_cx:block=0,delta=0.5"], target=1)
    assert not any(bool(e.constant.any()) for e in one.values())


def test_a_model_without_attention_shows_one_feature_map():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 4, 4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )  # fmt: skip
    same = [vitrail.explain(model, IMAGES, "gradcam_features", target=2, block=b).grid for b in (-1, 0)]
    assert torch.equal(*same)
    for method in ("gradcam_features", "scorecam"):
        with pytest.raises(OptionError, match="only one feature map of this model is read"):
            vitrail.explain(model, IMAGES, method, target=2, block=1)


def test_the_component_agrees_with_the_sum_whatever_sign_the_decomposition_gives():
    channels = torch.randn(6, 5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = principal_component(channels)
    total = channels.sum(1)
    assert ((found * (total - total.mean(1, keepdim=True))).sum(1) >= 0).all()
    assert torch.allclose(principal_component(-channels), -found)
    centred = channels - channels.mean(2, keepdim=True)
    singular = torch.linalg.svdvals(centred)[:, 0]
    assert torch.allclose(found.norm(dim=1), singular), "its length is the largest singular value"


def test_padding_is_no_position():
    channels = torch.randn(1, 4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    valid = torch.tensor([[True] * 5 + [False] * 2])
    padded = principal_component(channels * valid, valid)
    assert torch.allclose(padded[:, :5], principal_component(channels[..., :5]))
    assert torch.equal(padded[:, 5:], torch.zeros(1, 2, dtype=torch.float64))


def test_masks_have_no_component():
    with pytest.raises(OptionError, match="pass scoring='official'"):
        vitrail.explain(tiny_vit(), IMAGES, "scorecam", target=1, eigen=True)
