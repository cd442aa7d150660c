"""CDAM: the gradient of the last block's features times the features."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import Probe
from vitrail.capture.trace import LAST, Trace
from vitrail.methods.registry import register


@register("cdam", "CDAM", "gradient", needs={"Y": LAST, "dY": LAST}, class_specific=True, score="logit", signed=True,
          cite="brocki2024class", reads="features")  # fmt: skip
def cdam(trace: Trace, probe: Probe) -> Tensor:
    """Each patch's features, as the last attention reads them, times the gradient at them.

    Args:
        trace: The pass, with gradients.
        probe: Where the features lie.

    Returns:
        Relevance on the grid of the features, shape (b, rows, columns), signed.
    """
    block = trace.blocks[-1]
    return probe.as_map(block.Y * block.dY).sum(1)
