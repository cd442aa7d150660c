"""Grad-CAM on features: channels of the last feature map weighted by their mean gradient."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.probe import ProbedTrace
from vitrail.capture.trace import LAST
from vitrail.methods.registry import Applies, register


@register(
    "gradcam_features",
    "Grad-CAM (features)",
    "gradient",
    cite="selvaraju2020gradcam",
    needs={"Y": LAST, "dY": LAST},
    score="logit",
    applies=Applies(reads="features"),
)
def gradcam_features(trace: ProbedTrace) -> Tensor:
    """The last block's feature map, its channels weighted by the gradient's mean over the patches, kept where positive.

    The feature map is what the last attention reads, the result of the norm before it: what leaves the last block has
    no gradient at the patches of a model that reads a class token.

    Args:
        trace: The pass, with gradients.

    Returns:
        Relevance on the grid of the features, shape (b, rows, columns), not negative.
    """
    Y, dY = trace.probe.as_map(trace.blocks[-1].Y), trace.probe.as_map(trace.blocks[-1].dY)
    return (dY.mean((2, 3), keepdim=True) * Y).sum(1).clamp_min(0)
