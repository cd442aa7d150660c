"""Score-CAM: feature maps as masks, weighed by what the model says of the image behind each."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vitrail.capture.probe import Probe, feature_needs
from vitrail.methods._masks import stretched
from vitrail.methods.cost import forward_passes
from vitrail.methods.registry import Applies, choose, register

SCORINGS = ("vitcx", "official", "softmax")


@register(
    "scorecam",
    "Score-CAM",
    "perturbation",
    cite="wang2020scorecam",
    takes="probe",
    needs=feature_needs("Y"),
    score="prob",
    variants={s: {"scoring": s} for s in SCORINGS},
    applies=Applies(reads="features"),
    cost=forward_passes(lambda _, size: size.width),
    evaluations_per_mask=lambda _: 1,
)
def scorecam(probe: Probe, *, scoring: str = "vitcx") -> Tensor:
    """Every feature map of the last block as a mask; their sum, weighed by the class's score behind them.

    Maps are stretched to the image and brought to [0, 1] to become masks; constant ones are left out.

    Args:
        probe: The model and its inputs.
        scoring: What is summed. "vitcx": masks, by score. "official": feature maps themselves, by score, and only
            the positive part of the sum is kept. "softmax": likewise, by the softmax over maps of the logit.

    Returns:
        Relevance of pixels, shape (b, K, height, width).
    """
    choose("scoring", scoring, SCORINGS)
    images = probe.images
    size = (int(images.shape[2]), int(images.shape[3]))
    scorer = replace(probe, score="logit") if scoring == "softmax" else probe
    found = []
    for i, (image, grids) in enumerate(zip(images, probe.features("Y"), strict=True)):
        masks = stretched(grids, size, probe.pieces, aligned=scoring == "softmax")
        weights = [scorer.scores((image * masks[p][:, None]).to(image.dtype), i) for p in probe.pieces(len(masks))]
        weight = torch.cat([grids.new_zeros(0, probe.count), *(w.to(grids) for w in weights)])
        if scoring == "softmax":
            weight = weight.softmax(0)
        total = grids.new_zeros(probe.count, size[0] * size[1])
        for piece in probe.pieces(len(masks)):
            carrier = masks[piece] if scoring == "vitcx" else masks.features(piece)
            total.addmm_(weight[piece].T, carrier.flatten(1))
        found.append((total if scoring == "vitcx" else total.clamp_min(0)).view(probe.count, *size))
    return torch.stack(found)
