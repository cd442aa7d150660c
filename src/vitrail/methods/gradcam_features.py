"""Grad-CAM on features: channels of a feature map weighted by their mean gradient."""

from __future__ import annotations

from torch import Tensor

from vitrail.capture.trace import Needs
from vitrail.methods._blocks import BlockChoice, blocks_needed, chosen_blocks, mean_over_blocks, principal_component
from vitrail.methods.probe import ProbedTrace
from vitrail.methods.registry import Applies, register


def _needs(block: BlockChoice, **_: object) -> Needs:
    return dict.fromkeys(("Y", "dY"), blocks_needed(block))


@register(
    "gradcam_features",
    "Grad-CAM (features)",
    "gradient",
    cite="selvaraju2020gradcam",
    needs=_needs,
    score="logit",
    applies=Applies(reads="features"),
)
def gradcam_features(trace: ProbedTrace, *, block: BlockChoice = -1, eigen: bool = False) -> Tensor:
    """The last block's feature map, its channels weighted by the gradient's mean over the patches, kept where positive.

    The feature map is what the last attention reads, the result of the norm before it: what leaves the last block has
    no gradient at the patches of a model that reads a class token.

    Args:
        trace: The pass, with gradients.
        block: Another block, by index from the start or negative from the end; of several, each map is divided by its
            maximum and their mean is taken.
        eigen: Take the first principal component of the weighted channels instead of their sum.

    Returns:
        Relevance on the grid of the features, shape (b, rows, columns), not negative.
    """
    maps = []
    for index in chosen_blocks(block, len(trace.blocks)):
        Y, dY = trace.probe.as_map(trace.blocks[index].Y), trace.probe.as_map(trace.blocks[index].dY)
        weighted = dY.mean((2, 3), keepdim=True) * Y
        cam = principal_component(weighted.flatten(2)).view_as(weighted[:, 0]) if eigen else weighted.sum(1)
        maps.append(cam.clamp_min(0))
    return mean_over_blocks(maps)
