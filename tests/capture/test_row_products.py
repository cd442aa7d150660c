"""Products with attention that is never in memory, against those with matrices, in float64."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer

import vitrail
from tests.text.texts import text_model
from tests.zoo.small_models import HandWritten, hf, torchvision_model
from vitrail.capture import attention_recorder, attention_storage, row_products
from vitrail.capture.attention_products import PRODUCT_KINDS, DenseProducts
from vitrail.capture.explicit_attention import attention_logits, attention_weights, causal_mask
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.row_products import RowwiseProducts
from vitrail.capture.structure import read_structure
from vitrail.methods import METHODS, find
from vitrail.testing import tiny_vit

SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
MODELS = {
    "cls": lambda: VisionTransformer(**SIZE),
    "mean": lambda: VisionTransformer(class_token=False, global_pool="avg", **SIZE),
    "registers": lambda: VisionTransformer(reg_tokens=4, init_values=0.3, **SIZE),
    "distilled": lambda: VisionTransformerDistilled(**SIZE),
    "pool": lambda: VisionTransformer(class_token=False, global_pool="map", **SIZE),
    "hf": hf("ViTForImageClassification", "ViTConfig", num_labels=5, image_size=32, patch_size=8),
    "hf:dinov2": hf("Dinov2ForImageClassification", "Dinov2Config", num_labels=5, image_size=32, patch_size=8),
    "torchvision": torchvision_model,
    "handwritten": HandWritten,
}
FAST = ("cls", "mean", "handwritten")
#: Methods and options that read attention by products.
ROW_METHODS = [
    "transformer_mm", "transformer_mm:last", "transformer_mm:logits", "vtranm", "vtranm:af", "vtranm:baseline",
    "leadlight", "leadlight:fast",
    "leadlight:attention", "gradtoken", *(f"gradtoken:{v}" for v in range(1, 4)), "rollout", "rollout:normalise=false",
    "raw_attention", "raw_attention:column", "raw_attention:head=1", "attcat", "attcat:query=readout", "gradsam",
    "gradcam", "gradcam:bert", "agcam",
]  # fmt: skip


@pytest.fixture
def rowwise(monkeypatch):
    """Keep no matrices whatever their size, and compute few rows at a time."""
    monkeypatch.setattr(attention_storage, "ROWWISE_FROM", {"half": 0, "other": 0})
    monkeypatch.setattr(attention_storage, "mean_is_smaller", lambda *_: False)
    monkeypatch.setattr(row_products, "PIECE", {"cpu": 500, "cuda": 500})


@pytest.fixture
def used(monkeypatch):
    """Number of products computed row by row."""
    count = []
    pieces = RowwiseProducts._pieces
    monkeypatch.setattr(RowwiseProducts, "_pieces", lambda self, v: count.append(1) or pieces(self, v))
    return count


def make(name):
    torch.manual_seed(3)
    model = MODELS[name]()
    for parameter in model.parameters():  # larger than at birth, so that no softmax is flat
        parameter.data = parameter.data + 0.15 * torch.randn_like(parameter)
    return model.double().eval()


def both_ways(monkeypatch, call):
    """What a call returns row by row and with matrices."""
    fast = call()
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    slow = call()
    monkeypatch.delenv("VITRAIL_PLAIN")
    return fast, slow


def agree(one, other):
    assert one.keys() == other.keys()
    for label in one:
        a, b = one[label].grid, other[label].grid
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-10 * float(b.abs().max())), label


@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
@pytest.mark.parametrize("name", [m if m in FAST else pytest.param(m, marks=pytest.mark.slow) for m in MODELS])
def test_methods_agree_with_matrices(name, monkeypatch, rowwise, used):
    model, images = make(name), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    fits = [m for m in ROW_METHODS if METHODS[m.partition(":")[0]].reason_against("pool") is None or name != "pool"]

    fast, slow = both_ways(monkeypatch, lambda: vitrail.explain(model, images, methods=fits, target=[[1, 3]]))
    agree(fast, slow)
    assert bool(used) == (name != "handwritten"), "a model that writes attention out has its matrices anyway"


def test_methods_agree_on_texts_with_padding(monkeypatch, rowwise, used):
    model, tokenizer = text_model()
    names = ("transformer_mm", "vtranm", "leadlight", "gradtoken", "rollout", "attcat", "gradsam", "gradcam:bert")
    texts, model = ["the film is superb !", "a dreadful plot , the music and the story"], model.double()

    fast, slow = both_ways(
        monkeypatch, lambda: vitrail.explain(model, texts, methods=names, target=1, tokenizer=tokenizer)
    )
    agree(fast, slow)
    assert used


def test_several_methods_share_a_pass(monkeypatch, rowwise, used):
    """Blocks of which some method needs the matrix keep it; the others do not."""
    model, images = make("cls"), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for methods, rows in (
        (["vtranm", "gradtoken:softmax=elementwise", "iia:quick"], True),
        (["vtranm", "grad_rollout"], False),
    ):
        used.clear()
        fast, slow = both_ways(monkeypatch, lambda m=methods: vitrail.explain(model, images, methods=m, target=1))
        agree(fast, slow)
        assert bool(used) == rows


def test_intermediate_results_agree(monkeypatch, rowwise):
    model, images = make("registers"), torch.randn(1, 3, 32, 32, dtype=torch.float64)
    fast, slow = both_ways(monkeypatch, lambda: vitrail.explain(model, images, "vtranm", target=1, keep=True))
    assert fast.intermediates.keys() == slow.intermediates.keys()
    for name, (notes,) in slow.intermediates.items():
        for a, b in zip(fast.intermediates[name][0], notes, strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-12), name


@pytest.mark.parametrize("method", ["leadlight", "transformer_mm", "vtranm", "gradtoken", "rollout", "gradsam"])
def test_no_matrix_is_kept(method, rowwise, monkeypatch):
    """Neither the graph nor what the pass keeps holds a matrix of queries by keys."""
    model, images = make("cls"), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    model_inputs = ModelInputs((images,))
    structure = read_structure(model, model_inputs)
    seen = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(tuple(t.shape)) or t, lambda t: t)
    _, entry, options = find(method)
    with hooks, forward_pass(model, model_inputs, structure, [entry.needed(options)]) as one:
        trace = one.trace(one.output[:, 0])
    held = [t for block in trace.blocks for t in vars(block).values() if isinstance(t, torch.Tensor)]
    n = structure.tokens
    assert not [s for s in (*seen, *(t.shape for t in held)) if s[-2:] == (n, n)]
    assert all(block.products is not None for block in trace.blocks[:-1])
    monkeypatch.setenv("VITRAIL_PLAIN", "1")
    with forward_pass(model, model_inputs, structure, [entry.needed(options)]) as one:
        assert all(block.products is None for block in one.blocks)


def test_half_precision_agrees_within_its_rounding(monkeypatch, rowwise):
    """Both compute A and the products in single precision, from a forward pass that rounds in other places."""
    model, images = make("registers").bfloat16(), torch.randn(2, 3, 32, 32)
    names = ["leadlight", "transformer_mm", "vtranm", "gradtoken"]
    fast, slow = both_ways(monkeypatch, lambda: vitrail.explain(model, images, methods=names, target=2))
    for label in names:
        a, b = fast[label].grid, slow[label].grid
        assert a.dtype == b.dtype == torch.float32
        assert float((a - b).abs().max() / b.abs().max()) < 0.05, label


def test_small_attention_is_kept_as_matrices(used):
    vitrail.explain(tiny_vit(), torch.randn(1, 3, 32, 32), methods=["vtranm", "rollout", "gradtoken"], target=0)
    assert not used


@pytest.mark.parametrize("kind", ["none", "boolean", "additive", "causal", "window", "invisible", "valid"])
def test_products_agree_with_matrices(kind, monkeypatch):
    monkeypatch.setattr(row_products, "PIECE", {"cpu": 100, "cuda": 100})
    b, H, n, dh = 2, 3, 11, 4
    Q, K, V, dZ = torch.randn(4, b, H, n, dh, dtype=torch.float64)
    mask = {
        "boolean": torch.rand(b, 1, n, n) < 0.7,
        "additive": torch.randn(1, H, n, n, dtype=torch.float64),
        "invisible": (torch.arange(n) != 3)[:, None].expand(n, n),
        "causal": causal_mask(Q, K),
        "window": (causal_mask(Q, K) & ~causal_mask(Q, K).tril(-4))[None, None],
    }.get(kind)
    valid = torch.arange(n) < torch.tensor([[8], [11]]) if kind == "valid" else None
    given = None if kind == "causal" else mask
    rowwise = RowwiseProducts(Q, K, V, torch.float64, given, kind == "causal", 0.7, valid, dZ)
    A, dA = attention_weights(attention_logits(Q, K, mask, 0.7), mask), dZ @ V.mT
    if valid is not None:
        both = (valid[:, :, None] & valid[:, None])[:, None]
        A, dA = A * both, dA * both
    dense = DenseProducts(A, A.mean(1), dA, attention_logits(Q, K, mask, 0.7))
    one_row = torch.zeros(n, dtype=torch.float64).index_fill(0, torch.tensor([2]), 1).expand(b, -1)
    for v in (torch.randn(b, n, dtype=torch.float64), one_row, torch.ones(n, dtype=torch.float64).expand(b, -1)):
        for name in ("rows", "mean_row", "gradient_rows", "weighted_rows", "sigmoid_rows", "logit_gradient_rows"):
            assert torch.allclose(getattr(rowwise, name)(v), getattr(dense, name)(v), rtol=1e-12, atol=1e-13), name
    u = torch.randn(b, 5, n, dtype=torch.float64)
    assert torch.allclose(rowwise.mean_columns(u), dense.mean_columns(u), rtol=1e-12, atol=1e-13)
    assert torch.allclose(rowwise.row_sums(), dense.row_sums(), rtol=1e-12, atol=1e-13)
    assert rowwise.size == dense.size == (b, n, n)


def test_products_that_were_not_kept_are_named():
    products = RowwiseProducts(*torch.randn(3, 1, 1, 4, 2), torch.float32)
    for broken in (products, DenseProducts(torch.ones(1, 1, 4, 4))):
        with pytest.raises(AttributeError, match="attention_gradient was not kept"):
            broken.weighted_rows(torch.ones(1, 4))


def test_blocks_that_need_matrices_keep_them(rowwise):
    model, images = make("cls"), torch.randn(1, 3, 32, 32, dtype=torch.float64)
    structure = read_structure(model, ModelInputs((images,)))
    everywhere, last = frozenset(range(3)), frozenset({2})
    needed, weight = dict.fromkeys(("attention", "attention_gradient"), everywhere), next(model.parameters())
    kept = attention_storage.resolve_products({**needed, "A": last}, structure, 1, weight)
    assert kept["rowwise"] == kept["dZ"] == {0, 1}
    assert not set(kept) & set(PRODUCT_KINDS)
    assert "rowwise" not in attention_storage.resolve_products({"attention": last}, structure, 1, weight, last)


def test_means_of_few_tokens_are_kept(monkeypatch):
    monkeypatch.setattr(attention_storage, "ROWWISE_FROM", {"half": 0, "other": 0})
    model, images, last = make("cls"), torch.randn(1, 3, 32, 32, dtype=torch.float64), frozenset({2})
    structure, weight = read_structure(model, ModelInputs((images,))), next(model.parameters())
    assert "rowwise" not in attention_storage.resolve_products({"attention_mean": last}, structure, 1, weight)
    long = replace(structure, layers=tuple(replace(o, size=(200, 200)) for o in structure.layers))
    assert attention_storage.resolve_products({"attention_mean": last}, long, 1, weight)["rowwise"] == last


def test_the_structure_of_large_inputs_is_read_without_matrices(monkeypatch):
    """The self-check makes attention explicit; where that takes too much memory, it lets the fused function run."""
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    explicit = read_structure(make("registers"), ModelInputs((images,)))
    monkeypatch.setattr(attention_recorder, "CHECKED_UP_TO", 0)
    shapes = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t)
    with hooks:
        fused = read_structure(make("registers"), ModelInputs((images,)))
    n = fused.tokens
    assert not [s for s in shapes if s[-2:] == (n, n)]
    assert (fused.layout, fused.layers, fused.failed) == (explicit.layout, explicit.layers, ())


KERNELS = """
import torch
from vitrail.fast.row_kernels import row_products
for b, H, m, n, dh in ((2, 2, 70, 70, 8), (1, 1, 33, 130, 20)):
    Q, dZ = (torch.randn(b, m, H, dh).transpose(1, 2) for _ in range(2))
    K, V = (torch.randn(b, H, n, dh) for _ in range(2))
    v = torch.rand(b, m)
    A = torch.softmax(Q.double() @ K.double().mT * 0.3, -1)
    M = (A * (dZ.double() @ V.double().mT)).clamp_min(0)
    for got, expected in (
        (row_products(Q, K, v, 0.3), v.double()[:, None, None] @ A),
        (row_products(Q, K, v, 0.3, V, dZ), v.double()[:, None, None] @ M),
    ):
        error = (got.double() - expected.squeeze(-2)).abs().max() / expected.abs().max()
        assert error < 1e-5, (got.shape, error)
    A = torch.softmax((Q.double() @ K.double().mT * 0.3).masked_fill(~torch.ones(m, n).tril().bool(), -torch.inf), -1)
    M = (A * (dZ.double() @ V.double().mT)).clamp_min(0)
    for got, expected in (
        (row_products(Q, K, v, 0.3, causal=True), v.double()[:, None, None] @ A),
        (row_products(Q, K, v, 0.3, V, dZ, causal=True), v.double()[:, None, None] @ M),
    ):
        error = (got.double() - expected.squeeze(-2)).abs().max() / expected.abs().max()
        assert error < 1e-5, ("causal", got.shape, error)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="this build of torch has no Triton")
def test_kernels_agree_with_matrices():
    """By Triton's interpreter, which runs on the CPU; it must be chosen before Triton is imported."""
    found = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", KERNELS], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if "only 0-dimensional arrays can be converted" in found.stderr:
        pytest.skip("this version of Triton's interpreter does not work with this version of numpy")
    assert not found.returncode, found.stderr[-2000:]
