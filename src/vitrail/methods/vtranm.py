"""VTranM (published as TokenTM): attention times what the values do to the vectors, over all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.capture.trace import ALL, LAST, Block, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods.registry import choose, register, within

VARIANTS = ("baseline", "af", "af+l", "full")
TINY = 1e-12
AT_ONCE = 2**24  # numbers of one kind, 64 MiB in single precision


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
    variant: str,
    layer: int,
    embedding: str,
    value_input: str,
    value_bias: bool,
    init: str | None,
    post_norm: str,
    **_: object,
) -> Needs:
    if variant == "baseline":
        return {kind: slice(layer, layer + 1 or None) for kind in ("attention", "attention_gradient")}
    needs: dict[str, slice] = {"attention": ALL, "attention_gradient": ALL}
    if variant == "af" and init != "norm":
        return needs
    needs["stream"] = ALL
    if variant == "af":
        return needs
    # The input of the pool's values replaces the residual stream, which does not pass through a pool.
    needs |= {"V": ALL, "value_path": LAST}
    if value_input == "raw" or not value_bias:
        needs["value_path"] = ALL
    if embedding == "norm" or post_norm == "fold":
        needs["norms"] = ALL
    return needs


@register(
    "vtranm",
    "VTranM (TokenTM)",
    "gradient",
    cite="wu2024token",
    needs=_needs,
    score="prob",
    variants={v: {"variant": v} for v in VARIANTS},
)
def vtranm(
    trace: Trace,
    *,
    variant: str = "full",
    layer: int = 0,
    embedding: str = "residual",
    value_input: str = "norm",
    per_head: bool = True,
    value_bias: bool = True,
    projection_bias: bool = False,
    layer_scale: bool = True,
    necc_over: str = "all",
    init: str | None = None,
    post_norm: str = "ignore",
) -> Tensor:
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
        layer_scale: Whether LayerScale is, and the norm of the attention's branch in models that have one: it scales
            what each token receives.
        necc_over: NECC sums to one over "all" tokens or over the "patches".
        init: C starts as diag(‖X_0‖) ("norm") or as I ("identity"); by default "norm" where lengths are measured.
        post_norm: In models that normalise after the sum, "ignore" that norm or "fold" its centring and gain into
            the vectors compared.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    choose("variant", variant, VARIANTS)
    for option, value, allowed in (
        ("embedding", embedding, ("residual", "norm")),
        ("value_input", value_input, ("norm", "raw")),
        ("necc_over", necc_over, ("all", "patches")),
        ("init", init, (None, "norm", "identity")),
        ("post_norm", post_norm, ("ignore", "fold")),
    ):
        choose(option, value, allowed)
    if variant == "baseline":
        within("layer", layer, len(trace.blocks), "blocks")
        block = trace.blocks[layer]
        batch, queries, keys = block.attention.size
        r = trace.reading(queries, keys)
        moved = block.attention.weighted_rows(r.expand(batch, -1)).mean(1)
        return trace.patches(moved if block.pool else r + moved)
    measure = Measure(
        variant in ("af+l", "full"), variant == "full", embedding, value_input, per_head, value_bias,
        projection_bias, layer_scale, necc_over, post_norm,
    )  # fmt: skip

    v = trace.readout.expand(trace.blocks[-1].attention.size[0], -1)
    weights = transformation_weights(trace, measure) if measure.length else [(None, None)] * len(trace.blocks)
    if trace.notes is not None:
        _note(trace, weights)
    for block, (w, w_mlp) in zip(reversed(trace.blocks), reversed(weights), strict=True):
        if w_mlp is not None:
            v = v * (1 + w_mlp)  # the MLP acts after attention, so it comes first on the way down
        scale = None if w is None or not layer_scale else block.branch_scale
        moved = block.attention.weighted_rows(v if scale is None else v * scale)
        moved = (moved if w is None else moved * w).mean(1)
        v = moved if block.pool else v + moved
    if init == "norm" or (init is None and measure.length):
        v = v * _length(trace.blocks[0].narrow("X"))
    return trace.patches(v)


def _note(trace: Trace, weights: Sequence[tuple[Tensor | None, Tensor | None]]) -> None:
    """Record attention and transformation of each block: the readout's attention, and the weights w."""
    for block, (w, w_mlp) in zip(trace.blocks, weights, strict=True):
        batch, queries, keys = block.attention.size
        r = trace.reading(queries, keys).expand(batch, -1)
        trace.note("attention", trace.patches(block.attention.rows(r).mean(1)))
        trace.note("attention_gradient", trace.patches(block.attention.weighted_rows(r).mean(1)))
        if w is not None:
            trace.note("transformation", trace.patches(w.mean(1)))
        if w_mlp is not None:
            trace.note("transformation_mlp", trace.patches(w_mlp))


