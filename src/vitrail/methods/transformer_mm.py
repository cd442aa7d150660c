"""Transformer-MM: gradient-weighted attention, multiplied through the blocks."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import Block, Needs, Trace
from vitrail.methods._propagate import flow
from vitrail.methods.registry import Applies, register, within


def _needs(start: int) -> Needs:
    return {"attention": slice(start, None), "attention_gradient": slice(start, None)}


@register(
    "transformer_mm",
    "Transformer-MM",
    "gradient",
    cite="chefer2021generic",
    needs=_needs,
    score="logit",
    variants={"last": {"start": -1}},
    applies=Applies(stitched=True),
)
def transformer_mm(trace: Trace, *, start: int = 0) -> Tensor:
    """Relevance that starts at the readout and grows by R ← R + Ā·R, with Ā the mean over heads of (dA ⊙ A)⁺.

    Args:
        trace: The pass, with gradients.
        start: First block; −1 keeps the last block only, as is customary for CLIP.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    within("start", start, len(trace.blocks), "blocks")
    return trace.patches(flow(trace, _step, trace.blocks[start:]))


def _step(v: Tensor, block: Block) -> Tensor:
    return block.attention.weighted_rows(v).mean(1)
