"""Grad-CAM on attention: heads of the last block weighted by their mean gradient."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import LAST, Trace
from vitrail.methods.registry import choose, register


@register(
    "gradcam",
    "Grad-CAM (attention)",
    "gradient",
    cite="selvaraju2020gradcam",
    needs={"attention": LAST, "attention_gradient": LAST},
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
    attention = trace.blocks[-1].attention
    batch, queries, _ = attention.size
    r = trace.readout.expand(batch, -1)
    a = trace.patches(attention.rows(r))
    if weights == "matrix":
        w = trace.mean(attention.gradient_rows(trace.evenly(queries).expand(batch, -1)))
    else:
        w = trace.mean(trace.patches(attention.gradient_rows(r)))
    return (w.unsqueeze(-1) * a).mean(1).clamp_min(0)
