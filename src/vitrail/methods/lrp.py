"""LRP: relevance of the class, carried back to the pixels."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import Probe
from vitrail.capture.trace import Trace
from vitrail.lrp.rules import ORIG
from vitrail.methods.registry import choose, register


@register("lrp", "LRP", "relevance", needs={}, class_specific=True, cite="bach2015lrp")
def lrp(trace: Trace, probe: Probe, *, where: str = "pixels") -> Tensor:
    """Relevance that starts as 1 at the class and is shared among the inputs of each operation, down to the pixels.

    Args:
        trace: The pass.
        probe: The model, to propagate through.
        where: "pixels", or "tokens" for the tokens that enter the first block; a text has tokens only.

    Returns:
        Relevance of pixels, shape (b, height, width), or of patches, shape (b, S).
    """
    choose("where", where, ["pixels", "tokens"])
    if probe.model_inputs.image is None:
        where = "tokens"
    return probe.relevances(ORIG, frozenset({where})).map(trace)
