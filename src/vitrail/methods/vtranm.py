"""VTranM (published as TokenTM): attention times what the values do to the vectors, over all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.inside.trace import ALL, LAST, Block, Needs, Trace
from vitrail.methods.flow import rows
from vitrail.methods.registry import choose, register, within

VARIANTS = ("baseline", "af", "af+l", "full")
TINY = 1e-12


@dataclass(frozen=True)
class Measure:
    """How a vector's transformation is measured: which vectors are compared, and by what."""

    length: bool
    direction: bool
    embedding: str
    value_input: str
    per_head: bool
    value_bias: bool
    projection_bias: bool
    layer_scale: bool
    necc_over: str
    post_norm: str


def _needs(
    variant: str, layer: int, embedding: str, value_input: str, value_bias: bool, init: str | None, post_norm: str,
    **_: object,
) -> Needs:  # fmt: skip
    if variant == "baseline":
        return {kind: slice(layer, layer + 1 or None) for kind in ("A", "dA")}
    needs: dict[str, slice] = {"A": ALL, "dA": ALL}
    if variant == "af" and init != "norm":
        return needs
    needs["stream"] = ALL
    if variant == "af":
        return needs
    # What the pool's values were made of stands in for the stream, which does not pass through a pool.
    needs |= {"V": ALL, "value_path": LAST}
    if value_input == "raw" or not value_bias:
        needs["value_path"] = ALL
    if embedding == "norm" or post_norm == "fold":
        needs["norms"] = ALL
    return needs


@register("vtranm", "VTranM (TokenTM)", "gradient", needs=_needs, class_specific=True, score="prob",
          cite="wu2024token", variants={v: {"variant": v} for v in VARIANTS})  # fmt: skip
