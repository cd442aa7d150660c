"""Grad-SAM: attention times positive gradient, averaged over everything but the patches."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.trace import ALL, Block, Trace
from vitrail.methods.registry import register


@register(
    "gradsam",
    "Grad-SAM",
    "gradient",
    cite="barkan2021gradsam",
    needs={"attention": ALL, "attention_gradient": ALL},
    score="logit",
)
def gradsam(trace: Trace) -> Tensor:
    """How much attention with positive gradient each patch receives: the mean over blocks, heads and queries.

    Args:
        trace: The pass, with gradients.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    received = [_received(trace, block) for block in trace.blocks]
    return trace.patches(torch.stack(received).mean(0))


def _received(trace: Trace, block: Block) -> Tensor:
    batch, queries, _ = block.attention.size
    return block.attention.weighted_rows(trace.evenly(queries).expand(batch, -1)).mean(1)
