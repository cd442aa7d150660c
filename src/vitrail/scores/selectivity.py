"""Class selectivity: class-discrimination accuracy and relevance mass on images with two objects.

Each image has two objects of different classes, a map for each class, and a mask for each object. A class-agnostic
method gives the same map for both classes and is right for one of the two, so its class-discrimination accuracy is one
half on every image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.scores.pointing import energy_pointing_game
from vitrail.scores.segmentation import sanitise_maps
from vitrail.scores.statistics import SampleScores


def score_selectivity(maps: Tensor, masks: Tensor) -> dict[str, Tensor]:
    """Compute class-discrimination accuracy and relevance mass of each image.

    Args:
        maps: For each image the maps of the first and of the second object's class, shape (B, 2, height, width), on any
            scale, signed or not. Maps that are constant or not finite count as zeros.
        masks: Visible pixels of the two objects, shape (B, 2, height, width), bool or 0 and 1.

    Returns:
        For each image, as means over its two maps, float64:

        - ``share``: class-discrimination accuracy: 1 where the mean relevance on the target object is higher than on
          the other object, ½ where both are equal;
        - ``mass``: relevance mass: share of the positive relevance of the whole image on the target object;
        - ``mass_between``: the same, as a share of the positive relevance on the two objects; ½ where there is none;
        - ``both``: 1 where both maps are right;
        - ``flat``: how many of the two maps are constant or not finite.

        NaN where an object has no pixels.

    Example:
        >>> masks = torch.tensor([[[[1, 0, 0]], [[0, 1, 0]]]])
        >>> right = score_selectivity(torch.tensor([[[[3.0, 1.0, 0.0]], [[0.0, 2.0, 0.0]]]]), masks)
        >>> [right[name].item() for name in ("share", "mass", "mass_between", "both")]
        [1.0, 0.875, 0.875, 1.0]
        >>> class_agnostic = score_selectivity(torch.tensor([[[[3.0, 1.0, 0.0]], [[3.0, 1.0, 0.0]]]]), masks)
        >>> class_agnostic["share"].item(), class_agnostic["both"].item()
        (0.5, 0.0)
    """
    if maps.shape != masks.shape or maps.dim() != 4 or maps.shape[1] != 2:
        raise InputError(
            f"maps and masks must both have shape (images, 2, height, width), got {tuple(maps.shape)} and "
            f"{tuple(masks.shape)}"
        )
    finite, constant = sanitise_maps(maps)
    relevance = finite.double()
    target = masks.to(maps.device) != 0
    other = target.flip(1)
    valid = target.flatten(2).any(2).all(1)
    # Signed relevance: negative relevance on the other object also discriminates.
    margin = _mean_inside(relevance, target) - _mean_inside(relevance, other)
    correct = 0.5 * (torch.sign(margin) + 1)
    on_target, on_other = _positive_sum(relevance, target), _positive_sum(relevance, other)
    total = on_target + on_other
    between = torch.where(total > 0, on_target / total.where(total > 0, 1.0), 0.5)
    mass = energy_pointing_game(relevance.flatten(0, 1), target.flatten(0, 1)).reshape(margin.shape)
    scores = {
        "share": correct.mean(1),
        "mass": mass.mean(1),
        "mass_between": between.mean(1),
        "both": (correct == 1).all(1).double(),
    }
    return {name: s.where(valid, torch.nan) for name, s in scores.items()} | {"flat": constant[:, :, 0, 0].sum(1)}


@dataclass
class SelectivityScores(SampleScores):
    """Accumulates the results of `score_selectivity`.

    Example:
        >>> scores = SelectivityScores()
        >>> scores.add(["a"], score_selectivity(torch.zeros(1, 2, 4, 4), torch.ones(1, 2, 4, 4)))
        >>> scores.summary()
        {'images': 1, 'flat': 2, 'share': 0.5, 'mass': 0.0, 'mass_between': 0.5, 'both': 0.0}
    """


def _positive_sum(relevance: Tensor, masks: Tensor) -> Tensor:
    return (relevance.clamp_min(0) * masks).sum((2, 3))


def _mean_inside(relevance: Tensor, masks: Tensor) -> Tensor:
    return (relevance * masks).sum((2, 3)) / masks.sum((2, 3))
