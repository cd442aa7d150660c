"""Self-attention attribution: attention times its gradient, averaged while the attention grows from nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.trace import Needs
from vitrail.errors import OptionError
from vitrail.methods._propagate import row
from vitrail.methods.cost import Cost, ModelSize, number
from vitrail.methods.probe import Probe, ProbedTrace
from vitrail.methods.registry import register, within


def _needs(start: int, **_: object) -> Needs:
    return {"A": slice(start, None)}


def _signed(start: int, **_: object) -> bool:
    return start == -1


def _cost(options: Mapping[str, Any], size: ModelSize, targets: int) -> Cost:
    count = number(options, "steps") * targets * len(range(size.blocks)[slice(number(options, "start"), None)])
    return Cost(count, 3.0 * count)


@register(
    "attattr",
    "AttAttr",
    "path",
    cite="hao2021self",
    needs=_needs,
    score="logit",
    signed=_signed,
    variants={"quick": {"steps": 3}, "preview": {"steps": 8}},
    cost=_cost,
)
def attattr(trace: ProbedTrace, *, start: int = -1, steps: int = 20) -> Tensor:
    """The readout's row of A ⊙ mean over t of ∂F/∂A at t/T·A, in the last block or flowing through several.

    Args:
        trace: The pass.
        start: First block; −1 for the last alone, whose map is signed. With several blocks the positive part of each
            is multiplied through them.
        steps: Number of scales T, from 1/T to 1.

    Returns:
        Relevance of patches, shape (b, S).
    """
    total = len(trace.blocks)
    within("start", start, total, "blocks")
    if steps < 1:
        raise OptionError(f"steps={steps} must be at least 1")
    first = range(total)[start]
    v = trace.readout.expand(trace.probe.batch, -1)
    for index in reversed(range(first, total)):
        attribution = (trace.blocks[index].A * _gradient(trace.probe, index, steps)).mean(1)
        if first == total - 1:
            v = row(v, attribution)
        else:
            moved = row(v, attribution.clamp_min(0))
            v = moved if trace.blocks[index].pool else v + moved
    return trace.patches(v)


def _gradient(probe: Probe, index: int, steps: int) -> Tensor:
    """Gradient at a block's attention, averaged over scaled-down copies of its attention, shape (b, H, m, n)."""
    images = probe.inputs
    total: Tensor | None = None
    for piece in probe.pieces(steps * len(images)):
        at = torch.arange(piece.start, piece.stop, device=images.device)
        step, owner = at // len(images), at % len(images)
        grown = (step + 1).view(-1, 1, 1, 1)
        edits = {index: lambda A, grown=grown: A.detach() * (grown.to(A.dtype) / steps)}
        dA = probe.trace(images[owner], {"dA": slice(index, index + 1 or None)}, owner, edits).blocks[index].dA
        if total is None:
            total = dA.new_zeros(len(images), *dA.shape[1:])
        total.index_add_(0, owner, dA)
    assert total is not None
    return total / steps
