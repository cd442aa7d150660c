"""Transition attention maps: a walk down the attention, weighted by gradients along a path of images."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import ALL, LAST, Needs
from vitrail.methods._path_gradient import path_gradient
from vitrail.methods._propagate import row
from vitrail.methods.cost import gradient_passes
from vitrail.methods.probe import ProbedTrace
from vitrail.methods.registry import register


def _needs(integral: bool, **_: object) -> Needs:
    needs = {"attention_mean": ALL}
    return needs if integral else {**needs, "dA": LAST}


@register(
    "tam",
    "TAM",
    "path",
    cite="yuan2021explaining",
    needs=_needs,
    score="logit",
    variants={"quick": {"steps": 3}, "preview": {"steps": 8}},
    cost=gradient_passes("steps"),
)
def tam(
    trace: ProbedTrace, *, start: int = 4, steps: int = 20, integral: bool = True, first_state: bool = False
) -> Tensor:
    """The readout's attention walked down the blocks, times the mean over heads of (path-averaged dA)⁺ of the last.

    Args:
        trace: The pass.
        start: Lowest block of the walk; the last block always takes part.
        steps: Number of images on the path, both ends included.
        integral: Average the gradient over the path; if not, take it at the image.
        first_state: Do not walk: use the last block's attention alone.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    last = trace.blocks[-1]
    r = trace.readout.expand(last.attention.size[0], -1)
    v = last.attention.mean_row(r)
    for block in reversed(trace.blocks[start:-1] if not first_state else ()):
        v = v + block.attention.mean_row(v)
    gradient = path_gradient(trace.probe, steps) if integral else last.dA
    W = row(r, gradient.clamp_min(0).mean(1))
    trace.note("state", trace.patches(v))
    trace.note("gradient", trace.patches(W))
    return trace.patches(v * W)
