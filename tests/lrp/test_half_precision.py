"""Models in half precision: relevance with bfloat16 operands, vectors that are read in the model's own precision."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitrail
from tests.lrp.test_propagate import EVERYTHING, MAKERS, ZOO, made, one_hot, run
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.capture.trace import Block
from vitrail.errors import NotApplicableError
from vitrail.lrp import elementwise_gradients as half
from vitrail.lrp import rule_sets, rules
from vitrail.lrp.mode import RelevanceMode
from vitrail.lrp.ops import Linear, Samples
from vitrail.lrp.propagate import Relevances, propagation
from vitrail.methods.registry import METHODS
from vitrail.models.plain_vit import PlainViT

SAFE = {
    "conservative": rule_sets.conservative(),
    "conservative, identity": rule_sets.conservative("identity"),
    "attnlrp": rule_sets.attnlrp(),
    "attnlrp, released": rule_sets.attnlrp(attention="fixed"),
}
FAST = ("plain", "thrifty", "own:einsum")
WITHOUT_A = EVERYTHING - {"A"}
FAMILIES = ("attention", "gradient", "relevance")


def narrowed(model_inputs: ModelInputs, dtype: torch.dtype = torch.bfloat16) -> ModelInputs:
    def narrow(value):
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return ModelInputs(
        tuple(map(narrow, model_inputs.args)), {name: narrow(value) for name, value in model_inputs.kwargs.items()}
    )


def cosine(one: torch.Tensor, two: torch.Tensor) -> float:
    return float(F.cosine_similarity(one.double().flatten(), two.double().flatten(), dim=0))


def in_half(model: nn.Module, model_inputs: ModelInputs, table: rule_sets.RuleSet) -> Relevances:
    return run(model.to(torch.bfloat16), narrowed(model_inputs), table, WITHOUT_A)


# -- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAFE)
def test_fused_attention_has_the_gradient_of_the_rules(name):
    torch.manual_seed(0)
    tensors = [torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    given = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    with RelevanceMode(SAFE[name], Samples(2)):
        stepwise = F.scaled_dot_product_attention(*tensors)
    fused = F.scaled_dot_product_attention(*SAFE[name].fused(*tensors))
    assert torch.allclose(stepwise, fused)
    for expected, found in zip(
        *(torch.autograd.grad(Z, tensors, given, allow_unused=True) for Z in (stepwise, fused)), strict=True
    ):
        assert (expected is None) == (found is None)
        assert expected is None or torch.allclose(expected, found, atol=1e-12)


@pytest.mark.parametrize("biased", [True, False])
def test_gamma_rule_without_cancellation_is_the_same_rule(biased):
    torch.manual_seed(0)
    W, x = torch.randn(6, 9, dtype=torch.float64), torch.randn(4, 9, dtype=torch.float64)
    x[0, 0] = 0
    b, R = torch.randn(6, dtype=torch.float64) if biased else None, torch.randn(4, 6, dtype=torch.float64)
    op = Linear(lambda x: F.linear(x, W, b), F.linear, torch.matmul, W, b, Samples(4))
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(rules.gamma_generalised(0.25)(op, leaf), leaf, R)
    one, two = half.gamma_shares(R, op.run(x), F.linear(x.abs(), W.abs()), b, 0.25, rules.EPS_GAMMA)
    found = half.gamma_gradient(x, one @ W, two @ W.abs(), 0.25, rules.EPS_INPUT)
    assert found[0, 0] == 0
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_norm_and_activation_in_half_precision_are_the_same_rules():
    torch.manual_seed(0)
    R, gain, scale = torch.randn(3, 5, 8), torch.randn(8), torch.rand(3, 5, 1) + 0.5
    G = R * gain / scale
    assert torch.allclose(half.norm_gradient(R, gain, scale, True), G - G.mean(-1, keepdim=True), atol=1e-6)
    assert torch.allclose(half.norm_gradient(R, None, scale, False), R / scale, atol=1e-6)
    x = torch.randn(3, 5)
    assert torch.allclose(half.activation_share(R[..., 0], x, F.gelu(x), 1e-10), R[..., 0] * F.gelu(x) / x, atol=1e-6)


def test_which_rules_are_safe():
    assert all(table.supports_bfloat16 for table in SAFE.values())
    unsafe = (
        rule_sets.OURS,
        rule_sets.ORIG,
        rule_sets.ABSLRP,
        rule_sets.attnlrp(form="plain"),
        rule_sets.stable(rule_sets.OURS, 0.001),
    )
    assert not any(table.supports_bfloat16 for table in unsafe)


# -- relevance -------------------------------------------------------------------------------------------------------


def check_model(name: str, tables: dict[str, rule_sets.RuleSet]) -> None:
    model, model_inputs = made(name)
    for table in tables.values():
        exact = run(model.double(), model_inputs, table, WITHOUT_A)
        found = in_half(model, model_inputs, table)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert found.tokens.dtype == torch.float32
        assert cosine(found.tokens, exact.tokens) > 0.9995
        if exact.pixels is not None:
            assert cosine(found.pixels, exact.pixels) > 0.999


@pytest.mark.parametrize("name", FAST)
def test_relevance_of_a_bfloat16_model_is_close_to_double_precision(name):
    check_model(name, {"attnlrp": SAFE["attnlrp"]})


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MAKERS, *ZOO])
def test_every_model_and_safe_rule(name):
    check_model(name, SAFE)


def test_products_are_in_half_precision_and_the_stream_in_single(monkeypatch):
    seen, compute = [], rules.with_backward_of_result

    def noted(run, back, x):
        result = compute(run, back, x)
        seen.append((x.dtype, result.dtype))
        return result

    monkeypatch.setattr(rules, "with_backward_of_result", noted)
    model, model_inputs = PlainViT().eval().bfloat16(), ModelInputs((torch.randn(2, 3, 32, 32).bfloat16(),))
    structure = read_structure(model, model_inputs)
    made_pass = propagation(model, model_inputs, structure, rule_sets.attnlrp()).passes[0]
    assert set(seen) == {(torch.bfloat16, torch.bfloat16)}
    assert {stream.dtype for _, stream in made_pass.mode.entering.values()} == {torch.float32}
    assert made_pass.scores.dtype == torch.float32


def check_same_as_plain(monkeypatch, model, images, method):
    """The paths may call kernels that round differently, by 10⁻⁷; relevance in half precision differs by 10⁻²."""
    found = vitrail.explain(model, images, method, target=1).grid
    with monkeypatch.context() as plain:
        plain.setenv("VITRAIL_PLAIN", "1")
        expected = vitrail.explain(model, images, method, target=1).grid
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("method", "dtype"), [("transformer_attribution", torch.bfloat16), ("attnlrp:plain", torch.bfloat16),
                          ("attnlrp", torch.float16), ("attnlrp", torch.float32), ("vtranm", torch.float32)]
)  # fmt: skip
def test_everything_else_is_computed_as_before(monkeypatch, method, dtype):
    """Unsafe rules, float16 and models in single precision: the same numbers as on the plain path."""
    torch.manual_seed(1)
    model, images = PlainViT().eval().to(dtype), torch.randn(2, 3, 32, 32).to(dtype)
    check_same_as_plain(monkeypatch, model, images, method)


class Fourier(PlainViT):
    """A model whose own code takes one precision only."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer = nn.Conv1d(self.position.shape[-1], self.position.shape[-1], 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embed(images).flatten(2)
        x = self.mixer(x).transpose(1, 2)
        x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def test_a_model_that_takes_one_precision_only_is_run_in_single(monkeypatch, caplog):
    torch.manual_seed(1)
    model, images = Fourier().eval().bfloat16(), torch.randn(2, 3, 32, 32).bfloat16()
    with caplog.at_level("DEBUG", "vitrail.lrp.propagate"):
        check_same_as_plain(monkeypatch, model, images, "attnlrp")
    assert "in single precision" in caplog.text


