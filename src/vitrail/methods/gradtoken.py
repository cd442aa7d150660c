"""GradToken: the class token's query gradient against the keys, spread by averaged attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vitrail.capture.trace import LAST, Block, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import sum_columns
from vitrail.methods.registry import choose, register

SOFTMAX = ("jacobian", "elementwise")
SIMILARITY = ("dot", "cosine")


def _needs(variant: int, depth: int, softmax: str, **_: object) -> Needs:
    needs: dict[str, slice] = {"dQ": LAST, "K": LAST}
    if softmax == "elementwise":
        needs = {"A": LAST, "dA": LAST, "K": LAST}
    if variant:
        needs["attention_mean"] = slice(depth - 1, -1)
    return needs


def _signed(heads: str, **_: object) -> bool:
    return heads == "mean"


VARIANTS: dict[str, dict[str, int | str]] = {
    **{str(v): {"variant": v} for v in range(5)},
    "i": {"heads": "mean"},
    "ii": {"heads": "relu"},
    "cosine": {"similarity": "cosine"},
}


@register(
    "gradtoken",
    "GradToken",
    "gradient",
    cite="cheng2025gradtoken",
    needs=_needs,
    score="logit",
    signed=_signed,
    variants=VARIANTS,
)
def gradtoken(
    trace: Trace,
    *,
    variant: int = 4,
    heads: str = "relu",
    depth: int = 1,
    softmax: str = "jacobian",
    similarity: str = "dot",
) -> Tensor:
    """Keys of the last block against the gradient at the readout's query, spread over the patches by attention.

    Args:
        trace: The pass, with gradients.
        variant: How attention of the blocks below the last spreads the relevance M of each head. 0: not at all.
            1: rollout of the blocks, its readout row times M. 2: rollout in reverse order, as a matrix on M.
            3: average of the blocks, its readout row times M. 4: average of the blocks, as a matrix on M.
        heads: "relu" keeps each head's positive part before averaging (scheme ii); "mean" averages as is (scheme i).
        depth: First block that takes part, counted from 1; the number of blocks means none does.
        softmax: How the gradient passes the last block's softmax: "jacobian", its derivative, or "elementwise", the
            product of each entry with A (1 − A), the diagonal of the Jacobian.
        similarity: How keys are compared with the gradient: "dot", their product, in which long keys and heads with
            large gradients weigh more, or "cosine", the product of both scaled to unit length.

    Returns:
        Relevance of patches, shape (b, S); not negative with "relu".
    """
    choose("variant", variant, range(5))
    choose("heads", heads, ("relu", "mean"))
    choose("softmax", softmax, SOFTMAX)
    choose("similarity", similarity, SIMILARITY)
    total = len(trace.blocks)
    if not 1 <= depth <= total:
        raise OptionError(f"depth={depth} is not a block: this model has blocks 1 to {total}")
    last = trace.blocks[-1]
    G = _query_gradient(trace, last, softmax)
    K = last.K
    if similarity == "cosine":
        K, G = normalize(K, dim=-1), normalize(G, dim=-1)
    M = trace.patches((K @ G.unsqueeze(-1)).squeeze(-1))
    spread = _spread(trace, M, variant, depth) if depth < total else M
    if trace.notes is not None:
        trace.note("heads", M)
        trace.note("heads_spread", spread)
        for first in range(depth, total + 1):  # each map as it would be with a later first block
            reached = _spread(trace, M, variant, first) if first < total else M
            trace.note("depth", (reached.clamp_min(0) if heads == "relu" else reached).mean(1))
    return (spread.clamp_min(0) if heads == "relu" else spread).mean(1)


def _query_gradient(trace: Trace, last: Block, softmax: str) -> Tensor:
    """Gradient at the queries of the last block, summed as the head reads them, shape (b, H, dh)."""
    readout = trace.readout.view(-1, 1, trace.readout.shape[-1], 1)
    if softmax == "jacobian":
        return (readout * last.dQ).sum(-2)
    dO = (readout * last.A * (1 - last.A) * last.dA).sum(-2, keepdim=True)
    G: Tensor = (dO @ last.K).squeeze(-2)
    return G / math.sqrt(last.K.shape[-1])


def _spread(trace: Trace, M: Tensor, variant: int, depth: int) -> Tensor:
    """Propagate M, shape (b, H, S), through the blocks from ``depth`` to the last but one."""
    if variant == 0:
        return M
    total = len(trace.blocks)
    below = trace.blocks[depth - 1 : total - 1]
    batch, _, tokens = below[0].attention.size
    v = trace.reading(tokens, tokens).expand(batch, -1)
    if variant == 4:
        return trace.patches(sum_columns(below, trace.on_tokens(M, tokens))) / total
    if variant == 3:
        received = sum((b.attention.mean_row(v) for b in below), start=torch.zeros_like(v)) / total
        return trace.patches(received)[:, None] * M
    if variant == 1:
        for block in reversed(below):
            v = v + block.attention.mean_row(v)
        return trace.patches(v)[:, None] * M
    u = trace.on_tokens(M, tokens)
    for block in reversed(below):
        u = u + block.attention.mean_columns(u)
    return trace.patches(u)
