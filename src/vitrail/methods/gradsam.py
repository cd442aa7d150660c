"""Grad-SAM: attention times positive gradient, averaged over everything but the patches."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.trace import ALL, Block, Trace
from vitrail.methods.registry import choose, register


@register(
    "gradsam",
    "Grad-SAM",
    "gradient",
    cite="barkan2021gradsam",
    needs={"attention": ALL, "attention_gradient": ALL},
    score="logit",
    variants={"readout": {"queries": "readout"}},
)
def gradsam(trace: Trace, *, queries: str = "all") -> Tensor:
    """How much attention with positive gradient each patch receives: the mean over blocks, heads and queries.

    Args:
        trace: The pass, with gradients.
        queries: "all", or "readout" for the tokens that the output is read from, such as the last token of a prompt:
            what other tokens gather is then left out.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    choose("queries", queries, ("all", "readout"))
    received = [_received(trace, block, queries) for block in trace.blocks]
    return trace.patches(torch.stack(received).mean(0))


def _received(trace: Trace, block: Block, queries: str) -> Tensor:
    batch, count, tokens = block.attention.size
    start = trace.reading(count, tokens) if queries == "readout" else trace.evenly(count)
    return block.attention.weighted_rows(start.expand(batch, -1)).mean(1)
