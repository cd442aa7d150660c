"""Complexity of maps: over how many positions the relevance is spread.

Complexity does not say whether a map is right: a single random pixel is the simplest map of all. Pass the patch grid
rather than the pixel map where there is one, since upsampling a grid changes all scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.scores.segmentation import sanitise_maps
from vitrail.scores.statistics import SampleScores

#: Share of the largest |relevance| above which a position counts in `effective_complexity`.
RELEVANT_SHARE = 1e-5


def gini(maps: Tensor) -> Tensor:
    """Sparseness as the Gini index: G = Σᵢ (2i − n − 1)·a₍ᵢ₎ / (n·Σ a), with a = |S| + 10⁻⁷ ascending, i from 1.

    Args:
        maps: Finite maps, shape (B, …).

    Returns:
        From 0 (uniform) to almost 1 (all relevance at one position); shape (B,), float64.

    Example:
        >>> gini(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])).round(decimals=3)
        tensor([0.0000, 0.7500], dtype=torch.float64)
    """
    a = (maps.double().flatten(1).abs() + 1e-7).sort().values
    n = a.shape[1]
    weights = 2 * torch.arange(1, n + 1, dtype=a.dtype, device=a.device) - n - 1
    return (a * weights).sum(1) / (n * a.sum(1))


def entropy(maps: Tensor) -> Tensor:
    """Complexity as entropy in nats: −Σ q·ln q with q = |S| / Σ|S|.

    Args:
        maps: Finite maps, shape (B, …), none of them all zero.

    Returns:
        From 0 (all relevance at one position) to ln n (uniform over n); shape (B,), float64.

    Example:
        >>> entropy(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])).exp()
        tensor([4., 1.], dtype=torch.float64)
    """
    a = maps.double().flatten(1).abs()
    q = a / a.sum(1, keepdim=True)
    return -torch.xlogy(q, q).sum(1)


def effective_complexity(maps: Tensor, above: float = RELEVANT_SHARE) -> Tensor:
    """Effective complexity: share of positions whose |S| exceeds a share of the map's maximum.

    Args:
        maps: Finite maps, shape (B, …).
        above: Threshold, as a share of the largest |S|.

    Returns:
        From 0 to 1, shape (B,), float64.

    Example:
        >>> effective_complexity(torch.tensor([[0.0, 2.0, -1.0, 0.0]])).item()
        0.5
    """
    a = maps.double().flatten(1).abs()
    return (a > above * a.amax(1, keepdim=True)).double().mean(1)


def score_complexity(maps: Tensor, above: float = RELEVANT_SHARE) -> dict[str, Tensor]:
    """Compute all complexity scores of each map.

    Args:
        maps: One map per image, shape (B, height, width), signed or not. The scale does not matter, the zero does. A
            map that is constant or not finite counts as uniform, the most complex of all.
        above: See `effective_complexity`.

    Returns:
        ``gini``; ``entropy``, in nats; ``places``, exp(entropy) / n, the share of positions a uniform map of the same
        entropy covers; ``used``, the `effective_complexity`; ``flat``, whether the map is constant or not finite.

    Example:
        >>> found = score_complexity(torch.eye(4)[None])
        >>> {name: round(float(value), 3) for name, value in found.items()}
        {'gini': 0.75, 'entropy': 1.386, 'places': 0.25, 'used': 0.25, 'flat': 0.0}
    """
    if maps.dim() != 3:
        raise InputError(
            f"maps must have shape (images, height, width), got {tuple(maps.shape)}: "
            "see vitrail.tools.integrations.as_maps for maps of other libraries"
        )
    finite, constant = sanitise_maps(maps)
    relevance = torch.where(constant, 1.0, finite.double())
    nats = entropy(relevance)
    return {
        "gini": gini(relevance),
        "entropy": nats,
        "places": (nats - math.log(relevance[0].numel())).exp(),
        "used": effective_complexity(relevance, above),
        "flat": constant[:, 0, 0],
    }


@dataclass
class ComplexityScores(SampleScores):
    """Accumulates the results of `score_complexity`.

    Example:
        >>> scores = ComplexityScores()
        >>> scores.add(["a", "b"], score_complexity(torch.stack([torch.eye(4), torch.ones(4, 4)])))
        >>> scores.summary()["gini"].__round__(3), scores.summary()["flat"]
        (0.375, 1)
    """
