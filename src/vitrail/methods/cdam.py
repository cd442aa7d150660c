"""CDAM: the gradient of the last block's features times the features."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import ProbedTrace
from vitrail.capture.trace import LAST
from vitrail.methods.registry import Applies, register


@register(
    "cdam",
    "CDAM",
    "gradient",
    cite="brocki2024class",
    needs={"Y": LAST, "dY": LAST},
    score="logit",
    signed=True,
    applies=Applies(reads="features"),
)
def cdam(trace: ProbedTrace) -> Tensor:
    """Each patch's features, as the last attention reads them, times the gradient at them.

    Args:
        trace: The pass, with gradients.

    Returns:
        Relevance on the grid of the features, shape (b, rows, columns), signed.
    """
    block = trace.blocks[-1]
    return trace.probe.as_map(block.Y * block.dY).sum(1)
