"""Grad-ECLIP: values of the last attention, weighted with the gradient at its output and a loosened similarity."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.trace import Block, Needs, Trace
from vitrail.methods.registry import Applies, check_whole_numbers, register


def _needs(blocks: int, similarity: bool) -> Needs:
    kinds = ("V", "dZ", "Q", "K") if similarity else ("V", "dZ")
    return dict.fromkeys(kinds, slice(-max(1, blocks), None))


@register(
    "grad_eclip",
    "Grad-ECLIP",
    "gradient",
    cite="zhao2024gradient",
    needs=_needs,
    score="logit",
    applies=Applies(),
)
def grad_eclip(trace: Trace, *, blocks: int = 1, similarity: bool = True) -> Tensor:
    """The gradient at the last attention's output times each token's value, times its similarity to the read token.

    Args:
        trace: The pass, with gradients.
        blocks: Number of last blocks whose maps are summed before negative sums are set to zero.
        similarity: Whether values are weighted with the cosine of the query of the token that the head reads and each
            key, scaled to [0, 1] over the patches; it stands for the attention, which is far sparser.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    check_whole_numbers(1, blocks=blocks)
    layers = [_weighted_values(trace, block, similarity) for block in trace.blocks[-blocks:]]
    for layer in layers:
        trace.note("layer", layer)
    return sum(layers[1:], start=layers[0]).clamp_min(0)


def _weighted_values(trace: Trace, block: Block, similarity: bool) -> Tensor:
    """The sum over the queries that the head reads, and over channels, of gradient · value · similarity, (b, S)."""
    values = trace.patches(block.V, 2)
    read = trace.reading(block.dZ.shape[2], block.V.shape[2]) != 0
    gradient = block.dZ * (read[:, None, :, None] if read.dim() == 2 else read[:, None])
    products = _merged(gradient) @ _merged(values).mT
    if not similarity:
        return products.sum(1)
    cosine = F.normalize(_merged(block.Q), dim=-1) @ F.normalize(_merged(trace.patches(block.K, 2)), dim=-1).mT
    there = torch.ones_like(cosine[:, :1], dtype=torch.bool)
    if trace.valid is not None:
        there = trace.patches(trace.valid)[:, None]
    low = cosine.masked_fill(~there, torch.inf).amin(-1, keepdim=True)
    high = cosine.masked_fill(~there, -torch.inf).amax(-1, keepdim=True)
    scaled = (cosine - low) / torch.where(high > low, high - low, 1.0)
    return (products * scaled.clamp(0, 1)).sum(1)


def _merged(heads: Tensor) -> Tensor:
    """The channels of all heads of each token, shape (b, H, n, dh) to (b, n, H·dh)."""
    return heads.transpose(1, 2).flatten(2)
