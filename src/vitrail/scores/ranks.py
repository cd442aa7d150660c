"""One order of pixels for each map, by one rule for ties.

Every removal test uses a map only through the order of its pixels, so the order is computed once: ``rank(p)`` is the
position of pixel p when pixels are sorted from most to least relevant. Removing the k most relevant pixels (MoRF) means
``rank < k``; removing the k least relevant (LeRF) means ``rank >= HW - k``. The two are mirror images even where pixels
tie, which negating the map and sorting again would not give.

Ties are common: a clamped map holds many exact zeros, and bilinear upsampling repeats values along the border. Sorting
them in raster order would remove the picture row by row, so tied pixels are taken in a random order that is the same
for every map and method and follows from a seed ("random", the default), or in raster order ("raster", for repeating
older runs). NaN counts as less than everything, minus infinity included.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.postprocess import is_constant

Ties = Literal["random", "raster"]
Order = Literal["morf", "lerf"]


class Ranked(NamedTuple):
    """Ranks of some maps and what was wrong with the maps.

    Attributes:
        ranks: Position of each pixel in descending order, int32, shape (…, HW).
        nan: Number of NaN pixels of each map, shape (…).
        flat: Which maps are constant or not finite, so that their order is nothing but the rule for ties, shape (…).
    """

    ranks: Tensor
    nan: Tensor
    flat: Tensor


def rank(maps: Tensor, ties: Ties = "random", seed: int = 0) -> Ranked:
    """Positions of the pixels of each map in descending order.

    Args:
        maps: Relevance, shape (…, height, width).
        ties: "random" or "raster"; see the module's docstring.
        seed: Which random order tied pixels are taken in.

    Example:
        >>> rank(torch.tensor([[[0.1, 0.9], [0.5, 0.5]]]), "raster").ranks
        tensor([[3, 0, 1, 2]], dtype=torch.int32)
        >>> found = rank(torch.tensor([[[1.0, float("nan")], [2.0, 0.0]]]))
        >>> found.ranks, found.nan
        (tensor([[1, 3, 0, 2]], dtype=torch.int32), tensor([1]))
    """
    if maps.dim() < 2:
        raise InputError(f"a map has height and width, not shape {tuple(maps.shape)}")
    values = maps.detach().flatten(-2)
    values = values if values.is_floating_point() else values.double()
    nan, dull = values.isnan().sum(-1), is_constant(values, axes=1)[..., 0]
    tie_order = _tie_order(values.shape[-1], ties, seed, values.device)
    # Zero minus a value, not its negative: there is then one zero, and sorting by bits cannot tell two apart. An
    # ascending sort puts NaN last, so the least relevant pixels of all are those without a value.
    taken = (0 - values[..., tie_order]).argsort(dim=-1, stable=True)
    order = tie_order[taken]
    positions = torch.arange(values.shape[-1], dtype=torch.int32, device=values.device).expand(order.shape)
    return Ranked(torch.empty_like(order, dtype=torch.int32).scatter_(-1, order, positions), nan, dull)


def removed(ranks: Tensor, count: int, order: Order) -> Tensor:
    """Which pixels are gone once ``count`` have been removed, in the shape of the ranks.

    Example:
        >>> removed(torch.tensor([3, 0, 1, 2]), 1, "morf"), removed(torch.tensor([3, 0, 1, 2]), 1, "lerf")
        (tensor([False,  True, False, False]), tensor([ True, False, False, False]))
    """
    low, high = window(count, ranks.shape[-1], order)
    return (ranks >= low) & (ranks < high)


def window(count: int, pixels: int, order: Order) -> tuple[int, int]:
    """The first rank that is removed, and the one after the last.

    Example:
        >>> window(3, 10, "morf"), window(3, 10, "lerf")
        ((0, 3), (7, 10))
    """
    return (0, count) if order == "morf" else (pixels - count, pixels)


@lru_cache(maxsize=32)
def _tie_order(pixels: int, ties: Ties, seed: int, device: torch.device) -> Tensor:
    """Pixels in the order in which they are taken where they tie; drawn on the CPU so that no device differs."""
    if ties not in ("random", "raster"):
        raise OptionError(f"ties={ties!r} is not a rule: choose random or raster")
    with torch.inference_mode(False):  # it is kept, and whoever asks next may not be in that mode
        if ties == "raster":
            return torch.arange(pixels, device=device)
        return torch.randperm(pixels, generator=torch.Generator().manual_seed(seed)).to(device)
