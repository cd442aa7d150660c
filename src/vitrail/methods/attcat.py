"""AttCAT: the gradient of each block's input times that input, weighted by the attention it receives."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.trace import ALL, Trace
from vitrail.methods.registry import choose, register


def _signed(sign: str, **_: object) -> bool:
    return sign == "signed"


@register(
    "attcat",
    "AttCAT",
    "gradient",
    cite="qiang2022attcat",
    needs={"X": ALL, "dX": ALL, "attention_mean": ALL},
    score="logit",
    signed=_signed,
)
def attcat(trace: Trace, *, query: str = "mean", sign: str = "signed") -> Tensor:
    """Gradient times input of every token at every block, weighted by the attention the token receives there, summed.

    Args:
        trace: The pass, with gradients.
        query: Whose attention counts: the "mean" of all tokens, as released, or that of the "readout".
        sign: What is kept of the sum: "signed", "positive" or "abs".

    Returns:
        Relevance of patches, shape (b, S).
    """
    choose("query", query, ("mean", "readout"))
    choose("sign", sign, ("signed", "positive", "abs"))
    total = torch.zeros((), device=trace.device)
    for block in trace.blocks:
        if block.pool:  # its input is the output of the last block, which no attention receives
            continue
        cat = (block.X * block.dX).sum(-1)
        _, m, n = block.attention.size
        weights = trace.reading(m, n) if query == "readout" else trace.evenly(m)
        received = block.attention.mean_row(weights.expand(len(cat), -1))
        trace.note("cat", trace.patches(cat))
        total = total + received * cat
    relevance = trace.patches(total)
    return relevance.clamp_min(0) if sign == "positive" else relevance.abs() if sign == "abs" else relevance
