"""Complexity: how few places carry the relevance.

This is about maps alone, not about their being right: a map of one random pixel is as simple as can be. Give the grid
of patches rather than the map of pixels where there is one, since enlarging a grid changes all three numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.scores.segmentation import settle
from vitrail.scores.statistics import Tally

#: Share of the highest relevance above which a place counts as used.
USED = 1e-5


def gini(maps: Tensor) -> Tensor:
    """Sparseness as Gini index: G = Σᵢ (2i − n − 1)·a₍ᵢ₎ / (n·Σ a), with a = |S| + 10⁻⁷ in rising order, i from 1.

    Args:
        maps: Finite maps, shape (B, …).

    Returns:
        From 0, relevance spread evenly, to nearly 1, all in one place; shape (B,), float64.

    Example:
        >>> gini(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])).round(decimals=3)
        tensor([0.0000, 0.7500], dtype=torch.float64)
    """
    a = (maps.double().flatten(1).abs() + 1e-7).sort().values
    n = a.shape[1]
    weights = 2 * torch.arange(1, n + 1, dtype=a.dtype, device=a.device) - n - 1
    return (a * weights).sum(1) / (n * a.sum(1))


def entropy(maps: Tensor) -> Tensor:
    """Complexity as entropy: −Σ q·ln q with q = |S| / Σ|S|.

    Args:
        maps: Finite maps, shape (B, …), none of them all zero.

    Returns:
        From 0, all in one place, to ln n, spread evenly over n; shape (B,), float64.

    Example:
        >>> entropy(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]])).exp()
        tensor([4., 1.], dtype=torch.float64)
    """
    a = maps.double().flatten(1).abs()
    q = a / a.sum(1, keepdim=True)
    return -torch.xlogy(q, q).sum(1)


def used(maps: Tensor, above: float = USED) -> Tensor:
    """Effective complexity: how many places have relevance |S| above a share of the map's largest.

    Args:
        maps: Finite maps, shape (B, …).
        above: The share.

    Returns:
        Share of all places, shape (B,), float64.

    Example:
        >>> used(torch.tensor([[0.0, 2.0, -1.0, 0.0]])).item()
        0.5
    """
    a = maps.double().flatten(1).abs()
    return (a > above * a.amax(1, keepdim=True)).double().mean(1)


def complexity(maps: Tensor, above: float = USED) -> dict[str, Tensor]:
    """All three, for each image.

    Args:
        maps: One map an image, shape (B, height, width), signed or not. The scale does not matter, the zero does. A map
            that is constant or not finite is taken as the same everywhere, the least simple of all.
        above: See `used`.

    Returns:
        ``gini``; ``entropy``, in nats; ``places``, e to the entropy over n: the share of the picture that would carry
        the relevance if spread evenly; ``used``; ``flat``.

    Example:
        >>> found = complexity(torch.eye(4)[None])
        >>> {name: round(float(value), 3) for name, value in found.items()}
        {'gini': 0.75, 'entropy': 1.386, 'places': 0.25, 'used': 0.25, 'flat': 0.0}
    """
    if maps.dim() != 3:
        raise InputError(
            f"maps of shape {tuple(maps.shape)} are not (images, height, width): see vitrail.integrations.as_maps"
        )
    settled, dull = settle(maps)
    wide = torch.where(dull, 1.0, settled.double())
    nats = entropy(wide)
    return {
        "gini": gini(wide),
        "entropy": nats,
        "places": (nats - math.log(wide[0].numel())).exp(),
        "used": used(wide, above),
        "flat": dull[:, 0, 0],
    }


@dataclass
class Complexity(Tally):
    """Collects what `complexity` returns.

    Example:
        >>> tally = Complexity()
        >>> tally.add(["a", "b"], complexity(torch.stack([torch.eye(4), torch.ones(4, 4)])))
        >>> tally.summary()["gini"].__round__(3), tally.summary()["flat"]
        (0.375, 1)
    """
