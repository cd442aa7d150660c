"""Score-CAM: feature maps as masks, weighted by the class score of each masked image."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vitrail.capture.trace import Needs
from vitrail.errors import OptionError
from vitrail.methods._blocks import blocks_needed, chosen_block, principal_component
from vitrail.methods._masks import FeatureMasks, stretched
from vitrail.methods.cost import forward_passes
from vitrail.methods.feature_maps import feature_needs
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, choose, register

SCORINGS = ("vitcx", "official", "softmax")


def _needs(block: int | None, **_: object) -> Needs:
    return feature_needs("Y", blocks_needed(block))


@register(
    "scorecam",
    "Score-CAM",
    "perturbation",
    cite="wang2020scorecam",
    takes="probe",
    needs=_needs,
    score="prob",
    variants={s: {"scoring": s} for s in SCORINGS},
    applies=Applies(reads="features"),
    cost=forward_passes(lambda _, size: size.width),
    evaluations_per_mask=lambda _: 1,
)
def scorecam(probe: Probe, *, scoring: str = "vitcx", block: int | None = None, eigen: bool = False) -> Tensor:
    """Sum of the feature maps of the last block as masks, weighted by the class score of the masked images.

    Maps are stretched to the image and brought to [0, 1] to become masks; constant ones are left out.

    Args:
        probe: The model and its inputs.
        scoring: What is summed. "vitcx": masks, by score. "official": feature maps themselves, by score, and only
            the positive part of the sum is kept. "softmax": likewise, by the softmax over maps of the logit.
        block: Feature maps of another block, by index from the start or negative from the end.
        eigen: Take the first principal component of the weighted feature maps instead of their sum; not with
            "vitcx", which sums masks.

    Returns:
        Relevance of pixels, shape (b, K, height, width).
    """
    choose("scoring", scoring, SCORINGS)
    if eigen and scoring == "vitcx":
        raise OptionError("eigen=True needs feature maps, and scoring='vitcx' sums masks: pass scoring='official'")
    images = probe.images
    size = (int(images.shape[2]), int(images.shape[3]))
    scorer = replace(probe, score="logit") if scoring == "softmax" else probe
    features = probe.features("Y", block=chosen_block(block, len(probe.structure.layers)))
    maps = []
    for i, (image, grids) in enumerate(zip(images, features, strict=True)):
        masks = stretched(grids, size, probe.pieces, aligned=scoring == "softmax")
        weights = [scorer.scores((image * masks[p][:, None]).to(image.dtype), i) for p in probe.pieces(len(masks))]
        weight = torch.cat([grids.new_zeros(0, probe.count), *(w.to(grids) for w in weights)])
        if scoring == "softmax":
            weight = weight.softmax(0)
        if eigen:
            maps.append(_component(masks, weight))
            continue
        total = grids.new_zeros(probe.count, size[0] * size[1])
        for piece in probe.pieces(len(masks)):
            carrier = masks[piece] if scoring == "vitcx" else masks.features(piece)
            total.addmm_(weight[piece].T, carrier.flatten(1))
        maps.append((total if scoring == "vitcx" else total.clamp_min(0)).view(probe.count, *size))
    return torch.stack(maps)


def _component(masks: FeatureMasks, weight: Tensor) -> Tensor:
    """The positive part of the principal component of feature maps by their weights, shape (K, height, width)."""
    if not len(masks):
        return weight.new_zeros(weight.shape[1], *masks.size)
    weighted = weight.T[:, :, None] * masks.grids.flatten(1)
    component = principal_component(weighted).view(-1, *masks.grids.shape[1:])
    return replace(masks, grids=component).features(slice(None)).clamp_min(0)
