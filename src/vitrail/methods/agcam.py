"""AGCAM: positive gradients of attention, taken past all attention below, times the sigmoid of its logits."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.trace import ALL, Trace
from vitrail.methods.registry import register


@register(
    "agcam",
    "AGCAM",
    "gradient",
    cite="leem2024attention",
    needs={"attention_logits": ALL, "attention_gradient": ALL, "cut": ALL},
    score="logit",
    detach_attention=True,
)
def agcam(trace: Trace) -> Tensor:
    """The readout's row of (dA)⁺ ⊙ sigmoid(O), summed over heads and blocks, with gradients that skip attention.

    The gradient reaches lower blocks by skip connections and MLPs alone: the input of every attention is cut off.

    Args:
        trace: The pass, with gradients cut at attention.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    total = torch.zeros((), device=trace.device)
    for block in trace.blocks:
        batch, queries, keys = block.attention.size
        r = trace.reading(queries, keys).expand(batch, -1)
        total = total + trace.patches(block.attention.sigmoid_rows(r).sum(1))
    return total
