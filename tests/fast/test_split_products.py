"""Float32 products from float16 products."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import vitrail
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.fast import split_products as split
from vitrail.models.plain_vit import PlainViT

INTERPRETED = """
import torch
import torch.nn.functional as F
from vitrail.fast.split_products import split_linear
torch.manual_seed(0)
x, w, b = torch.randn(3, 5, 70), 0.02 * torch.randn(33, 70), torch.randn(33)
x[0, 1], x[0, 2], x[1, 0], x[2, 2, 3] = 0, 1e-30 * x[0, 2], 1e25 * x[1, 0], 1e4
w[4], w[5] = 1e-9 * w[4], 0
given = torch.randn(3, 5, 33) * torch.logspace(-20, 0, 5).view(1, 5, 1)

def run(linear, dtype, bias, transposed):
    own = x.to(dtype).transpose(0, 1).requires_grad_() if transposed else x.to(dtype).requires_grad_()
    weight = w.to(dtype).T.contiguous().T if transposed else w.to(dtype)
    y = linear(own, weight, None if bias is None else bias.to(dtype))
    G = given.to(dtype).transpose(0, 1) if transposed else given.to(dtype)
    return y.detach(), torch.autograd.grad(y, own, G)[0]

for bias in (b, None):
    for transposed in (False, True):
        exact = run(F.linear, torch.float64, bias, transposed)
        plain, found = (run(f, torch.float32, bias, transposed) for f in (F.linear, split_linear))
        for one, two, three in zip(found, plain, exact, strict=True):
            assert one.shape == three.shape and one.dtype == torch.float32
            size = three.abs().amax(-1, keepdim=True).clamp_min(1e-300)
            errors = [float(((t.double() - three).abs() / size).max()) for t in (one, two)]
            assert errors[0] < 4 * errors[1] < 1e-5, errors
infinite = split_linear(torch.full((1, 4), torch.inf), torch.ones(2, 4))
assert not infinite.isfinite().any()
print("agree")
"""


@pytest.mark.slow
def test_split_products_are_as_exact_as_float32():
    """By Triton's interpreter, which needs no GPU: rows of any size, zeros, infinities, gradients."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "agree", done.stderr[-2000:]


def test_other_devices_and_precisions_are_left_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(split, "_linear", lambda *given: asked.append(given))
    vitrail.explain(PlainViT().eval(), torch.randn(1, 3, 32, 32), "integrated_gradients", target=1, steps=2)
    assert not asked
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(split, "_has_fast_half", lambda _: True)
    on = type(split.split_products(gpu))
    assert on is split._SplitProducts
    monkeypatch.setenv(split.SWITCH, "0")
    assert type(split.split_products(gpu)) is not on
    monkeypatch.delenv(split.SWITCH)
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    assert type(split.split_products(gpu)) is not on
    monkeypatch.delenv("VITRAIL_PLAIN")
    with monkeypatch.context() as autocast:
        autocast.setattr(torch, "is_autocast_enabled", lambda _: True)
        assert type(split.split_products(gpu)) is not on
    torch.set_float32_matmul_precision("high")
    try:
        assert type(split.split_products(gpu)) is not on  # TF32 is faster still
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["integrated_gradients", "transformer_mm", "occlusion"])
def test_maps_on_a_gpu_are_as_exact_as_with_float32_products(monkeypatch, method):
    if not split._has_fast_half(torch.device("cuda", 0)):
        pytest.skip("this GPU has no fast float16 products")
    monkeypatch.setattr(split, "FEWEST_PRODUCTS", 1)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # of the patch embedding
    calls = []
    own = split.split_linear
    monkeypatch.setattr(split, "split_linear", lambda *given: calls.append(1) or own(*given))
    model, images = PlainViT().eval().cuda(), torch.randn(16, 3, 32, 32, device="cuda")
    found = vitrail.explain(model, images, method, target=1).grid.double()
    assert calls
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    exact = vitrail.explain(model.double(), images.double(), method, target=1).grid
    assert float((found - exact).abs().max() / exact.abs().max()) < 1e-4


def test_what_is_not_a_large_float32_map_is_computed_as_usual():
    x, weight = torch.randn(4, 8), torch.randn(3, 8)
    assert split._linear(x, weight) is None
    with split._SplitProducts():
        assert torch.equal(F.linear(x, weight), x @ weight.T)


def test_the_switch_is_part_of_what_is_known_of_a_model(monkeypatch):
    """A recording of one way is not replayed for the other."""
    model, images = PlainViT().eval(), torch.randn(1, 3, 32, 32)
    known = [read_structure(model, ModelInputs((images,))) for _ in range(2)]
    monkeypatch.setenv(split.SWITCH, "0")
    other = read_structure(model, ModelInputs((images,)))
    assert known[0] is known[1]
    assert other is not known[0]
