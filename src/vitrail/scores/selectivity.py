"""Class selectivity: asked for one of two things in a picture, does the map show that one?

A picture with two things of different classes, a map for each class, and where each thing is. A method that ignores
the class answers both questions with one map and is right once: its share is one half, whatever its maps are like.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.scores.pointing import energy
from vitrail.scores.segmentation import settle
from vitrail.scores.statistics import Tally


def selectivity(maps: Tensor, masks: Tensor) -> dict[str, Tensor]:
    """How the two maps of each picture tell its two things apart.

    Args:
        maps: For each picture the maps of the first and of the second thing's class, shape (B, 2, height, width), on
            any scale, signed or not. Maps that are constant or not finite are taken as zeros: they decide nothing.
        masks: Where the two things are seen, shape (B, 2, height, width), bool or 0 and 1.

    Returns:
        For each picture, as means over its two questions, float64:

        - ``share``: 1 where the thing asked for gets more relevance a pixel than the other, ½ where both get the same;
        - ``mass``: share of the positive relevance of the whole picture that lies on the thing asked for;
        - ``mass_between``: the same, of the relevance on the two things alone; ½ where there is none;
        - ``both``: 1 where both questions are answered rightly;
        - ``flat``: how many of the two maps say nothing.

        NaN where a thing has no pixels.

    Example:
        >>> masks = torch.tensor([[[[1, 0, 0]], [[0, 1, 0]]]])
        >>> right = selectivity(torch.tensor([[[[3.0, 1.0, 0.0]], [[0.0, 2.0, 0.0]]]]), masks)
        >>> [right[name].item() for name in ("share", "mass", "mass_between", "both")]
        [1.0, 0.875, 0.875, 1.0]
        >>> alike = selectivity(torch.tensor([[[[3.0, 1.0, 0.0]], [[3.0, 1.0, 0.0]]]]), masks)
        >>> alike["share"].item(), alike["both"].item()
        (0.5, 0.0)
    """
    if maps.shape != masks.shape or maps.dim() != 4 or maps.shape[1] != 2:
        raise InputError(f"maps {tuple(maps.shape)} and masks {tuple(masks.shape)} must be (images, 2, height, width)")
    settled, dull = settle(maps)
    relevance = settled.double()
    asked = masks.to(maps.device) != 0
    other = asked.flip(1)
    known = asked.flatten(2).any(2).all(1)
    # Signed relevance, so that a map may also win by speaking against the other thing.
    gap = _density(relevance, asked) - _density(relevance, other)
    right = 0.5 * (torch.sign(gap) + 1)
    on_asked, on_other = _mass(relevance, asked), _mass(relevance, other)
    total = on_asked + on_other
    between = torch.where(total > 0, on_asked / total.where(total > 0, 1.0), 0.5)
    mass = energy(relevance.flatten(0, 1), asked.flatten(0, 1)).reshape(gap.shape)
    scores = {
        "share": right.mean(1),
        "mass": mass.mean(1),
        "mass_between": between.mean(1),
        "both": (right == 1).all(1).double(),
    }
    return {name: s.where(known, torch.nan) for name, s in scores.items()} | {"flat": dull[:, :, 0, 0].sum(1)}


@dataclass
class Selectivity(Tally):
    """Collects what `selectivity` returns.

    Example:
        >>> tally = Selectivity()
        >>> tally.add(["a"], selectivity(torch.zeros(1, 2, 4, 4), torch.ones(1, 2, 4, 4)))
        >>> tally.summary()
        {'images': 1, 'flat': 2, 'share': 0.5, 'mass': 0.0, 'mass_between': 0.5, 'both': 0.0}
    """


def _mass(relevance: Tensor, masks: Tensor) -> Tensor:
    return (relevance.clamp_min(0) * masks).sum((2, 3))


def _density(relevance: Tensor, masks: Tensor) -> Tensor:
    return (relevance * masks).sum((2, 3)) / masks.sum((2, 3))
