"""Transformer-MM: gradient-weighted attention, multiplied through the blocks."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import Block, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import flow
from vitrail.methods._streams import updated_relevance
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
    applies=Applies(stitched=True, streams=True),
)
def transformer_mm(trace: Trace, *, start: int = 0) -> Tensor:
    """Relevance that starts at the readout and grows by R ← R + Ā·R, with Ā the mean over heads of (dA ⊙ A)⁺.

    On models of several streams of tokens, such as an encoder and a decoder, it grows by the published rules of
    cross-attention as well.

    Args:
        trace: The pass, with gradients.
        start: First block; −1 keeps the last block only, as is customary for CLIP.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    within("start", start, len(trace.blocks), "blocks")
    if trace.streams is not None:
        if start:
            raise OptionError(f"start={start} is defined for one stream of tokens; this model has several, use start=0")
        matrices = [(block.A * block.dA).clamp_min(0).mean(1) for block in trace.blocks]
        return trace.patches(updated_relevance(trace.streams, matrices, trace.readouts))
    return trace.patches(flow(trace, _step, trace.blocks[start:]))


def _step(v: Tensor, block: Block) -> Tensor:
    return block.attention.weighted_rows(v).mean(1)
