"""Monotonicity: whether the class probability never falls while pixels are added from least to most relevant.

Defined by [arya2019one]; the share of steps without a fall is the graded form of the same test.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.scores.ranks import rank
from vitrail.scores.road import Predict


def score_monotonicity(
    predict: Predict,
    images: Tensor,
    maps: Tensor,
    classes: Tensor,
    steps: int = 20,
    fill: Tensor | float = 0.0,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Add pixels to an empty image from the least to the most relevant, and watch the class probability.

    Args:
        predict: Class probabilities of images.
        images: Inputs of the model, shape (B, channels, height, width).
        maps: One map per image, shape (B, height, width).
        classes: The explained class of each image, shape (B,).
        steps: Number of steps of equal size; each adds all channels of its pixels.
        fill: The empty image, in units of the images.
        seed: Seed of the order of tied pixels.

    Returns:
        ``monotone`` ↑: 1 if the probability falls at no step after the first, else 0; ``rising`` ↑: share of these
        steps without a fall; ``flat``: whether the map is constant or not finite. Shape (B,), float64.

    Example:
        >>> predict = lambda x: x.clamp_min(0).mean((2, 3)) - x.clamp_max(0).mean((2, 3)).abs()
        >>> images = torch.tensor([[[[1.0, 2.0], [-3.0, 4.0]]]])
        >>> found = score_monotonicity(predict, images, torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([0]), 4)
        >>> found["monotone"].item(), round(found["rising"].item(), 3)
        (0.0, 0.667)
    """
    pixels = maps.shape[-2] * maps.shape[-1]
    if not 2 <= steps <= pixels:
        raise OptionError(f"steps={steps} must be from 2 to the number of pixels, {pixels}")
    ranked = rank(maps, seed=seed)
    ranks, empty = ranked.ranks.view(maps.shape).to(images.device), torch.as_tensor(fill).to(images)
    found = []
    for step in range(1, steps + 1):
        shown = (ranks >= pixels - round(step * pixels / steps))[:, None]
        found.append(predict(torch.where(shown, images, empty)).double().cpu().gather(1, classes.cpu()[:, None])[:, 0])
    not_falling = (torch.stack(found, 1).diff(dim=1) >= 0).double()
    return {"monotone": not_falling.amin(1), "rising": not_falling.mean(1), "flat": ranked.constant.cpu()}
