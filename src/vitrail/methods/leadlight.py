"""Leadlight: class-specific relevance of patches, spread over patches that are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import normalize

from vitrail.capture.row_products import RowwiseProducts
from vitrail.capture.trace import ALL, LAST, Block, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import sum_columns
from vitrail.methods.registry import METHODS, choose, register

#: Where the relevance to be spread comes from: a method and its options, none for the last block alone.
SOURCES: dict[str, dict[str, Any]] = {"vtranm": {"variant": "af+l"}, "transformer_mm": {"start": 0}, "last": {}}
AT_ONCE = 2**24  # numbers of W, 64 MiB in single precision
VARIANTS = {"fast": {"source": "last", "score": "logit"}, "attention": {"spread": "attention", "rounds": 1}}


def _needs(source: str, spread: str, **_: object) -> Needs:
    choose("source", source, SOURCES)
    choose("spread", spread, ("keys", "attention"))
    needs: Needs = {"attention": LAST, "attention_gradient": LAST}
    if source != "last":
        needs = METHODS[source].needed({**METHODS[source].options, **SOURCES[source]})
    return {**needs, **({"K": ALL} if spread == "keys" else {"attention_mean": slice(0, -1)})}


@register("leadlight", "Leadlight", "gradient", cite="vitrail", needs=_needs, score="prob", variants=VARIANTS)
def leadlight(
    trace: Trace, *, source: str = "vtranm", spread: str = "keys", power: float = 4, rounds: int = 2, mix: float = 0.75
) -> Tensor:
    """Relevance of the patches, mixed with its average over patches with similar keys.

    R' = W·W·R, where W is the positive cosine between the keys of two patches to some power, with rows that sum to
    one; R and R' are scaled to a maximum of one and mixed.

    Args:
        trace: The pass, with gradients.
        source: Where the relevance R comes from: "vtranm" (with lengths, without cosines), "transformer_mm", or "last"
            for the last block alone, which needs a backward through one block only.
        spread: What W is made of: "keys" of the upper half of the blocks, those of each block scaled to unit length; or
            "attention", its mean between patches over the blocks below the last, without the lower quarter.
        power: Exponent of the cosine; a higher one spreads over fewer patches.
        rounds: How often W is applied.
        mix: Share of R' in the result, from 0 (R alone) to 1 (R' alone).

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    if not 0 <= mix <= 1 or not power > 0 or rounds < 1:
        raise OptionError(f"expected mix from 0 to 1, power > 0 and rounds ≥ 1, got {mix=}, {power=} and {rounds=}")
    R = averaged = _scaled(_source(trace, source))
    spread_once = _by_keys(trace, power) if spread == "keys" else _by_attention(trace)
    for _ in range(rounds):
        averaged = spread_once(averaged)
    trace.note("source", R)
    trace.note("spread", averaged)
    return (1 - mix) * R + mix * _scaled(averaged)


def _source(trace: Trace, source: str) -> Tensor:
    if source == "last":
        attention = trace.blocks[-1].attention
        return trace.patches(attention.weighted_rows(trace.readout.expand(attention.size[0], -1)).mean(1))
    return METHODS[source].apply(trace, {**METHODS[source].options, **SOURCES[source]})


def _by_keys(trace: Trace, power: float) -> Callable[[Tensor], Tensor]:
    """W as a function on relevance, shape (b, S); of large inputs a few rows of W are in memory at a time."""
    upper = trace.blocks[len(trace.blocks) // 2 :]
    cosines = _cosines([_keys(trace, block) for block in upper])
    batch, count = len(upper[0].K), trace.patches(upper[0].K, -2).shape[-2]
    at_once = max(1, AT_ONCE // (batch * count))
    pieces = [slice(start, start + at_once) for start in range(0, count, at_once)]

    def affinity(rows: slice) -> Tensor:
        W = cosines(rows).clamp_min_(0) ** power
        if trace.valid is not None:  # padding neither gives nor gets relevance
            valid = trace.patches(trace.valid)
            W = W * (valid[:, rows, None] & valid[:, None])
        return W / W.sum(-1, keepdim=True).clamp_min(torch.finfo(W.dtype).tiny)

    kept = [affinity(pieces[0])] if len(pieces) == 1 else None

    def spread(relevance: Tensor) -> Tensor:
        parts = kept or (affinity(rows) for rows in pieces)
        return torch.cat([(W @ relevance.unsqueeze(-1)).squeeze(-1) for W in parts], -1)

    return spread


def _keys(trace: Trace, block: Block) -> Tensor:
    """Keys of the patches, heads side by side, shape (b, S, d); in the model's precision where they were kept in it."""
    own = block.products.K if isinstance(block.products, RowwiseProducts) else block.K
    return trace.patches(own, -2).transpose(1, 2).flatten(2)


def _cosines(keys: Sequence[Tensor]) -> Callable[[slice], Tensor]:
    """From some rows to their cosines with all keys, the mean over blocks, shape (b, rows, S)."""
    if keys[0].element_size() > 2:
        joined = torch.cat([normalize(K, dim=-1) for K in keys], -1).mul_(len(keys) ** -0.5)
        return lambda rows: joined[:, rows] @ joined.transpose(-2, -1)
    # Half-precision units multiply these numbers exactly and add in single precision; lengths are divided out after.
    inverse = [1 / vector_norm(K, dim=-1, dtype=torch.float32).clamp_min(1e-12) for K in keys]

    def mean(rows: slice) -> Tensor:
        total: Tensor | None = None
        for K, each in zip(keys, inverse, strict=True):
            product = _half_product(K[:, rows], K.transpose(-2, -1))
            product *= each[:, rows, None] / len(keys)
            total = product.mul_(each[:, None]) if total is None else total.addcmul_(product, each[:, None])
        assert total is not None
        return total

    return mean


def _half_product(left: Tensor, right: Tensor) -> Tensor:
    """The product of tensors in half precision, in single precision."""
    try:
        return torch.bmm(left, right, out_dtype=torch.float32)
    except (RuntimeError, TypeError):  # another device than CUDA, or an older torch
        return left.float() @ right.float()


def _by_attention(trace: Trace) -> Callable[[Tensor], Tensor]:
    total = len(trace.blocks)
    if total < 2:
        raise OptionError('spread="attention" needs a block below the last, and this model has one: use "keys"')
    below = trace.blocks[min(total // 4, total - 2) : -1]

    def spread(relevance: Tensor) -> Tensor:
        u = trace.on_tokens(relevance, below[0].attention.size[2])[:, None]
        return trace.patches(sum_columns(below, u)[:, 0]) / len(below)

    return spread


def _scaled(relevance: Tensor) -> Tensor:
    top = relevance.amax(-1, keepdim=True)
    return relevance / top.where(top > 0, top.new_ones(()))
