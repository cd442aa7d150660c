"""Images with some of their patches: sizes, complements, and what hidden patches do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.methods.shapley_explainer.small_explainer import PIXELS, small_vit
from tests.replicas import vit_shapley as replica
from vitrail.capture.removal import kept_mask
from vitrail.errors import NotApplicableError, OptionError
from vitrail.methods.shapley_explainer.partial_images import PartialImages, kernel_sizes, split_patches, uniform_sizes


def test_sizes_follow_the_kernel():
    generator = torch.Generator().manual_seed(0)
    sizes = [size for _ in range(500) for size in kernel_sizes(9, 8, generator)]
    shares = np.bincount(sizes, minlength=9)[1:] / len(sizes)
    assert np.abs(shares - replica.size_probabilities(9)).max() < 0.01
    assert {size for _ in range(60) for size in uniform_sizes(4, 4, generator)} == {0, 1, 2, 3, 4}


def test_a_coalition_and_its_complement_have_every_patch_once():
    keep, rest = split_patches(3, 10, 4, torch.Generator().manual_seed(0))
    assert keep.shape == (3, 4)
    assert torch.equal(kept_mask(keep, 10), ~kept_mask(rest, 10))


@pytest.mark.parametrize("kind", ["tokens", "fill"])
def test_all_patches_are_the_image_and_none_are_the_same_for_every_image(kind):
    model = small_vit()
    partial = PartialImages(model, PIXELS, kind)
    assert partial.removal == kind
    every = torch.arange(16).expand(6, -1)
    assert torch.equal(partial.probabilities(model, PIXELS, every), model(PIXELS).softmax(-1))
    nothing = partial.probabilities(model, PIXELS, every[:, :0])
    assert torch.allclose(nothing, partial.empty(model, PIXELS).expand(6, -1), atol=1e-6)


def test_hidden_patches_do_not_matter():
    model = small_vit()
    changed = PIXELS.clone()
    changed[:, :, :4, :4] += 3  # the first patch
    keep = torch.arange(1, 16).expand(6, -1)
    for kind in ("tokens", "fill"):
        partial = PartialImages(model, PIXELS, kind)
        a, b = (partial.probabilities(model, pixels, keep) for pixels in (PIXELS, changed))
        assert torch.allclose(a, b, atol=1e-6)


def test_mean_pooled_models_are_filled():
    model = small_vit(prefix=0, pool=True)
    assert PartialImages(model, PIXELS).removal == "fill"
    with pytest.raises(NotApplicableError, match=r"averages its patches.*removal='fill'"):
        PartialImages(model, PIXELS, "tokens")
    with pytest.raises(OptionError, match="removal='zero' is not one of 'auto', 'tokens', 'fill'"):
        PartialImages(model, PIXELS, "zero")
