"""Inputs of several tensors: which are per example, which are shared, and which one is explained."""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import nn

import vitrail
from tests.combinations import combinations
from vitrail.capture.inputs import ModelInputs
from vitrail.errors import GuessWarning, InputError, NotApplicableError
from vitrail.fast import cached_per_call
from vitrail.inputs.input_description import describe_inputs
from vitrail.testing import tiny_vit

IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TEXTS = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
#: Methods of each kind: one pass, gradients, perturbed images, removed tokens, relevance.
METHODS = {
    "leadlight": {}, "integrated_gradients": {"steps": 4}, "occlusion": {}, "shapley": {"forwards": 40},
    "tis": {"masks": 8}, "attnlrp": {},
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.GuessWarning")


class Similarity(nn.Module):
    """Scores of images against texts that all images share, as CLIP has them."""

    def __init__(self):
        super().__init__()
        self.image = tiny_vit()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pixel_values, texts):
        return self.image(pixel_values) @ texts.T * self.scale.exp()


class Question(nn.Module):
    """Scores of images, each with its own question."""

    def __init__(self):
        super().__init__()
        self.image = tiny_vit()

    def forward(self, pixel_values, texts):
        return self.image(pixel_values) * texts


@dataclass(frozen=True)
class Batch:
    pixel_values: torch.Tensor
    texts: torch.Tensor


class OfOne(nn.Module):
    """A model that takes a dict, a dataclass or a tuple as its only argument."""

    def __init__(self, kind):
        super().__init__()
        self.inner, self.kind = Question(), kind

    def forward(self, batch):
        if self.kind == "dict":
            return self.inner(**batch)
        return self.inner(*batch) if self.kind == "tuple" else self.inner(batch.pixel_values, batch.texts)


class Pair(nn.Module):
    """Scores of two images."""

    def __init__(self):
        super().__init__()
        self.first, self.second = tiny_vit(), tiny_vit()

    def forward(self, a, b):
        return self.first(a) + 0.5 * self.second(b.flip(-1))


@cache
def built(kind, *args):
    torch.manual_seed(0)
    return kind(*args).eval()


def roles(model, **tensors):
    found = describe_inputs(model, ModelInputs((), tensors)).description
    return {one.name: (one.role, one.per_example, one.known_by) for one in found}


@pytest.mark.parametrize("images", [1, 3])
def test_whether_a_tensor_is_shared_is_measured(images):
    given = {"pixel_values": IMAGES[:images], "texts": TEXTS[:images]}
    assert roles(built(Similarity), **given)["texts"] == ("shared", False, "effect")
    assert roles(built(Question), **given)["texts"] == ("other", True, "effect")


@pytest.mark.parametrize(("method", "texts"), combinations(list(METHODS), [2, 3]))
def test_shared_texts_are_no_rows_of_the_images(method, texts):
    model, given = built(Similarity), {"pixel_values": IMAGES, "texts": TEXTS[:texts]}
    together = vitrail.explain(model, given, method, target=1, **METHODS[method])
    assert together.logits.shape == (3, texts)
    alone = [
        vitrail.explain(model, given | {"pixel_values": image[None]}, method, target=1, **METHODS[method]).grid
        for image in IMAGES
    ]
    assert torch.allclose(together.grid, torch.cat(alone), atol=1e-5)
    in_pieces = vitrail.explain(model, given, method, target=1, batch_size=1, **METHODS[method])
    assert torch.allclose(together.grid, in_pieces.grid, atol=1e-5)
    assert in_pieces.logits.shape == (3, texts)


@pytest.mark.parametrize("method", METHODS)
def test_questions_go_with_their_images(method):
    model, order = built(Question), torch.tensor([2, 0, 1])
    given = {"pixel_values": IMAGES, "texts": TEXTS}
    swapped = {name: value[order] for name, value in given.items()}
    first, second = (vitrail.explain(model, g, method, target=1, **METHODS[method]).grid for g in (given, swapped))
    assert torch.allclose(first[order], second, atol=1e-5)
    other = vitrail.explain(model, given | {"texts": TEXTS.flip(0)}, "occlusion", target=1).logits
    assert not torch.allclose(other[0], vitrail.explain(model, given, "occlusion", target=1).logits[0])


@pytest.mark.parametrize("kind", ["dict", "dataclass", "tuple"])
def test_a_model_that_takes_one_nested_argument(kind):
    model, given = built(OfOne, kind), {"pixel_values": IMAGES, "texts": TEXTS}
    nested = {"dict": given, "dataclass": Batch(**given), "tuple": (IMAGES, TEXTS)}[kind]
    for method in ("leadlight", "occlusion", "shapley"):
        expected = vitrail.explain(model.inner, given, method, target=2, **METHODS[method]).grid
        found = vitrail.explain(model, nested, method, target=2, batch_size=2, **METHODS[method]).grid
        assert torch.allclose(found, expected, atol=1e-5)


def test_a_tuple_holds_positional_arguments():
    by_name = vitrail.explain(built(Pair), {"a": IMAGES, "b": IMAGES.flip(0)}, "gradient_x_input", target=0).grid
    assert torch.equal(
        vitrail.explain(built(Pair), (IMAGES, IMAGES.flip(0)), "gradient_x_input", target=0).grid, by_name
    )


