"""LeGrad: positive gradients of attention, with the class score of each block as if the model ended there."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import Needs
from vitrail.errors import OptionError
from vitrail.fast import fast_paths_disabled
from vitrail.methods.probe import ProbedTrace
from vitrail.methods.registry import Applies, choose, register


def _needs(blocks: int, pool: str) -> Needs:
    return {"truncated": slice(-blocks, None)} if pool == "model" and blocks >= 1 and not fast_paths_disabled() else {}


@register(
    "legrad",
    "LeGrad",
    "gradient",
    cite="bousselham2024legrad",
    needs=_needs,
    score="logit",
    applies=Applies(
        any_axes=True,
        excluded={
            "text": "in a text encoder that normalises after its sums the head does not read the sum that leaves a "
            "block; text encoders that normalise first, such as that of CLIP, work"
        },
        norm_first_texts=True,
    ),
)
def legrad(trace: ProbedTrace, *, blocks: int = 2, pool: str = "model") -> Tensor:
    """The mean over heads and queries of (∂s/∂A)⁺, summed over the last blocks; s is the score read off that block.

    Args:
        trace: Where the patches stand.
        blocks: How many of the last blocks take part.
        pool: What of a block's output is read: as the "model" reads it, or the "mean" of all tokens, as in the
            released code for CLIP.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    choose("pool", pool, ("model", "mean"))
    if blocks < 1:
        raise OptionError(f"blocks={blocks} must be at least 1")
    tokens = 0 if trace.probe.structure.tokens_first else 1
    mean = None if pool == "model" else lambda x: x.mean(tokens, keepdim=True).expand_as(x)
    gradients = trace.probe.layer_gradients(blocks, mean)
    layers = [trace.patches(_mean_of_queries(trace, g.clamp_min(0).mean(1))) for g in gradients]
    for layer in layers:
        trace.note("layer", layer)
    return sum(layers[1:], start=layers[0])


def _mean_of_queries(trace: ProbedTrace, positive: Tensor) -> Tensor:
    """The mean over queries, shape (b, n); padding is none of them, and has no gradient."""
    if trace.valid is None or trace.valid.shape[-1] != positive.shape[1]:
        return positive.mean(1)
    return positive.sum(1) / trace.valid.sum(-1, keepdim=True).clamp_min(1)
