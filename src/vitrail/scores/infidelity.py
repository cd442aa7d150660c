"""Infidelity: squared error of a map as a linear prediction of the change of the output [yeh2019fidelity].

The perturbation replaces square patches of the image. Perturbed images do not depend on the map, so `patch_effects`
evaluates the model once for all methods.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.scores.road import Predict
from vitrail.scores.segmentation import sanitise_maps


class PatchEffects(NamedTuple):
    """Effects of removing patches.

    Attributes:
        change: x minus the fill, summed over channels, shape (B, height, width).
        drop: f(x) − f(x̃) of each perturbation, the patches row by row, shape (B, M), float64.
        patch: Side of a patch in pixels.
        cumulative: Whether earlier patches stayed replaced.
    """

    change: Tensor
    drop: Tensor
    patch: int
    cumulative: bool


def patch_effects(
    predict: Predict,
    images: Tensor,
    classes: Tensor,
    patch: int = 16,
    fill: Tensor | float = 0.0,
    cumulative: bool = True,
) -> PatchEffects:
    """Replace patches, row by row, and measure the drop of the class score.

    Args:
        predict: Class scores of images: probabilities or logits.
        images: Inputs of the model, shape (B, channels, height, width).
        classes: The explained class of each image, shape (B,).
        patch: Side of a patch in pixels, a divisor of height and width.
        fill: What replaces a patch, in units of the images.
        cumulative: Keep earlier patches replaced, as Quantus does; otherwise each perturbation replaces one patch.

    Example:
        >>> images = torch.arange(16.0).view(1, 1, 4, 4)
        >>> predict = lambda x: x.sum((2, 3))
        >>> patch_effects(predict, images, torch.tensor([0]), patch=2, cumulative=False).drop
        tensor([[10., 18., 42., 50.]], dtype=torch.float64)
    """
    height, width = images.shape[2:]
    if patch < 1 or height % patch or width % patch:
        raise OptionError(f"patch={patch} must divide the height and the width of the images, {height} and {width}")
    chosen, current = classes.cpu()[:, None], images.clone()
    before = predict(images).double().cpu().gather(1, chosen)
    empty, drop = torch.as_tensor(fill).to(images), []
    for top in range(0, height, patch):
        for left in range(0, width, patch):
            current = current if cumulative else images.clone()
            current[:, :, top : top + patch, left : left + patch] = empty
            drop.append((before - predict(current).double().cpu().gather(1, chosen))[:, 0])
    return PatchEffects((images - empty).sum(1), torch.stack(drop, 1), patch, cumulative)


def score_infidelity(maps: Tensor, effects: PatchEffects) -> dict[str, Tensor]:
    """Compute the infidelity of each map.

    Args:
        maps: One map per image, shape (B, height, width); a pixel's relevance holds for all its channels.
        effects: What `patch_effects` returned for the images.

    Returns:
        ``infidelity`` ↓: mean over perturbations of (Σ S·(x − x̃) − (f(x) − f(x̃)))², for the map as it is;
        ``infidelity_scaled`` ↓: the same for the map times the factor that makes it least, divided by the mean square
        of the drops: 0 where the map predicts them, 1 where it says nothing; ``flat``: whether the map is constant or
        not finite. Shape (B,), float64.

    Example:
        >>> images = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> effects = patch_effects(lambda x: 2 * x.sum((2, 3)), images, torch.tensor([0]), patch=2)
        >>> found = score_infidelity(torch.ones(1, 4, 4).cumsum(1).clamp_max(1.001), effects)
        >>> found["infidelity"].item() > 0.1, found["infidelity_scaled"].item() < 1e-3
        (True, True)
    """
    if maps.shape != effects.change.shape:
        raise InputError(f"maps must have shape {tuple(effects.change.shape)}, got {tuple(maps.shape)}")
    finite, constant = sanitise_maps(maps)
    contribution = effects.change.double() * finite.to(effects.change.device).double()
    predicted = (F.avg_pool2d(contribution[:, None], effects.patch) * effects.patch**2).flatten(1).cpu()
    predicted = predicted.cumsum(1) if effects.cumulative else predicted
    drop = effects.drop
    square = predicted.square().sum(1)
    factor = (predicted * drop).sum(1) / square.where(square > 0, 1.0)
    scaled = (factor[:, None] * predicted - drop).square().mean(1)
    size = drop.square().mean(1)
    return {
        "infidelity": (predicted - drop).square().mean(1),
        "infidelity_scaled": torch.where(size > 0, scaled / size.where(size > 0, 1.0), torch.nan),
        "flat": constant[:, 0, 0].cpu(),
    }
