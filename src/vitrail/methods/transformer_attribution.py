"""Transformer Attribution: relevance of attention weighted by its gradient, multiplied through the blocks."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import Probe
from vitrail.capture.trace import Block, Needs, Trace
from vitrail.lrp.rules import OURS
from vitrail.methods._propagate import flow, row, rows
from vitrail.methods.registry import register, within


def _needs(start: int, **_: object) -> Needs:
    return {"dA": slice(start, None)}


@register("transformer_attribution", "Transformer Attribution", "relevance", needs=_needs, class_specific=True,
          score="logit", cite="chefer2021transformer",
          variants={"script": {"start": 1}, "bert": {"start": -1, "normalise": True}})  # fmt: skip
def transformer_attribution(trace: Trace, probe: Probe, *, start: int = 0, normalise: bool = False) -> Tensor:
    """Rollout of I + the mean over heads of (dA ⊙ R_A)⁺, with R_A the relevance of attention by rules that conserve it.

    Args:
        trace: The pass, with gradients at attention.
        probe: The model, to propagate through.
        start: First block; negative from the end.
        normalise: Scale each row of I + (dA ⊙ R_A)⁺ to sum one, as the released code for text models does.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    within("start", start, len(trace.blocks), "blocks")
    relevances = probe.relevances(OURS, frozenset({"A"})).A
    found = {id(block): R for block, R in zip(trace.blocks, relevances, strict=True)}

    def step(v: Tensor, block: Block) -> Tensor:
        return rows(v, (block.dA * found[id(block)]).clamp_min_(0)).mean(1)

    if not normalise:
        return trace.patches(flow(trace, step, trace.blocks[start:]))
    v = trace.readout.expand(probe.batch, -1)
    for block in reversed(trace.blocks[start:]):
        M = (block.dA * found[id(block)]).clamp_min_(0).mean(1)
        skip = 0.0 if block.pool else 1.0
        u = v / (M.sum(-1) + skip)
        v = row(u, M) if block.pool else row(u, M) + u
    return trace.patches(v)
