"""Maps are the same where the caller has switched gradients off."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import vitrail
import vitrail.ray
from tests.combinations import combinations
from tests.text.language import PROMPT, language_model
from vitrail.data import render
from vitrail.errors import ModelError
from vitrail.methods import METHODS
from vitrail.testing import quick, tiny_vit

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))
OFF = (torch.inference_mode, torch.no_grad)
TARGETS = {
    "classes": [[1, 2]],
    "function": lambda output: output[:, :2] * output[:, 2:4],
    "contrast": vitrail.contrast(1, 2),
}
RULES = [name for name, method in METHODS.items() if method.family == "relevance"]


@pytest.mark.parametrize(("context", "target"), combinations(OFF, list(TARGETS)))
def test_maps_of_all_methods(context, target):
    """Relevance propagation failed in both contexts, and so did input gradients under inference mode."""
    methods = quick()
    expected = vitrail.explain(tiny_vit(), IMAGES, methods=methods, target=TARGETS[target])
    alone = {name: vitrail.explain(tiny_vit(), IMAGES, name, target=TARGETS[target]) for name in RULES}
    with context():
        images = IMAGES.clone()  # an inference tensor under inference mode
        found = vitrail.explain(tiny_vit_before(), images, methods=methods, target=TARGETS[target])
        for name, one in alone.items():
            # A method alone takes another pass than with others, whose numbers need not be the same to the bit.
            again = vitrail.explain(tiny_vit_before(), images, name, target=TARGETS[target])
            assert torch.equal(again.grid, one.grid), name
        assert not torch.is_grad_enabled()
    for name in methods:
        assert torch.equal(found[name].grid, expected[name].grid), name
        assert not found[name].maps.is_inference()


def tiny_vit_before() -> nn.Module:
    """A model whose weights were made outside of the caller's context."""
    with torch.inference_mode(False), torch.enable_grad():
        return tiny_vit()


@pytest.mark.parametrize("context", OFF)
def test_decoders_and_their_generation(context):
    model, tokenizer = language_model()
    methods = ["attnlrp:released", "gradient_x_input", "transformer_mm", "integrated_gradients:quick"]
    tensors = {"input_ids": tokenizer(PROMPT, return_tensors="pt")["input_ids"]}

    def maps():
        yield vitrail.explain(model, PROMPT, methods=methods, tokenizer=tokenizer)
        yield vitrail.explain(model, tensors, methods=methods, target=lambda output: output.logits[:, -1, 5])

    def generated():
        given = {"tokenizer": tokenizer, "max_new_tokens": 2}
        return [vitrail.explain_generation(model, PROMPT, name, **given) for name in methods[:2]]

    expected, matrices = list(maps()), generated()
    with context():
        found, again = list(maps()), generated()
    for one, other in zip(found, expected, strict=True):
        for name in methods:
            assert torch.equal(one[name].grid, other[name].grid), name
    for one, other in zip(again, matrices, strict=True):
        assert torch.equal(one.matrix, other.matrix)
        assert not one.matrix.is_inference()


@pytest.mark.parametrize("context", OFF)
def test_checks_and_comparisons(context):
    images = torch.cat([IMAGES, IMAGES.flip(-1)])
    methods = ["attnlrp", "gradient_x_input"]
    e = vitrail.explain(tiny_vit(), IMAGES, methods=methods, target=1)
    expected, ranked = e.check(), vitrail.compare(tiny_vit(), images, methods)
    model = tiny_vit()
    with context():
        found = vitrail.explain(model, IMAGES, methods=methods, target=1).check()
        assert vitrail.compare(model, images, methods).rows == ranked.rows
    for name in methods:
        assert found[name].to_dict() == expected[name].to_dict()


@pytest.mark.parametrize("context", OFF)
def test_columns_of_maps(context):
    images = [render(0, 1).image, render(0, 2).image]
    table = {"image": images}
    expected = vitrail.ray.Explainer("scenes", ["attnlrp", "gradient_x_input"])(table)
    with context():
        found = vitrail.ray.Explainer("scenes", ["attnlrp", "gradient_x_input"])(table)
    for one, other in zip(found["maps"], expected["maps"], strict=True):
        for name, maps in vitrail.ray.read_maps(one).items():
            assert torch.equal(maps, vitrail.ray.read_maps(other)[name])
    assert not any(map(json.loads, found["errors"]))


def test_embeddings_of_texts_made_under_inference_mode():
    text = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    expected = vitrail.explain(tiny_vit(), IMAGES, "transformer_mm", target=vitrail.similarity(text))
    with torch.inference_mode():
        target = vitrail.similarity(text.clone())
    found = vitrail.explain(tiny_vit(), IMAGES, "transformer_mm", target=target)
    assert torch.equal(found.grid, expected.grid)


class Kept(nn.Module):
    """A model that keeps a tensor of its first pass."""

    def __init__(self) -> None:
        super().__init__()
        self.vit, self.scale = tiny_vit(), None

    def forward(self, images):
        if self.scale is None:
            self.scale = torch.ones(5) * 2
        return self.vit(images) * self.scale


def test_the_reason_names_what_was_made_under_inference_mode():
    model = Kept().eval()
    with torch.inference_mode():
        model(IMAGES)
    with pytest.raises(ModelError, match=r"a tensor that the model keeps was made under torch.inference_mode\(\)"):
        vitrail.explain(model, IMAGES, "gradient_x_input", target=1)
