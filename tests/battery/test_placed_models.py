"""Decoders placed by accelerate and decoders with quantised weights: explained alike, or refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import vitrail
from tests.battery.decoders import decoder, words
from vitrail.errors import NotApplicableError

pytest.importorskip("transformers")
METHODS = ["transformer_mm", "attnlrp", "gradient_x_input"]


def target(output):
    return output.logits[:, -1, 5]


def maps(model, methods=METHODS):
    return vitrail.explain(model, {"input_ids": words()}, methods=methods, target=target)


def test_a_device_map_changes_nothing():
    accelerate = pytest.importorskip("accelerate")
    model = decoder("Llama")
    placed = accelerate.dispatch_model(copy.deepcopy(model), {"": "cpu"}, force_hooks=True)
    for name, expected in maps(model).items():
        assert torch.equal(maps(placed)[name].grid, expected.grid), name


def test_offloaded_weights_change_nothing():
    accelerate = pytest.importorskip("accelerate")
    model = decoder("Llama")
    placed = accelerate.cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    for name, expected in maps(model).items():
        assert torch.equal(maps(placed)[name].grid, expected.grid), name


class _Product(torch.autograd.Function):
    """A product with weights of eight bits, which no torch function shows."""

    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.save_for_backward(weight, scale)
        return x @ (weight.to(x.dtype) * scale).T

    @staticmethod
    def backward(ctx, gradient):
        weight, scale = ctx.saved_tensors
        return gradient @ (weight.to(gradient.dtype) * scale), None, None


class EightBits(nn.Module):
    """A linear layer as bitsandbytes has it."""

    def __init__(self, linear):
        super().__init__()
        self.register_buffer("scale", linear.weight.abs().amax() / 127)
        self.weight = nn.Parameter((linear.weight / self.scale).round().to(torch.int8), requires_grad=False)

    def forward(self, x):
        return _Product.apply(x, self.weight, self.scale)


EightBits.__module__ = "bitsandbytes.nn.modules"


def test_quantised_layers_pass_gradients_and_refuse_other_rules():
    model, rounded = decoder("Llama"), decoder("Llama")
    for layer, other in zip(model.model.layers, rounded.model.layers, strict=True):
        for name in ("gate_proj", "up_proj", "down_proj"):
            small = EightBits(getattr(layer.mlp, name))
            getattr(other.mlp, name).weight.data = small.weight * small.scale
            setattr(layer.mlp, name, small)
    expected = maps(rounded)
    for name, found in maps(model).items():
        assert torch.allclose(found.grid, expected[name].grid, rtol=1e-4, atol=1e-6), name
    with pytest.raises(NotApplicableError, match="EightBits of bitsandbytes"):
        maps(model, ["transformer_attribution"])
