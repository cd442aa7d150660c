"""Partial LRP: relevance of the last attention map."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import Probe
from vitrail.capture.trace import Trace
from vitrail.lrp.rules import ORIG
from vitrail.methods._propagate import rows
from vitrail.methods.registry import register


@register("partial_lrp", "Partial LRP", "relevance", needs={}, class_specific=True,
          cite="voita2019analyzing")  # fmt: skip
def partial_lrp(trace: Trace, probe: Probe) -> Tensor:
    """What LRP finds at the last block's attention: positive parts, mean over heads, the readout's row.

    Args:
        trace: The pass.
        probe: The model, to propagate through.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    R = probe.relevances(ORIG, frozenset({"A:last"})).A[-1].clamp_min(0)
    return trace.patches(rows(trace.readout.expand(len(R), -1), R).mean(1))