@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients"])
def test_the_order_of_keywords_does_not_matter(method):
    model, first, second = built(Pair), IMAGES[:2], IMAGES[1:]
    given = vitrail.explain(model, {"a": first, "b": second}, method, target=0, **METHODS[method]).grid
    turned = vitrail.explain(model, {"b": second, "a": first}, method, target=0, **METHODS[method]).grid
    assert torch.equal(given, turned)
    named = vitrail.explain(model, {"b": second, "a": first}, method, target=0, of="a", **METHODS[method]).grid
    assert torch.equal(given, named)


def test_of_chooses_the_image():
    model, given = built(Pair), {"a": IMAGES[:1], "b": IMAGES[1:2]}
    second = vitrail.explain(model, given, "gradient_x_input", target=0, of="b")
    leaf = IMAGES[1:2].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(IMAGES[:1], leaf)[0, 0], leaf)
    expected = (gradient * leaf).sum(1).detach()
    assert torch.allclose(second.grid[:, 0].flatten().abs().argmax(), expected.flatten().abs().argmax())
    assert torch.equal(second.images, IMAGES[1:2])


def test_roles_can_be_stated():
    given = {"pixel_values": IMAGES, "texts": TEXTS}
    found = describe_inputs(built(Question), ModelInputs((), given), {"texts": "shared"})
    assert found.select(slice(0, 1)).tensors[1].shape == TEXTS.shape
    for wrong, message in (({"text": "shared"}, "it has pixel_values, texts"), ({"texts": "words"}, "the roles are")):
        with pytest.raises(InputError, match=message):
            vitrail.explain(built(Question), given, roles=wrong)
    with pytest.raises(InputError, match="4 axes"):
        vitrail.explain(built(Question), given, roles={"texts": "image"})
    with pytest.raises(InputError, match="it has pixel_values, texts"):
        vitrail.explain(built(Question), given, of="image")
    with pytest.raises(InputError, match="cannot be explained"):
        vitrail.explain(built(Question), given, of="texts")


def test_one_image_without_a_batch_axis():
    with pytest.warns(GuessWarning, match=r"image\[None\]"):
        found = vitrail.explain(tiny_vit(), IMAGES[0], "rollout")
    assert torch.equal(found.grid, vitrail.explain(tiny_vit(), IMAGES[:1], "rollout").grid)
    with pytest.raises(InputError, match=r"\(16, 32, 32\).*no.*batch of images|not a batch of images"):
        vitrail.explain(tiny_vit(), torch.zeros(16, 32, 32))


def test_patches_in_one_row_are_split_by_their_grid():
    grid = torch.tensor([[1, 2, 2], [1, 1, 3]])
    patches = torch.arange(7.0)[:, None].expand(7, 4)
    call = ModelInputs((), {"input_ids": torch.ones(2, 5).long(), "pixel_values": patches, "image_grid_thw": grid})
    assert call.select(slice(1, 2)).kwargs["pixel_values"][:, 0].tolist() == [4, 5, 6]
    assert call.indexed(torch.tensor([1, 1])).kwargs["pixel_values"][:, 0].tolist() == [4, 5, 6, 4, 5, 6]
    unknown = ModelInputs((), {"input_ids": torch.ones(2, 5).long(), "pixel_values": patches})
    with pytest.raises(NotApplicableError, match="one example at a time"):
        unknown.select(slice(1, 2))


def test_methods_on_pixels_name_what_is_explained():
    class OfVideo(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.frames = tiny_vit(), nn.Conv3d(3, 3, 1)

        def forward(self, video):
            return self.image(self.frames(video.transpose(1, 2)).mean(2))

    with pytest.raises(NotApplicableError, match=r"defined on images.*time, height, width"):
        vitrail.explain(OfVideo().eval(), torch.randn(1, 2, 3, 32, 32), "scorecam", target=1)


class GatedSimilarity(nn.Module):
    """Similarities of images and texts, unless all texts are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.eye(4)), 0

    def forward(self, image, text):
        self.calls += 1
        return image.flatten(1)[:, :4] @ self.weight @ (text * (text[0] != 0).any()).T


def test_effects_are_measured_once_while_a_model_is_promised_not_to_change():
    model = GatedSimilarity()
    silent = ModelInputs((), {"image": torch.rand(2, 3, 8, 8), "text": torch.zeros(2, 4)})
    heard = ModelInputs((), {"image": torch.rand(2, 3, 8, 8), "text": torch.rand(2, 4)})
    dark = ModelInputs(
        (), {"image": torch.stack([torch.zeros(3, 8, 8), torch.rand(3, 8, 8)]), "text": torch.rand(2, 4)}
    )
    describe = cached_per_call(lambda call: describe_inputs(model, call).description[1].per_example)
    expected, counts = [True, True, False, False], []
    for promise in (nullcontext(), vitrail.unchanged(model)):
        model.calls = 0
        with promise:
            assert [describe(call) for call in (silent, dark, heard, heard)] == expected
        counts.append(model.calls)
    # Texts without effect, and texts whose effect on the first image is not seen, are no answer to remember.
    assert counts == [8, 6]
