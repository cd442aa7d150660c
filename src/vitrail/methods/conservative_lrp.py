"""Conservative LRP: input times gradient with attention and the scale of norms held fixed."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import Probe
from vitrail.capture.trace import Trace
from vitrail.lrp.rules import conservative
from vitrail.methods.registry import choose, register


@register("conservative_lrp", "Conservative LRP", "relevance", needs={}, class_specific=True,
          cite="ali2022xai", signed=True)  # fmt: skip
def conservative_lrp(trace: Trace, probe: Probe, *, gelu: str = "plain", where: str = "tokens") -> Tensor:
    """Input times gradient of a graph in which attention weights and the scale of norms are constants.

    Args:
        trace: The pass.
        probe: The model, to propagate through.
        gelu: "plain" for the derivative of activations, "identity" for output over input, which conserves relevance.
        where: "tokens" that enter the first block, or "pixels".

    Returns:
        Relevance of patches, shape (b, S), or of pixels, shape (b, height, width), with a sign.
    """
    choose("gelu", gelu, ["plain", "identity"])
    choose("where", where, ["tokens", "pixels"])
    return probe.relevances(conservative(gelu), frozenset({where})).map(trace)
