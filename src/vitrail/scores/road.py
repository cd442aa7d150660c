"""ROAD: remove pixels by noisy linear imputation, which hides the shape of the removed region [rong2022consistent]."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.scores.imputation import impute
from vitrail.scores.ranks import rank, removed_ranks

#: From images, shape (N, channels, height, width), to class probabilities, shape (N, C).
Predict = Callable[[Tensor], Tensor]
#: Percentages of the pixels that are removed.
ROAD_LEVELS = (20, 40, 60, 80)


def score_road(
    predict: Predict,
    images: Tensor,
    maps: Tensor,
    classes: Tensor,
    levels: Sequence[float] = ROAD_LEVELS,
    noise: float = 0.01,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Compute the class probability after the most and after the least relevant pixels are imputed.

    Args:
        predict: Class probabilities of images.
        images: Inputs of the model, shape (B, channels, height, width).
        maps: One map per image, shape (B, height, width).
        classes: The explained class of each image, shape (B,).
        levels: Percentages of the pixels that are removed.
        noise: Standard deviation of the noise on imputed pixels, in units of the images.
        seed: Seed of the noise and of the order of tied pixels. All images have the same noise.

    Returns:
        ``road_morf`` ↓ and ``road_lerf`` ↑, the mean over levels of the class probability after the most or the least
        relevant pixels are removed; ``road`` ↑, half of their difference; ``road_morf@…`` and ``road_lerf@…`` at each
        level; ``flat``, whether the map is constant or not finite. Shape (B,), float64.

    Example:
        >>> predict = lambda x: x.mean((2, 3))  # "probability" of a class: mean of its channel
        >>> images = torch.zeros(1, 1, 4, 4)
        >>> images[0, 0, 0] = 1
        >>> found = score_road(predict, images, images[:, 0], torch.tensor([0]), levels=(25,), noise=0)
        >>> round(found["road_lerf"].item(), 3), round(found["road_morf"].item(), 3)
        (0.297, 0.0)
    """
    if not all(0 < level < 100 for level in levels):
        raise OptionError(f"levels={tuple(levels)} must be percentages between 0 and 100, both excluded")
    ranked = rank(maps, seed=seed)
    pixels = ranked.ranks.shape[-1]
    noise_image = torch.randn(images.shape[1:], generator=torch.Generator().manual_seed(seed))
    noise_image = noise * noise_image.to(images)
    values: dict[str, Tensor] = {}
    for order in ("morf", "lerf"):
        for level in levels:
            low, high = removed_ranks(int(pixels * level / 100), pixels, order)
            removed = ((ranked.ranks >= low) & (ranked.ranks < high)).view(maps.shape).to(images.device)
            imputed = impute(images, removed, noise=0) + noise_image * removed[:, None]
            found = predict(imputed).double().cpu()
            values[f"road_{order}@{level:g}"] = found.gather(1, classes.cpu()[:, None])[:, 0]
    means = {f"road_{o}": torch.stack([values[f"road_{o}@{x:g}"] for x in levels]).mean(0) for o in ("morf", "lerf")}
    combined = (means["road_lerf"] - means["road_morf"]) / 2
    return {"road": combined, **means, **values, "flat": ranked.constant.cpu()}
