"""Grad-SAM: attention times positive gradient, averaged over everything but the patches."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.trace import ALL, Trace
from vitrail.methods.registry import register


@register("gradsam", "Grad-SAM", "gradient", cite="barkan2021gradsam", needs={"A": ALL, "dA": ALL}, score="logit")
def gradsam(trace: Trace) -> Tensor:
    """How much attention with positive gradient each patch receives: the mean over blocks, heads and queries.

    Args:
        trace: The pass, with gradients.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    received = [trace.mean((block.A * block.dA.clamp_min(0)).mean(1).transpose(-2, -1)) for block in trace.blocks]
    return trace.patches(torch.stack(received).mean(0))
