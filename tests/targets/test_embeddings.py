"""Similarity to another image or embedding as the target."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import vitrail
from tests.targets.target_models import build, pixels
from vitrail.errors import TargetError
from vitrail.targets import contrast, similar_to


def model():
    return build("CLIPVisionModelWithProjection", "ClipVision")


def test_similarity_to_an_image_is_the_cosine_with_its_embedding():
    module, images = model(), pixels(3)
    with torch.no_grad():
        other = module(images[2:]).image_embeds[0]

    def by_hand(output):
        return F.normalize(output.image_embeds, dim=-1) @ F.normalize(other, dim=0)

    expected = vitrail.explain(module, images[:2], "gradient_x_input", target=by_hand).grid
    for target in (similar_to(images[2:]), similar_to(other), similar_to(other.tolist()), similar_to(other.numpy())):
        found = vitrail.explain(module, images[:2], "gradient_x_input", target=target)
        torch.testing.assert_close(found.grid, expected, rtol=1e-7, atol=1e-10)
    assert found.label(0, 0) == "similarity to an embedding"


def test_contrast_of_two_images():
    module, images = model(), pixels(4)
    one, two = (vitrail.explain(module, images[:2], "gradient_x_input", target=similar_to(images[i : i + 1])).grid
                for i in (2, 3))  # fmt: skip
    both = contrast(similar_to(images[2:3]), similar_to(images[3:4]))
    found = vitrail.explain(module, images[:2], "gradient_x_input", target=both)
    torch.testing.assert_close(found.grid, one - two)


def test_the_cosine_depends_on_one_planted_patch():
    module, images = copy.deepcopy(model()), pixels(2)
    weight = module.vision_model.embeddings.patch_embedding.weight
    with torch.no_grad():
        kept = weight[:, 0, 0, 0].clone()
        weight.zero_()
        weight[:, 0, 0, 0] = 10 * kept
    images[:, 0, ::16, ::16] = 0
    images[0, 0, 32, 48] = 3.0
    e = vitrail.explain(module, images[:1], "gradient_x_input", target=similar_to(images[1:]))
    patches = e.maps[0, 0].abs().unflatten(0, (4, 16)).unflatten(2, (4, 16)).amax((1, 3)).flatten()
    assert int(patches.argmax()) == 2 * 4 + 3


@pytest.mark.parametrize(("other", "message"), [
    (torch.zeros(4), "zero or not finite"),
    (torch.ones(2, 4), "not one of a single image"),
])  # fmt: skip
def test_embeddings_that_are_none_are_refused(other, message):
    with pytest.raises(TargetError, match=message):
        similar_to(other)


def test_embeddings_of_another_size_are_refused():
    with pytest.raises(TargetError, match="the embedding has 3 numbers, those of CLIPVision"):
        vitrail.explain(model(), pixels(1), "gradient_x_input", target=similar_to([1.0, 2.0, 3.0]))