def vtranm(
    trace: Trace, *, variant: str = "full", layer: int = 0, embedding: str = "residual", value_input: str = "norm",
    per_head: bool = True, value_bias: bool = True, projection_bias: bool = False, layer_scale: bool = True,
    necc_over: str = "all", init: str | None = None, post_norm: str = "ignore",
) -> Tensor:  # fmt: skip
    """Contributions C ← U·C over all attention and MLP layers, with U = I + mean over heads of dA⁺ ⊙ A·diag(w).

    w measures each vector's transformation from E to Ẽ: the ratio of lengths times the normalised exponential of the
    cosine between them (NECC). For an MLP, U = I + diag(w).

    Args:
        trace: The pass, with gradients.
        variant: "full"; "af+l" measures length only; "af" nothing, which is Transformer-MM; "baseline" takes one
            attention layer and multiplies nothing.
        layer: The block the baseline takes.
        embedding: E is the "residual" stream, or the "norm" of it.
        value_input: Values come from the "norm" of the stream, as in the forward pass, or from the "raw" stream.
        per_head: Measure each head's vectors by themselves, or all heads' sum.
        value_bias: Whether the value projection's bias is part of Ẽ.
        projection_bias: Whether the output projection's bias is; heads share it evenly.
        layer_scale: Whether LayerScale is.
        necc_over: NECC sums to one over "all" tokens or over the "patches".
        init: C starts as diag(‖X_0‖) ("norm") or as I ("identity"); by default "norm" where lengths are measured.
        post_norm: In models that normalise after the sum, "ignore" that norm or "fold" its centring and gain into
            the vectors compared.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    choose("variant", variant, VARIANTS)
    for option, value, allowed in (
        ("embedding", embedding, ("residual", "norm")), ("value_input", value_input, ("norm", "raw")),
        ("necc_over", necc_over, ("all", "patches")), ("init", init, (None, "norm", "identity")),
        ("post_norm", post_norm, ("ignore", "fold")),
    ):  # fmt: skip
        choose(option, value, allowed)
    if variant == "baseline":
        within("layer", layer, len(trace.blocks), "blocks")
        block = trace.blocks[layer]
        r = trace.reading(*block.A.shape[-2:])
        moved = rows(r.expand(len(block.A), -1), _weighted(block)).mean(1)
        return trace.patches(moved if block.pool else r + moved)
    measure = Measure(
        variant in ("af+l", "full"), variant == "full", embedding, value_input, per_head, value_bias,
        projection_bias, layer_scale, necc_over, post_norm,
    )  # fmt: skip

    def step(v: Tensor, block: Block) -> Tensor:
        moved = rows(v, _weighted(block))
        return (moved * attention_weight(trace, block, measure) if measure.length else moved).mean(1)

    v = trace.readout.expand(len(trace.blocks[-1].A), -1)
    for block in reversed(trace.blocks):
        if measure.length and not block.pool:
            v = v * (1 + mlp_weight(trace, block, measure))  # the MLP acts after attention, so it comes first here
        moved = step(v, block)
        v = moved if block.pool else v + moved
    if init == "norm" or (init is None and measure.length):
        v = v * trace.blocks[0].X.norm(dim=-1)
    return trace.patches(v)


def _weighted(block: Block) -> Tensor:
    return (block.dA * block.A).clamp_min_(0)  # A ≥ 0, so this is dA⁺ ⊙ A


def attention_weight(trace: Trace, block: Block, measure: Measure) -> Tensor:
    """The weight w of an attention layer, shape (b, H, n), or (b, 1, n) where heads are measured together.

    The vectors Ẽ_h = V_h·Wo_h are never formed: their lengths come from the Gram matrix of Wo_h, dh×dh, and their
    products with E from E·Wo_hᵀ, which is as small as V.
    """
    E = _embedding(block, "X", measure)
    V = _values(block, measure)
    heads, dh = V.shape[1], V.shape[3]
    Wo = block.Wo if not (measure.layer_scale and block.gamma is not None) else block.gamma[:, None] * block.Wo
    bias = None
    if measure.projection_bias and block.bo is not None:
        bias = block.bo if not (measure.layer_scale and block.gamma is not None) else block.gamma * block.bo
    if measure.post_norm == "fold" and block.norm_gain is not None:
        Wo, bias = _fold(Wo, block.norm_gain, 0), None if bias is None else _fold(bias, block.norm_gain, 0)
        E = _fold(E, block.norm_gain, -1)
    if not measure.per_head:
        changed = torch.nn.functional.linear(V.transpose(1, 2).flatten(2), Wo, bias)
        return _weigh(trace, E.norm(dim=-1), changed.norm(dim=-1), (changed * E).sum(-1), measure)[:, None]
    split = Wo.reshape(-1, heads, dh).permute(1, 2, 0)  # (H, dh, d)
    gram = split @ split.transpose(1, 2)
    square = ((V @ gram) * V).sum(-1)
    product = ((E @ Wo).reshape(*E.shape[:2], heads, dh).transpose(1, 2) * V).sum(-1)
    if bias is not None:
        share = bias / heads
        square = square + 2 * (V @ (split @ share)[:, :, None]).squeeze(-1) + share.dot(share)
        product = product + (E @ share)[:, None]
    return _weigh(trace, E.norm(dim=-1)[:, None], square.clamp_min(0).sqrt(), product, measure)


def mlp_weight(trace: Trace, block: Block, measure: Measure) -> Tensor:
    """The weight w of an MLP layer, shape (b, n)."""
    E = _embedding(block, "X_mid", measure)
    assert block.F is not None
    changed = block.F
    if not measure.layer_scale and block.F_gamma is not None:
        changed = torch.where(block.F_gamma == 0, 0.0, changed / block.F_gamma)
    if measure.post_norm == "fold" and block.F_norm_gain is not None:
        E, changed = _fold(E, block.F_norm_gain, -1), _fold(changed, block.F_norm_gain, -1)
    return _weigh(trace, E.norm(dim=-1), changed.norm(dim=-1), (changed * E).sum(-1), measure)


def _weigh(trace: Trace, before: Tensor, after: Tensor, product: Tensor, measure: Measure) -> Tensor:
    """Ratio of lengths, times NECC if directions are measured."""
    ratio = after / before.clamp_min(TINY)
    if not measure.direction:
        return ratio
    necc = (product / (before * after).clamp_min(TINY)).exp()
    over = necc if measure.necc_over == "all" else trace.patches(necc)
    return ratio * necc / over.sum(-1, keepdim=True)


def _embedding(block: Block, name: str, measure: Measure) -> Tensor:
    if block.pool:
        if not hasattr(block, "V_in"):
            raise OptionError("what the attention pool read was not found, so its vectors cannot be measured")
        return block.V_in
    E = getattr(block, name if measure.embedding == "residual" else f"{name}_norm")
    if E is None:
        raise OptionError(f"embedding='norm' needs a norm in front of each layer; none was seen before {name}")
    return E  # type: ignore[no-any-return]


def _values(block: Block, measure: Measure) -> Tensor:
    """The values, shape (b, H, n, dh), with or without bias, of the normalised or the raw stream."""
    if measure.value_input == "norm" and measure.value_bias:
        return block.V
    heads = block.V.shape[1]

    if not hasattr(block, "Wv"):
        raise OptionError("value_input='raw' and value_bias=False need the value projection, which was not found here")

    def project(source: Tensor) -> Tensor:
        return (source @ block.Wv.T).reshape(*source.shape[:2], heads, -1).transpose(1, 2)

    plain = project(block.V_in)
    if measure.value_input == "norm":
        return plain
    raw = project(block.V_in if block.pool else block.X)
    return raw + (block.V - plain) if measure.value_bias else raw


def _fold(vectors: Tensor, gain: Tensor, axis: int) -> Tensor:
    """Centre along the width and apply a norm's gain; its scale is common to both vectors compared and cancels."""
    centred = vectors - vectors.mean(axis, keepdim=True)
    return centred * (gain if axis == -1 or vectors.dim() == 1 else gain[:, None])
