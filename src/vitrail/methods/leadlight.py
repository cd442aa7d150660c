"""Leadlight: class-specific relevance of patches, spread over the patches they attend to."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitrail.capture.probe import ProbedTrace
from vitrail.capture.trace import LAST, Needs, Trace
from vitrail.errors import OptionError
from vitrail.methods._propagate import rows
from vitrail.methods.registry import METHODS, choose, register

#: Where the relevance to be joined comes from: a method and its options, none for the last block alone.
SOURCES: dict[str, dict[str, Any]] = {"transformer_mm": {"start": 0}, "vtranm": {"variant": "af+l"}, "last": {}}

#: Of images, and of texts, whose single words count: how much of the spread part is taken, and one block in so many,
#: counted from below, that takes no part in the spreading.
SHARE = {"image": 0.75, "text": 0.5}
LOWER = {"image": 4, "text": 2}


def _needs(source: str, depth: int | None, **_: object) -> Needs:
    choose("source", source, SOURCES)
    needs: Needs = {"A": LAST, "dA": LAST}
    if source != "last":
        method = METHODS[source]
        needs = method.needed({**method.options, **SOURCES[source]})
    return {**needs, "A_mean": slice((depth or 1) - 1, -1)}


@register(
    "leadlight",
    "Leadlight",
    "gradient",
    cite="vitrail",
    needs=_needs,
    score="prob",
    variants={"fast": {"source": "last", "score": "logit"}},
)
def leadlight(
    trace: ProbedTrace, *, source: str = "vtranm", mix: float | None = None, depth: int | None = None
) -> Tensor:
    """Relevance of the patches, mixed with itself spread over the patches each attends to.

    R' = Ā·R with Ā the mean attention between patches over the blocks
    below the last; both are scaled to a maximum of one and mixed.

    Args:
        trace: The pass, with gradients.
        source: Where the relevance R comes from: "vtranm" (with lengths, without cosines), "transformer_mm", or "last"
            for the last block alone, which needs a backward through one block only.
        mix: Share of R' in the result, from 0 (R alone) to 1 (R' alone); None is 0.75 for images and 0.5 for texts.
        depth: First block of the mean, counted from 1; None leaves out the lower quarter of the blocks, for texts the
            lower half.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    choose("source", source, SOURCES)
    kind = "text" if trace.probe.model_inputs.image is None else "image"
    mix = SHARE[kind] if mix is None else mix
    if not 0 <= mix <= 1:
        raise OptionError(f"mix={mix} is not a share: it must lie between 0 and 1")
    total = len(trace.blocks)
    if depth is None:
        depth = max(1, min(1 + total // LOWER[kind], total - 1))
    if not 1 <= depth < total:
        raise OptionError(f"depth={depth} is not a block below the last: this model has blocks 1 to {total}")
    R = _source(trace, source)
    below = trace.blocks[depth - 1 : -1]
    total_attention = sum((b.A_mean for b in below[1:]), start=below[0].A_mean.clone())
    mean_attention = trace.between_patches(total_attention) / len(below)
    spread = (mean_attention @ R.unsqueeze(-1)).squeeze(-1)
    trace.note("source", R)
    trace.note("spread", spread)
    return (1 - mix) * _scaled(R) + mix * _scaled(spread)


def _source(trace: Trace, source: str) -> Tensor:
    if source == "last":
        last = trace.blocks[-1]
        r = trace.readout.expand(len(last.A), -1)
        return trace.patches(rows(r, (last.dA * last.A).clamp_min(0)).mean(1))
    method = METHODS[source]
    return method.apply(trace, {**method.options, **SOURCES[source]})


def _scaled(relevance: Tensor) -> Tensor:
    top = relevance.amax(-1, keepdim=True)
    return relevance / top.where(top > 0, top.new_ones(()))
