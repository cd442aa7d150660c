"""Leadlight: class-specific relevance of patches, spread over patches that are alike."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vitrail.capture.trace import ALL, LAST, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import rows
from vitrail.methods.registry import METHODS, choose, register

#: Where the relevance to be spread comes from: a method and its options, none for the last block alone.
SOURCES: dict[str, dict[str, Any]] = {"vtranm": {"variant": "af+l"}, "transformer_mm": {"start": 0}, "last": {}}
VARIANTS = {"fast": {"source": "last", "score": "logit"}, "attention": {"spread": "attention", "rounds": 1}}


def _needs(source: str, spread: str, **_: object) -> Needs:
    choose("source", source, SOURCES)
    choose("spread", spread, ("keys", "attention"))
    needs: Needs = {"A": LAST, "dA": LAST}
    if source != "last":
        needs = METHODS[source].needed({**METHODS[source].options, **SOURCES[source]})
    return {**needs, **({"K": ALL} if spread == "keys" else {"A_mean": slice(0, -1)})}


@register("leadlight", "Leadlight", "gradient", cite="vitrail", needs=_needs, score="prob", variants=VARIANTS)
def leadlight(
    trace: Trace, *, source: str = "vtranm", spread: str = "keys", power: float = 4, rounds: int = 2, mix: float = 0.75
) -> Tensor:
    """Relevance of the patches, mixed with its average over patches with similar keys.

    R' = W·W·R, where W is the positive cosine between the keys of two patches to some power, with rows that sum to
    one; R and R' are scaled to a maximum of one and mixed.

    Args:
        trace: The pass, with gradients.
        source: Where the relevance R comes from: "vtranm" (with lengths, without cosines), "transformer_mm", or "last"
            for the last block alone, which needs a backward through one block only.
        spread: What W is made of: "keys" of the upper half of the blocks, those of each block scaled to unit length; or
            "attention", its mean between patches over the blocks below the last, without the lower quarter.
        power: Exponent of the cosine; a higher one spreads over fewer patches.
        rounds: How often W is applied.
        mix: Share of R' in the result, from 0 (R alone) to 1 (R' alone).

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    if not 0 <= mix <= 1 or not power > 0 or rounds < 1:
        raise OptionError(f"expected mix from 0 to 1, power > 0 and rounds ≥ 1, got {mix=}, {power=} and {rounds=}")
    R = averaged = _scaled(_source(trace, source))
    W = _affinity(trace, power) if spread == "keys" else _attention(trace)
    for _ in range(rounds):
        averaged = (W @ averaged.unsqueeze(-1)).squeeze(-1)
    trace.note("source", R)
    trace.note("spread", averaged)
    return (1 - mix) * R + mix * _scaled(averaged)


def _source(trace: Trace, source: str) -> Tensor:
    if source == "last":
        last = trace.blocks[-1]
        return trace.patches(rows(trace.readout.expand(len(last.A), -1), (last.dA * last.A).clamp_min(0)).mean(1))
    return METHODS[source].apply(trace, {**METHODS[source].options, **SOURCES[source]})


def _affinity(trace: Trace, power: float) -> Tensor:
    upper = trace.blocks[len(trace.blocks) // 2 :]
    keys = [normalize(trace.patches(block.K, -2).transpose(1, 2).flatten(2), dim=-1) for block in upper]
    W = torch.stack([K @ K.transpose(-2, -1) for K in keys]).mean(0).clamp_min(0) ** power
    if trace.valid is not None:  # padding neither gives nor gets relevance
        W = W * trace.between_patches(trace.valid[:, :, None] & trace.valid[:, None])
    return W / W.sum(-1, keepdim=True).clamp_min(torch.finfo(W.dtype).tiny)


def _attention(trace: Trace) -> Tensor:
    total = len(trace.blocks)
    if total < 2:
        raise OptionError('spread="attention" needs a block below the last, and this model has one: use "keys"')
    below = trace.blocks[min(total // 4, total - 2) : -1]
    return trace.between_patches(torch.stack([block.A_mean for block in below]).mean(0))


def _scaled(relevance: Tensor) -> Tensor:
    top = relevance.amax(-1, keepdim=True)
    return relevance / top.where(top > 0, top.new_ones(()))
