"""Patch embeddings as matrix products."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vitrail.fast import fast_passes
from vitrail.fast.fast_passes import FastPasses
from vitrail.fast.patch_convolutions import PatchProducts
from vitrail.testing import tiny_vit


@pytest.mark.parametrize("size", [(16, 16), (18, 25)])
@pytest.mark.parametrize("conv", [
    nn.Conv2d(3, 8, 4, stride=4), nn.Conv2d(3, 8, (2, 5), stride=(2, 5), padding="valid", bias=False),
])  # fmt: skip
def test_a_product_is_the_convolution(conv, size):
    conv, images = conv.double(), torch.randn(2, 3, *size, dtype=torch.float64)
    expected = conv(images)
    products = PatchProducts(conv)
    with torch.no_grad(), products.used():
        assert "forward" in vars(conv)
        found = conv(images)
    assert "forward" not in vars(conv)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected)
    with pytest.raises(RuntimeError, match="shapes"), products.used():
        conv(images[:, :2])
    assert "forward" not in vars(conv)


@pytest.mark.parametrize("conv", [
    nn.Conv2d(3, 8, 4, stride=2), nn.Conv2d(3, 8, 4, stride=4, padding=1), nn.Conv2d(3, 8, 1),
    nn.Conv2d(4, 8, 4, stride=4, groups=2), nn.Conv2d(3, 8, 4, stride=4, dilation=2),
])  # fmt: skip
def test_other_convolutions_are_left_alone(conv):
    assert not PatchProducts(conv).convolutions


def test_a_convolution_with_a_hook_or_function_of_its_own_is_left_alone():
    conv = nn.Conv2d(3, 8, 4, stride=4)
    products = PatchProducts(conv)
    conv.forward = own = lambda images: images
    with products.used():
        assert conv.forward is own
    assert conv.forward is own
    del conv.forward
    conv.register_forward_hook(lambda *_: None)
    with products.used():
        assert "forward" not in vars(conv)


def test_a_model_is_compiled_once():
    compiled = []

    def backend(graph, _):
        compiled.append([node.target for node in graph.graph.nodes])
        return graph.forward

    torch._dynamo.reset()
    model, images = tiny_vit(), torch.randn(2, 3, 32, 32)
    products = PatchProducts(model)
    run = torch.compile(model, backend=backend, dynamic=False)
    with torch.inference_mode():
        expected = model(images)
        for _ in range(3):
            with products.used(), torch.autocast("cpu", torch.bfloat16):
                found = run(images)
    assert len(compiled) == 1
    assert torch.conv2d not in compiled[0]
    assert torch.allclose(found.float(), expected, atol=0.05)


def test_passes_in_float32_and_on_other_devices_are_as_they_were(monkeypatch):
    model, images = tiny_vit(), torch.randn(1, 3, 32, 32)
    for precision in (None, torch.bfloat16):
        with FastPasses(model, precision).on(images):
            assert not any("forward" in vars(m) for m in model.modules())
    monkeypatch.setattr(fast_passes, "split_products", lambda _: nullcontext())
    half = SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.bfloat16)
    with FastPasses(model).on(half):
        assert any("forward" in vars(m) for m in model.modules())
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    with FastPasses(model).on(half):
        assert not any("forward" in vars(m) for m in model.modules())
