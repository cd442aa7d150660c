"""Score-CAM: feature maps of the last block as masks, weighted by what the model says of the masked image."""

import torch
from torch import Tensor

from .gradcam_features import first_component
from .record import softmax_rows
from .rise import logits_of, probability, upsample
from .vit import Classes, Pass


def to_unit_range(one: Tensor) -> Tensor:
    """Shift and scale one map, any shape, so that it runs from 0 to 1."""
    return (one - one.min()) / (one.max() - one.min())


def feature_maps(pass_: Pass, tokens: Tensor, align_corners: bool = False) -> Tensor:
    """Turn token vectors into maps at the size of the image; maps with one value everywhere are left out.

    Args:
        pass_: The recorded forward pass.
        tokens: Vectors of all tokens of one image, shape n, d.
        align_corners: How to interpolate.

    Returns:
        One map for each channel that varies, shape at most d, height, width.
    """
    gh, gw = pass_.grid
    patches = tokens.detach()[pass_.prefix :]
    maps = []
    for channel in range(patches.shape[1]):
        grid = patches[:, channel].reshape(gh, gw)
        if grid.max() > grid.min():
            maps.append(upsample(grid, *pass_.images.shape[-2:], align_corners))
    return torch.stack(maps)


def replica(pass_: Pass, classes: Classes, scoring: str = "vitcx", block: int = -1, eigen: bool = False) -> Tensor:
    """Weighted sum of the first layer norm's channels in a block.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        scoring: "vitcx" weighs the masks (maps brought to 0..1) by the probability of the masked image; "official"
            weighs the maps themselves by it and keeps the positive part of the sum; "softmax" weighs the maps by the
            softmax over channels of the class logit, likewise keeps the positive part, and interpolates with corners
            aligned.
        block: Which block.
        eigen: Instead of the sum, the first principal component of the weighed channels, on the grid, enlarged.

    Returns:
        Pixel relevance, shape b, height, width, not normalised.
    """
    maps = []
    for image, c in enumerate(classes):
        features = feature_maps(pass_, pass_.blocks[block].LN1[image], align_corners=scoring == "softmax")
        masks = torch.stack([to_unit_range(one) for one in features])
        masked = pass_.images[image].detach() * masks[:, None]
        if scoring == "vitcx":
            weights, carriers = probability(pass_, masked, int(c)), masks
        elif scoring == "official":
            weights, carriers = probability(pass_, masked, int(c)), features
        elif scoring == "softmax":
            weights, carriers = softmax_rows(logits_of(pass_, masked)[:, int(c)]), features
        else:
            raise ValueError(f"unknown scoring {scoring!r}")
        if eigen:
            patches = pass_.blocks[block].LN1[image].detach()[pass_.prefix :]
            columns = [weight * patches[:, k] for k, weight in enumerate(weights)]
            grid = first_component(columns).reshape(pass_.grid)
            maps.append(upsample(grid, *pass_.images.shape[-2:], scoring == "softmax").clamp(min=0))
            continue
        total = torch.zeros_like(features[0])
        for weight, carrier in zip(weights, carriers, strict=True):
            total = total + weight * carrier
        maps.append(total if scoring == "vitcx" else total.clamp(min=0))
    return torch.stack(maps)