def transformation_weights(trace: Trace, measure: Measure) -> list[tuple[Tensor, Tensor | None]]:
    """The weights w of every block: of its attention, shape (b, H, n), and of its MLP, shape (b, n); a pool has none.

    Small blocks are computed together, which needs fewer kernel launches.
    """
    weights: list[tuple[Tensor, Tensor | None]] = []
    at_once = max(1, AT_ONCE // trace.blocks[0].V.numel())
    chain = [block for block in trace.blocks if not block.pool]
    for start in range(0, len(chain), at_once):
        group = chain[start : start + at_once]
        weights += zip(attention_weights(trace, group, measure), mlp_weights(trace, group, measure), strict=True)
    for pool in trace.blocks[len(chain) :]:
        weights += [(attention_weights(trace, [pool], measure)[0], None)]
    return weights


def attention_weights(trace: Trace, blocks: Sequence[Block], measure: Measure) -> Tensor:
    """The weights w of attention layers, shape (layers, b, H, n), or (layers, b, 1, n) where heads go together.

    The vectors Ẽ_h = V_h·Wo_h are never formed: their lengths come from the Gram matrix of Wo_h, dh×dh, and their
    products with E from E·Wo_hᵀ, which is as small as V.
    """
    E = _stack([_embedding(block, "X", measure) for block in blocks])
    V = _stack([_values(block, measure).transpose(0, 1) for block in blocks])  # (layers, H, b, n, dh)
    Wo = _stack([block.Wo for block in blocks])
    bias = None
    if measure.projection_bias and blocks[0].bo is not None:
        bias = torch.stack([block.bo for block in blocks if block.bo is not None])
    if measure.layer_scale and blocks[0].gamma is not None:
        gamma = torch.stack([block.gamma for block in blocks if block.gamma is not None])
        Wo, bias = gamma[..., None] * Wo, None if bias is None else gamma * bias
    if measure.post_norm == "fold" and blocks[0].norm_gain is not None:
        gain = torch.stack([block.norm_gain for block in blocks if block.norm_gain is not None])
        E = _fold(E, gain[:, None, None], -1)
        Wo, bias = _fold(Wo, gain[..., None], 1), None if bias is None else _fold(bias, gain, -1)
    layers, heads, b, n, dh = V.shape
    length = _length(E)
    if not measure.per_head:
        joined = V.permute(0, 2, 3, 1, 4).reshape(layers, b * n, heads * dh)
        changed = _times(joined, Wo.transpose(1, 2)).view_as(E)
        changed = changed if bias is None else changed + bias[:, None, None]
        along = _dot(changed, E) if measure.direction else None
        return _weigh(trace, length, _length(changed), along, measure).unsqueeze(2)
    split = Wo.view(layers, -1, heads, dh).permute(0, 2, 3, 1)  # (layers, H, dh, d)
    flat = V.flatten(2, 3)
    square = _dot(_times(flat, split @ split.transpose(-2, -1)), flat)
    product = None
    if measure.direction:
        projected = _times(E.flatten(1, 2), Wo).view(layers, b * n, heads, dh).transpose(1, 2)
        product = _dot(projected, flat)
    if bias is not None:
        share = bias / heads
        across = _times(flat, split @ share[:, None, :, None]).squeeze(-1)
        square = square + 2 * across + (share**2).sum(-1)[:, None, None]
        product = None if product is None else product + _times(E.flatten(1, 2), share[..., None]).transpose(1, 2)
    after = square.clamp_min(0).sqrt().view(layers, heads, b, n).transpose(1, 2)
    product = None if product is None else product.view(layers, heads, b, n).transpose(1, 2)
    return _weigh(trace, length.unsqueeze(2), after, product, measure)


def mlp_weights(trace: Trace, blocks: Sequence[Block], measure: Measure) -> Tensor:
    """The weights w of MLP layers, shape (layers, b, n)."""
    E = _stack([_embedding(block, "X_mid", measure) for block in blocks])
    changed = _stack([added for added in (block.narrow("F") for block in blocks) if added is not None])
    if not measure.layer_scale and blocks[0].F_gamma is not None:
        gamma = torch.stack([block.F_gamma for block in blocks if block.F_gamma is not None])[:, None, None]
        changed = torch.where(gamma == 0, 0.0, changed / gamma)
    if measure.post_norm == "fold" and blocks[0].F_norm_gain is not None:
        gain = torch.stack([block.F_norm_gain for block in blocks if block.F_norm_gain is not None])[:, None, None]
        E, changed = _fold(E, gain, -1), _fold(changed, gain, -1)
    along = _dot(changed, E) if measure.direction else None
    return _weigh(trace, _length(E), _length(changed), along, measure)


# Vectors of a model in half precision are read in that precision, multiplied with its weights as the model does it, and
# summed in single precision: a ratio of lengths and the exponential of a cosine do not feel the rounding.


def _times(vectors: Tensor, matrix: Tensor) -> Tensor:
    """The product, in the precision of the vectors."""
    return vectors @ matrix.to(vectors.dtype)


def _dot(one: Tensor, two: Tensor) -> Tensor:
    """Products of vectors along the last axis, in single precision at least."""
    return (one * two).sum(-1, dtype=torch.promote_types(one.dtype, torch.float32))


def _length(vectors: Tensor) -> Tensor:
    """Lengths of vectors along the last axis, in single precision at least."""
    wide = torch.promote_types(vectors.dtype, torch.float32)
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, dtype=wide)
    return length


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors along a new first axis; a single one is not copied."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(list(tensors))


