"""The doors of the attention mode, in every way they are opened."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import vitrail
from vitrail.capture.attention import AttentionMode
from vitrail.errors import ModelError
from vitrail.testing import tiny_vit

EVERYTHING = {kind: frozenset({0}) for kind in ("A", "A_mean", "O", "Q", "K", "V", "dA", "dQ")}


def opened(*args, **kwargs):
    mode = AttentionMode(EVERYTHING, batch=args[0].shape[0], dtype=args[0].dtype)
    with mode:
        out = F.scaled_dot_product_attention(*args, **kwargs)
    return out, mode


@settings(max_examples=40, deadline=None)
@given(
    b=st.integers(1, 3), heads=st.sampled_from([1, 2, 4]), groups=st.sampled_from([1, 2]), m=st.integers(1, 6),
    n=st.integers(1, 6), dh=st.integers(1, 5), mask=st.sampled_from([None, "bool", "float", "causal"]),
    scale=st.sampled_from([None, 0.3]),
)  # fmt: skip
def test_explicit_equals_fused(b, heads, groups, m, n, dh, mask, scale):
    groups = min(groups, heads)
    query = torch.randn(b, heads, m, dh, dtype=torch.float64)
    key, value = torch.randn(2, b, heads // groups, n, dh, dtype=torch.float64)
    given_mask = {
        "bool": torch.rand(b, 1, m, n) > 0.5,  # some queries may look nowhere
        "float": torch.randn(m, n, dtype=torch.float64),
    }.get(mask)
    options = {"attn_mask": given_mask, "is_causal": mask == "causal", "scale": scale, "enable_gqa": groups > 1}
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    found, mode = opened(query, key, value, **options)
    assert torch.allclose(found, expected, atol=1e-12)
    block = mode.calls[0].block
    assert block.A.shape == block.O.shape == (b, heads, m, n)
    assert torch.allclose(block.A.mean(1), block.A_mean)


def test_dropout_is_off():
    query = torch.randn(1, 2, 3, 4)
    out, _ = opened(query, query, query, dropout_p=0.9)
    assert torch.allclose(out, F.scaled_dot_product_attention(query, query, query), atol=1e-6)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_multi_head_module(batch_first, masked, separate):
    kdim = 6 if separate else None
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first, kdim=kdim, vdim=kdim).double().eval()
    query = torch.randn(3, 5, 8, dtype=torch.float64)
    other = torch.randn(3, 5, 6, dtype=torch.float64) if separate else query
    batch = 3 if batch_first else 5
    masks = {}
    if masked:
        masks = {"attn_mask": torch.triu(torch.ones(*(2 * [8 - batch]), dtype=torch.bool), 1),
                 "key_padding_mask": torch.arange(8 - batch).expand(batch, -1) >= 8 - batch - 1}  # fmt: skip
    expected, weights = layer(query, other, other, **masks)
    mode = AttentionMode(EVERYTHING, batch=batch, dtype=torch.float64)
    with mode:
        found, seen = layer(query, other, other, **masks)
    assert torch.allclose(found, expected, atol=1e-12)
    assert torch.allclose(seen, weights, atol=1e-12)
    assert mode.calls[0].shape == (batch, 2, 8 - batch, 8 - batch)


def test_multi_head_with_extra_keys_is_refused():
    layer = nn.MultiheadAttention(8, 2, add_bias_kv=True).eval()
    with pytest.raises(ModelError, match="add_bias_kv"), AttentionMode(EVERYTHING, batch=1):
        layer(*[torch.randn(3, 1, 8)] * 3)


def test_what_nobody_asked_for_stays_fused():
    query = torch.randn(1, 2, 3, 4)
    mode = AttentionMode({}, batch=1)
    with mode:
        out = F.scaled_dot_product_attention(query, query, query)
    assert torch.equal(out, F.scaled_dot_product_attention(query, query, query))
    assert set(vars(mode.calls[0].block)) == {"pool"}


def test_a_softmax_that_is_no_attention_is_left_alone():
    with AttentionMode(EVERYTHING, batch=2) as mode:
        torch.randn(2, 3, 4).softmax(-1).sum()
        torch.randn(2, 5).softmax(-1)
        torch.randn(2, 3, 4) @ torch.randn(4, 2)
    assert mode.calls == []


METHODS = ["raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"]


@pytest.mark.parametrize("how", ["bfloat16", "float16", "autocast"])
@pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
def test_half_precision(how):
    """Half precision follows single precision as closely as it can, and what is kept is single precision."""
    model, images = tiny_vit(heads=2), torch.randn(2, 3, 32, 32)
    expected = vitrail.explain(model, images, methods=METHODS, target=1)
    if how == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = vitrail.explain(model, images, methods=METHODS, target=1)
    else:
        found = vitrail.explain(tiny_vit(heads=2).to(getattr(torch, how)), images, methods=METHODS, target=1)
    for name in METHODS:
        assert found[name].grid.dtype == found[name].maps.dtype == torch.float32
        assert torch.isfinite(found[name].maps).all()
        close = torch.corrcoef(torch.stack([found[name].grid.flatten(), expected[name].grid.flatten()]))[0, 1]
        assert close > 0.95, name


def test_double_precision_is_kept():
    found = vitrail.explain(tiny_vit().double(), torch.randn(1, 3, 32, 32), "rollout")
    assert found.grid.dtype == torch.float64
    assert found.maps.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_agrees_with_cpu():
    model, images = tiny_vit(), torch.randn(2, 3, 32, 32)
    expected = vitrail.explain(model, images, methods=METHODS, target=1)
    found = vitrail.explain(model.cuda(), images, methods=METHODS, target=1)
    for name in METHODS:
        assert found[name].maps.is_cuda
        assert torch.allclose(found[name].maps.cpu(), expected[name].maps, atol=1e-3), name
