"""Grad-CAM on attention: heads of the last block weighted by their mean gradient."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import LAST, Trace
from vitrail.methods._propagate import rows
from vitrail.methods.registry import choose, register


@register(
    "gradcam",
    "Grad-CAM (attention)",
    "gradient",
    cite="selvaraju2020gradcam",
    needs={"A": LAST, "dA": LAST},
    score="logit",
    variants={"bert": {"weights": "matrix"}},
)
def gradcam(trace: Trace, *, weights: str = "row") -> Tensor:
    """The last block's attention to the patches, its heads weighted by the gradient's mean, kept where positive.

    Args:
        trace: The pass, with gradients.
        weights: A head's weight is the mean gradient over the patches of the readout's "row", or over the whole
            "matrix", as the released code for text models has it.

    Returns:
        Relevance of patches, shape (b, S), not negative.
    """
    choose("weights", weights, ("row", "matrix"))
    block = trace.blocks[-1]
    r = trace.readout.expand(len(block.A), -1)
    a = trace.patches(rows(r, block.A))
    w = trace.mean(trace.mean(block.dA) if weights == "matrix" else trace.patches(rows(r, block.dA)))
    return (w.unsqueeze(-1) * a).mean(1).clamp_min(0)
