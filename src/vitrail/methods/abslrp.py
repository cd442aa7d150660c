"""absLRP: positive products over absolute outputs, the class against all others."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import Probe
from vitrail.capture.trace import Trace
from vitrail.lrp.rules import ABSLRP
from vitrail.methods.registry import register


@register("abslrp", "absLRP", "relevance", needs={}, class_specific=True, cite="vukadin2024abslrp",
          signed=True, unfit={"text": "it is defined on pixels, and a text has none"})  # fmt: skip
def abslrp(trace: Trace, probe: Probe) -> Tensor:
    """Relevance of the class minus relevance of all other classes alike, each brought to a total of 1 at every step.

    Args:
        trace: The pass.
        probe: The model, to propagate through.

    Returns:
        Relevance of pixels, shape (b, height, width), with a sign.
    """
    want = frozenset({"pixels"})
    against = probe.relevances(ABSLRP, want, contrast=True)
    return probe.relevances(ABSLRP, want).map(trace) - against.map(trace)
