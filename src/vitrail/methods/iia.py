"""Iterated Integrated Attributions and Deep Integrated Explanations: gradient rollout along paths of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.trace import ALL, LAST
from vitrail.methods._propagate import row
from vitrail.methods.cost import Cost, ModelSize, number
from vitrail.methods.probe import Probe, ProbedTrace
from vitrail.methods.registry import Applies, check_whole_numbers, register

_APPLIES = Applies(
    any_axes=True, excluded={"pool": "an attention pool has no rollout of its own", "text": "it is defined for images"}
)


def _cost(options: Mapping[str, Any], _: ModelSize, targets: int) -> Cost:
    images = number(options, "image_steps") + 1 if "image_steps" in options else 1
    count = targets * images * (number(options, "steps") + 1)
    return Cost(count, 3.0 * count)


@register(
    "iia",
    "IIA",
    "path",
    cite="barkan2023visual",
    needs={"A_mean": LAST},
    score="logit",
    variants={"quick": {"image_steps": 1, "steps": 1}, "preview": {"image_steps": 2, "steps": 2}},
    applies=_APPLIES,
    cost=_cost,
)
def iia(trace: ProbedTrace, *, image_steps: int = 5, steps: int = 5) -> Tensor:
    """Rollout of (A ⊙ dA)⁺, averaged over scaled images and, for each, over its scaled attention of the last block.

    Args:
        trace: The pass.
        image_steps: Steps N of the image, from 0 (all zeros) to the image: N + 1 scales.
        steps: Steps of the last block's attention, from zeros to the attention itself.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    check_whole_numbers(1, image_steps=image_steps, steps=steps)
    scales = torch.linspace(0, 1, image_steps + 1, dtype=torch.float64)
    return _rollout(trace, _integrated(trace.probe, scales, steps))


@register(
    "dix",
    "DIX",
    "path",
    cite="barkan2023deep",
    needs={"A_mean": LAST},
    score="logit",
    variants={"quick": {"steps": 2}, "preview": {"steps": 5}},
    applies=_APPLIES,
    cost=_cost,
)
def dix(trace: ProbedTrace, *, steps: int = 10) -> Tensor:
    """Rollout of (A ⊙ dA)⁺, averaged over scaled copies of the last block's attention.

    Args:
        trace: The pass.
        steps: Steps of the last block's attention, from zeros to the attention itself: one scale more.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    check_whole_numbers(1, steps=steps)
    return _rollout(trace, _integrated(trace.probe, torch.ones(1, dtype=torch.float64), steps))


def _integrated(probe: Probe, image_scales: Tensor, steps: int) -> list[Tensor]:
    """Mean of (A ⊙ dA)⁺ over heads, images and scales of the last attention: for each block, shape (b, n, n)."""
    inputs, last = probe.inputs, len(probe.structure.layers) - 1
    scales = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    each = len(image_scales) * len(scales)
    total: list[Tensor] = []
    for piece in probe.pieces(each * len(inputs)):
        at = torch.arange(piece.start, piece.stop)
        owner, place = (at % len(inputs)).to(inputs.device), at // len(inputs)
        shrunk = image_scales[place // len(scales)].view(-1, *[1] * (inputs.dim() - 1)).to(inputs)
        faded = scales[place % len(scales)].view(-1, 1, 1, 1)
        edits = {last: lambda A, faded=faded: A.detach() * faded.to(A)}
        blocks = probe.trace(inputs[owner] * shrunk, {"A": ALL, "dA": ALL}, owner, edits).blocks
        for i, block in enumerate(blocks):
            weighted = (block.A * block.dA).clamp_min(0).mean(1) / each
            if len(total) <= i:
                total.append(weighted.new_zeros(len(inputs), *weighted.shape[1:]))
            total[i].index_add_(0, owner, weighted)
    return total


def _rollout(trace: ProbedTrace, matrices: list[Tensor]) -> Tensor:
    v = trace.readout.expand(len(matrices[-1]), -1)
    for M in reversed(matrices):
        skipped = M + torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
        v = row(v, skipped / skipped.sum(-1, keepdim=True))
    return trace.patches(v)
