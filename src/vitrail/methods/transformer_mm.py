"""Transformer-MM: gradient-weighted attention, multiplied through the blocks."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import Block, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import flow
from vitrail.methods._streams import updated_relevance
from vitrail.methods.registry import Applies, choose, register, within


def _needs(start: int, **_: object) -> Needs:
    return {"attention": slice(start, None), "attention_gradient": slice(start, None)}


@register(
    "transformer_mm",
    "Transformer-MM",
    "gradient",
    cite="chefer2021generic",
    needs=_needs,
    score="logit",
    signed=lambda at, **_: at == "logits",
    variants={"last": {"start": -1}, "logits": {"at": "logits", "score": "logprob"}},
    applies=Applies(stitched=True, streams=True),
)
def transformer_mm(trace: Trace, *, start: int = 0, at: str = "attention") -> Tensor:
    """Relevance that starts at the readout and grows by R ← R + Ā·R, with Ā the mean over heads of (dA ⊙ A)⁺.

    On models of several streams of tokens, such as an encoder and a decoder, it grows by the published rules of
    cross-attention as well.

    Args:
        trace: The pass, with gradients.
        start: First block; −1 keeps the last block only, as is customary for CLIP.
        at: "attention", or "logits": Ā is the mean over heads of the gradient at the logits, A ⊙ (dA − row sums of
            A ⊙ dA), with its sign and without its diagonal, and the readout's own row is subtracted at the end. A row
            of attention sums to one, so attention that rests on a token, as on the first one of a language model,
            counts as no evidence; nor does attention of a token to itself.

    Returns:
        Relevance of patches, shape (b, S), not negative; signed for ``at="logits"``.
    """
    within("start", start, len(trace.blocks), "blocks")
    choose("at", at, ("attention", "logits"))
    if trace.streams is not None:
        if start or at == "logits":
            raise OptionError(
                f"start={start} and at={at!r}: on several streams of tokens, as this model has, transformer_mm takes "
                "start=0 and at='attention'"
            )
        matrices = [(block.A * block.dA).clamp_min(0).mean(1) for block in trace.blocks]
        return trace.patches(updated_relevance(trace.streams, matrices, trace.readouts))
    if at == "logits":
        total = flow(trace, _logit_step, trace.blocks[start:])
        own = 0 if any(block.pool for block in trace.blocks) else trace.readout.expand(len(total), -1)
        return trace.patches(total - own)
    return trace.patches(flow(trace, _step, trace.blocks[start:]))


def _step(v: Tensor, block: Block) -> Tensor:
    return block.attention.weighted_rows(v).mean(1)


def _logit_step(v: Tensor, block: Block) -> Tensor:
    return block.attention.logit_gradient_rows(v).mean(1)