def test_relevance_of_attention_is_refused_with_a_way_out(monkeypatch):
    model, model_inputs = PlainViT().eval().bfloat16(), ModelInputs((torch.randn(1, 3, 32, 32).bfloat16(),))
    structure = read_structure(model, model_inputs)
    with pytest.raises(NotApplicableError, match="VITRAIL_PLAIN=1"):
        propagation(model, model_inputs, structure, rule_sets.attnlrp()).relevances(one_hot, frozenset({"A"}))
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    found = propagation(model, model_inputs, structure, rule_sets.attnlrp()).relevances(one_hot, frozenset({"A"}))
    assert len(found.A) == len(structure.layers)


# -- vectors ---------------------------------------------------------------------------------------------------------


def test_a_block_converts_half_precision_when_it_is_read():
    block, tensor = Block(), torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)
    block.keep("X", tensor, torch.float32)
    assert "X" in block
    assert "X" not in vars(block)
    assert "V" not in block
    assert block.narrow("X").dtype == torch.bfloat16
    assert block.X.dtype == torch.float32
    block.change(["X", "V"], lambda t: t.T)
    assert block.X.shape == block.narrow("X").shape == (2, 1)
    other = block.having(X=torch.zeros(3))
    assert torch.equal(other.narrow("X"), torch.zeros(3))
    assert block.narrow("X").shape == (2, 1)
    block.keep("X", tensor.double(), torch.float64)
    assert block.narrow("X").dtype == torch.float64
    with pytest.raises(AttributeError, match="registry line"):
        block.narrow("V")