def _weigh(trace: Trace, before: Tensor, after: Tensor, product: Tensor | None, measure: Measure) -> Tensor:
    """Ratio of lengths, times NECC if directions are measured (by ``product``); tokens are the last axis."""
    ratio = after / before.clamp_min(TINY)
    if product is None:
        return ratio
    cosine = product / (before * after).clamp_min(TINY)
    if trace.valid is not None:
        valid = trace.valid if cosine.dim() == 3 else trace.valid[:, None]
        cosine = cosine.masked_fill(~valid, -torch.inf)
    if measure.necc_over == "all":
        return ratio * cosine.softmax(-1)
    return ratio * (cosine - trace.patches(cosine).logsumexp(-1, keepdim=True)).exp()


def _embedding(block: Block, name: str, measure: Measure) -> Tensor:
    if block.pool:
        if not hasattr(block, "V_in"):
            raise OptionError("what the attention pool read was not found, so its vectors cannot be measured")
        return block.V_in
    if measure.embedding == "residual":
        return block.narrow(name)
    E = getattr(block, f"{name}_norm")
    if E is None:
        raise OptionError(f"embedding='norm' needs a norm in front of each layer; none was seen before {name}")
    return E  # type: ignore[no-any-return]


def _values(block: Block, measure: Measure) -> Tensor:
    """The values, shape (b, H, n, dh), with or without bias, of the normalised or the raw stream."""
    if measure.value_input == "norm" and measure.value_bias:
        return block.narrow("V")
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
    return (vectors - vectors.mean(axis, keepdim=True)) * gain
