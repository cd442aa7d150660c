"""SaCo: whether groups of pixels with more relevance also matter more to the prediction [wu2024faithfulness]."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.scores.ranks import rank
from vitrail.scores.road import Predict
from vitrail.scores.segmentation import sanitise_maps


def saco_coefficient(salience: Tensor, effect: Tensor) -> Tensor:
    """Compute the salience-guided faithfulness coefficient of K groups.

    For all pairs i < j the weight s_i − s_j counts as + if d_i ≥ d_j, else as −; the sum is divided by that of the
    magnitudes.

    Args:
        salience: Salience s of each group, the most salient first, shape (B, K).
        effect: Drop d of the class probability when the group alone is removed, shape (B, K).

    Returns:
        From −1 to 1, shape (B,), float64; 0 where all groups have the same salience.

    Example:
        >>> saco_coefficient(torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([[0.5, 0.1, 0.2]])).item()
        0.3333333333333333
    """
    s, d = salience.double(), effect.double()
    above = torch.triu(torch.ones(s.shape[1], s.shape[1], dtype=torch.bool, device=s.device), 1)
    weights = (s[:, :, None] - s[:, None]) * above
    signs = torch.where(d[:, :, None] >= d[:, None], 1.0, -1.0)
    total = weights.abs().sum((1, 2))
    return (weights * signs).sum((1, 2)) / total.where(total > 0, 1.0)


def score_saco(
    predict: Predict,
    images: Tensor,
    maps: Tensor,
    classes: Tensor,
    groups: int = 10,
    fill: Tensor | float = 0.0,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Compute SaCo of each map; it uses the values of a map, not only the order of its pixels.

    Args:
        predict: Class probabilities of images.
        images: Inputs of the model, shape (B, channels, height, width).
        maps: One map per image, shape (B, height, width).
        classes: The explained class of each image, shape (B,).
        groups: Number K of groups of equal size (up to one pixel).
        fill: What replaces a group, in units of the images; 0 after normalisation is the mean colour.
        seed: Seed of the order of tied pixels.

    Returns:
        ``saco`` ↑, `saco_coefficient`; ``flat``, whether the map is constant or not finite, where it is 0. Shape (B,).

    Example:
        >>> predict = lambda x: x.mean((2, 3))
        >>> images = torch.arange(16.0).view(1, 1, 4, 4)
        >>> score_saco(predict, images, images[:, 0], torch.tensor([0]), groups=4)["saco"].item()
        1.0
        >>> score_saco(predict, images, -images[:, 0], torch.tensor([0]), groups=4)["saco"].item()
        -1.0
    """
    pixels = maps.shape[-2] * maps.shape[-1]
    if not 2 <= groups <= pixels:
        raise OptionError(f"groups={groups} must be from 2 to the number of pixels, {pixels}")
    finite, constant = sanitise_maps(maps)
    ranks = rank(finite, seed=seed).ranks.to(images.device)
    limits = [round(i * pixels / groups) for i in range(groups + 1)]
    chosen = classes.cpu()[:, None]
    before = predict(images).double().cpu().gather(1, chosen)
    salience, effect = [], []
    for low, high in itertools.pairwise(limits):
        member = (ranks >= low) & (ranks < high)
        salience.append((finite.flatten(1).to(images.device).double() * member).sum(1).cpu())
        removed = member.view(maps.shape)[:, None]
        without = torch.where(removed, torch.as_tensor(fill, dtype=images.dtype, device=images.device), images)
        effect.append((before - predict(without).double().cpu().gather(1, chosen))[:, 0])
    return {
        "saco": saco_coefficient(torch.stack(salience, 1), torch.stack(effect, 1)),
        "flat": constant[:, 0, 0].cpu(),
    }