@pytest.mark.parametrize("options", ["", ":per_head=False", ":projection_bias=True", ":af+l", ":value_bias=False"])
def test_vtranm_measures_vectors_in_half_precision(monkeypatch, options):
    torch.manual_seed(2)
    model, images = PlainViT().eval(), torch.randn(2, 3, 32, 32)
    name = "vtranm" + options
    exact = vitrail.explain(model.double(), images.double(), name, target=1).grid
    model.bfloat16()
    found = vitrail.explain(model, images.bfloat16(), name, target=1).grid
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    plain = vitrail.explain(model, images.bfloat16(), name, target=1).grid
    assert found.dtype == torch.float32
    assert cosine(found, exact) > 0.999
    assert cosine(found, plain) > 0.9995


#: Relevance that divides by sums of both signs, whose ranks half precision does not keep.
UNSAFE = ("lrp", "partial_lrp", "transformer_attribution", "abslrp")


@pytest.mark.parametrize("method", [m.name for m in METHODS.values() if m.family in FAMILIES])
def test_every_method_of_one_pass_explains_a_bfloat16_model(method):
    model, images = PlainViT().eval(), torch.randn(2, 3, 32, 32)
    exact = vitrail.explain(model, images, method, target=1).grid
    model, images = model.to(torch.bfloat16), images.to(torch.bfloat16)
    found = vitrail.explain(model, images, method, target=1).grid
    assert bool(found.isfinite().all())
    assert method in UNSAFE or cosine(found, exact) > 0.95


# -- kernels ---------------------------------------------------------------------------------------------------------

INTERPRETED = """
import torch
from vitrail.lrp import elementwise_gradients as half
from vitrail.fast import gradient_kernels as half_kernels
torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16):
    R, y, x, G, H = (torch.randn(3, 7, 33).to(dtype) for _ in range(5))
    size, gain, scale = (3 * y.float().abs()).to(dtype), torch.randn(33), torch.rand(3, 7, 1) + 0.5
    y[0, 0, 0] = G[0, 0, 0] = H[0, 0, 0] = 0
    cases = [("gamma_shares", (R, y, size, bias, 0.05, 1e-6)) for bias in (torch.randn(33).to(dtype), None)]
    cases += [("gamma_gradient", (x, G, H, 0.25, 1e-10)), ("activation_share", (R, x, y, 1e-10))]
    cases += [("norm_gradient", (R, g, scale, centred)) for g in (gain, None) for centred in (True, False)]
    for name, given in cases:
        found, expected = (getattr(module, name)(*given) for module in (half_kernels, half))
        found, expected = ([t] if isinstance(t, torch.Tensor) else t for t in (found, expected))
        for one, two in zip(found, expected, strict=True):
            assert one.dtype == two.dtype and one.shape == two.shape
            one, two = one.float(), two.float()
            # The interpreter does not round to bfloat16 as a GPU does.
            assert torch.allclose(one, two, rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-6), name
print("agree")
"""


@pytest.mark.slow
def test_kernels_agree_with_the_plain_computation():
    """By Triton's interpreter, which needs no GPU."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "agree", done.stderr[-2000:]
