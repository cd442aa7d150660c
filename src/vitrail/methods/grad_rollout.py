"""Gradient rollout: rollout of attention weighted by its gradient, small entries dropped."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.trace import ALL, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import row
from vitrail.methods._streams import rolled_relevance
from vitrail.methods.registry import Applies, register
from vitrail.methods.rollout import drop_smallest


@register(
    "grad_rollout",
    "Gradient rollout",
    "gradient",
    cite="gildenblat2020exploring",
    needs={"A": ALL, "dA": ALL},
    score="logit",
    applies=Applies(excluded={"pool": "an attention pool has no rollout of its own"}, streams=True),
)
def grad_rollout(trace: Trace, *, discard: float = 0.9) -> Tensor:
    """The readout row of the product of ((mean over heads of A ⊙ dA)⁺ + I)/2, rows scaled to sum one.

    Args:
        trace: The pass, with gradients.
        discard: Share of each joined matrix's smallest entries to set to zero.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    if not 0 <= discard < 1:
        raise OptionError(f"discard={discard} is not a share: it must be at least 0 and below 1")
    if trace.streams is not None:
        weighted = [(block.A * block.dA).mean(1).clamp_min(0) for block in trace.blocks]
        matrices = [drop_smallest(M, discard) for M in weighted]
        return trace.patches(rolled_relevance(trace.streams, matrices, trace.readouts))
    v = trace.readout.expand(len(trace.blocks[-1].A), -1)
    for block in reversed(trace.blocks):
        M = drop_smallest((block.A * block.dA).mean(1).clamp_min(0), discard, valid=trace.valid)
        M = (M + torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)) / 2
        v = row(v, M / M.sum(-1, keepdim=True))
    return trace.patches(v)
