"""What relevance rules compute entry by entry: Triton kernels against torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import vitrail
from vitrail.fast import kernels
from vitrail.lrp import convolution, rules
from vitrail.lrp.mode import RelevanceMode
from vitrail.lrp.ops import Linear, Product, Samples
from vitrail.models.plain_vit import PlainViT

RELEVANCE = ("lrp", "partial_lrp", "transformer_attribution", "conservative_lrp", "attnlrp", "abslrp")
#: By Triton's interpreter, which runs on the CPU; it must be chosen before Triton is imported.
INTERPRETED = """
import torch
from vitrail.fast import kernels
from vitrail.lrp import elementwise
from vitrail.lrp import elementwise_gradients
from vitrail.lrp.ops import Samples

torch.manual_seed(0)


def tensor(*shape):
    t = torch.randn(shape)
    t.flatten()[::7] = 0.0
    t.flatten()[::11] = -0.0
    return t


def cases(shape):
    x, y, z, R, P, N = (tensor(*shape) for _ in range(6))
    z.flatten()[1::13] = -torch.inf  # as where logits are masked
    wide, turned = tensor(*shape[:-1], 2 * shape[-1]), tensor(*shape[:-2], shape[-1], shape[-2]).mT
    both = wide.chunk(2, -1)
    samples = [Samples(n) for n in {1, shape[0], shape[0] // 2} if n]
    yield "halves", (x,)
    yield "halves", (turned,)
    for each in (x, turned):
        yield "signed_parts", (each,)
        yield "signed_parts", (each, -2)
    for factors in ((P, N), both, (turned, N), (P.mT.contiguous().mT, turned)):
        yield "signed_product", (x, *factors)
        for each in samples:
            yield "signed_unit", (turned, *factors, each)
            yield "positive_unit", (turned, factors[1], each)
    yield "share", (R, z)
    yield "share", (turned, z, 0.5)
    yield "share", (R[:1, ..., :1].expand(shape), z)
    yield "absolute_share", (R, z)
    if len(shape) == 4:
        yield "positive_rows", (tensor(shape[0], shape[2]), x, turned)
        yield "positive_rows", (tensor(1, shape[2]), x[..., :1], y[..., :1])
        # heads that were merged
        yield "share", (tensor(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2), z)
        yield "absolute_share", (tensor(shape[0], shape[1], shape[2], 2 * shape[3])[..., ::2], z)
    yield "shares", (R, z, y)
    yield "sum_shares", (R, x, turned)
    yield "sum_shares", (R, x, -x)
    gain, scale = tensor(shape[-1]), torch.rand(*shape[:-1], 1) + 0.5
    for each in samples:
        yield "sum_shares_normalised", (R.abs(), x.abs(), y.abs(), each)
        yield "sum_shares_absolute", (R, x, y, each)
        yield "sum_shares_absolute", (R, x, -x.abs(), each)
        yield "unit", (x, each)
        yield "unit", (torch.zeros(shape), each)
        yield "norm_unit", (R, x, y, gain, scale, each)
        yield "norm_unit", (R, turned, y, None, scale, each)
    bias = tensor(shape[-1])
    for b in (bias, None):
        yield "gamma_shares", (R, y, y.abs() * 3, b, 0.05, 1e-6)
    yield "gamma_gradient", (x, P, N, 0.25, 1e-10)
    yield "activation_share", (R, x, x.relu(), 1e-10)
    for g in (gain, None):
        yield "norm_gradient", (R, g, scale, True)


used = set()


run = kernels.run_kernel_or_none


def noted(name, *given, **constants):
    found = run(name, *given, **constants)
    if found is not None:
        used.add(name)
    return found


kernels.run_kernel_or_none = noted


def computed(name, given, fused):
    kernels.DEVICES = ("cpu",) if fused else ()
    function = getattr(elementwise, name, None) or getattr(elementwise_gradients, name)
    found = function(*(t.clone() if isinstance(t, torch.Tensor) and name == "unit" else t for t in given))
    return [found] if isinstance(found, torch.Tensor) else list(found)


for shape in ((4, 33), (2, 5, 7), (2, 2, 40, 41), (2, 1, 1, 300)):
    for name, given in cases(shape):
        expected = computed(name, [t.double() if isinstance(t, torch.Tensor) else t for t in given], False)
        plain = computed(name, given, False)
        fused = computed(name, given, True)
        for exact, one, two in zip(expected, plain, fused, strict=True):
            assert two.dtype == torch.float32 and two.shape == one.shape, name
            # Differences from a mean and sums of both signs cancel.
            small = 1e-6 if name in ("norm_gradient", "positive_rows") else 1e-30
            assert torch.allclose(one, two, rtol=2e-5, atol=small, equal_nan=True), (name, shape)
            if name != "sum_shares":  # whose sums cancel
                assert torch.allclose(exact.float(), two, rtol=1e-4, atol=1e-6, equal_nan=True), (name, shape)
    if shape == (2, 2, 40, 41):
        half = tensor(*shape).bfloat16()
        assert all(t.dtype == torch.bfloat16 for t in computed("halves", (half,), True))
assert not kernels._failed, kernels._failed
assert used == {*kernels._MODULES} - {*kernels.KERNELS["row_kernels"]}, used

all_kernels, used = used, set()

import os
import vitrail
from vitrail.models.plain_vit import PlainViT

model, images = PlainViT(depth=2).eval(), torch.randn(2, 3, 32, 32)
for method in METHODS:
    kernels.DEVICES = ("cpu",)
    fused = vitrail.explain(model, images, method, target=1).grid
    os.environ["VITRAIL_PLAIN"] = "1"
    plain = vitrail.explain(model, images, method, target=1).grid
    exact = vitrail.explain(model.double(), images.double(), method, target=1).grid
    del os.environ["VITRAIL_PLAIN"]
    model.float()
    error, own = ((t - exact).abs().max() / exact.abs().max() for t in (fused, plain))
    assert error < 3 * own + 1e-6, (method, error, own)
assert not kernels._failed, kernels._failed
assert used == all_kernels, all_kernels ^ used  # every kernel is a part of some method
print("agree")
"""


@pytest.mark.slow
def test_kernels_agree_with_the_plain_computation():
    pytest.importorskip("triton")
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", f"METHODS = {RELEVANCE}\n{INTERPRETED}"], env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.strip().endswith("agree"), done.stdout + done.stderr[-2000:]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def relevances(run, *inputs):
    """What a rule carries to each input for the same relevance of the result."""
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = run(*leaves)
    return torch.autograd.grad(out, leaves, numbers(*out.shape).abs() + 0.1)


def same(one, two) -> bool:
    return all(torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("rule", [rules.linear_joint, rules.linear_absolute])
def test_one_product_with_both_signs_is_two_products(rule):
    x, W = numbers(2, 5, 7), numbers(4, 7)

    def found(rows):
        op = Linear(lambda x: F.linear(x, W), F.linear, torch.matmul, W, None, Samples(2), rows)
        return relevances(lambda x: rule(op, x), x)

    assert same(found(True), found(False))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("positive", [False, True])
def test_a_product_of_matrices_is_shared_the_same_however_it_is_computed(positive, turned):
    u, v = numbers(2, 3, 5, 7), numbers(2, 3, 7, 4)
    u, v = u.abs() if positive else u, v.mT.contiguous().mT if turned else v

    def found(*flags):
        op = Product(torch.matmul, lambda s, v: s @ v.mT, lambda s, u: u.mT @ s, Samples(2), *flags)
        return relevances(lambda u, v: rules.product_absolute(op, u, v), u, v)

    assert same(found(True), found())
    assert not positive or same(found(True, True), found())


def test_a_product_that_was_written_over_is_computed_again():
    u, v = numbers(5, 3), numbers(3, 2)
    op = Product(torch.matmul, lambda s, v: s @ v.mT, lambda s, u: u.mT @ s, Samples(1))

    def overwritten(u, v):
        out = rules.product_halved(op, u, v)
        with torch.no_grad():
            out.zero_()
        return out

    assert same(relevances(lambda u, v: rules.product_halved(op, u, v), u, v), relevances(overwritten, u, v))


@pytest.mark.parametrize(
    ("options", "size", "used"),
    [({"stride": 4}, (8, 12), True), ({"stride": (4, 4)}, (4, 4), True), ({"stride": 4}, (9, 12), False),
     ({"stride": 4, "padding": 1}, (12, 12), False), ({"stride": 2}, (8, 8), False),
     ({"stride": 4, "dilation": 2}, (8, 8), False)],
)  # fmt: skip
def test_patches_are_put_in_place(monkeypatch, options, size, used):
    calls, own = [], convolution._patches_joined
    monkeypatch.setattr(convolution, "_patches_joined", lambda *given: calls.append(1) or own(*given))
    x, W = numbers(2, 3, *size), numbers(5, 3, 4, 4)

    def run(x):
        with RelevanceMode(rules.ABSLRP, Samples(2)):
            return F.conv2d(x, W, **options)

    found = relevances(run, x)
    assert bool(calls) == used
    monkeypatch.setattr(convolution, "PATCHES", None)
    assert same(found, relevances(run, x))


@pytest.mark.parametrize("whole", [True, False])
def test_parts_get_the_ordinary_gradient(whole):
    x, graph = numbers(2, 5, 18), []

    def run(x, context):
        parts = x.reshape(2, 5, 3, 2, 3).permute(2, 0, 3, 1, 4)
        with context:
            Q, K, V = (parts if whole else parts[..., :2]).unbind(0)
        graph.append(type(Q.grad_fn).__name__)
        return torch.cat([Q, 2 * K, 3 * V])

    mode, usual = RelevanceMode(rules.ORIG, Samples(2)), torch.enable_grad()
    assert same(relevances(lambda x: run(x, mode), x), relevances(lambda x: run(x, usual), x))
    assert ("Unbound" in graph[0]) == whole
    assert "Unbound" not in graph[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", RELEVANCE)
def test_maps_on_a_gpu_are_those_of_the_plain_path(monkeypatch, method):
    torch.manual_seed(1)
    model, images = PlainViT().eval().cuda(), torch.randn(3, 3, 32, 32, device="cuda")
    fused = vitrail.explain(model, images, method, target=1).grid
    assert not kernels._failed
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    plain = vitrail.explain(model, images, method, target=1).grid
    exact = vitrail.explain(model.double(), images.double(), method, target=1).grid
    span = exact.abs().amax()
    own = (plain - exact).abs().amax() / span  # how much rounding changes this method's maps
    assert (fused - exact).abs().amax() / span < 10 * own + 1e-5
