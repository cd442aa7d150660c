"""Pixel ranks: one order of the pixels of each map, with one rule for ties.

Removal tests use a map only through the order of its pixels, so the order is computed once: ``rank(p)`` is the position
of pixel p when pixels are sorted from most to least relevant. Removing the k most relevant pixels (MoRF) means
``rank < k``; removing the k least relevant (LeRF) means ``rank >= HW - k``. The two are exact mirror images even where
pixels tie. Sorting the negated map would not give that.

Ties are common: a clamped map has many exact zeros, and bilinear upsampling repeats values along the border. Raster
order would remove tied pixels row by row. So tied pixels are taken in a seeded random order that is the same for every
map and method ("random", the default), or in raster order ("raster", to repeat older runs). NaN ranks below all other
values, including minus infinity.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.methods.postprocess import is_constant

TieOrder = Literal["random", "raster"]
RemovalOrder = Literal["morf", "lerf"]


class RankedMaps(NamedTuple):
    """Pixel ranks of maps, with counts of invalid maps.

    Attributes:
        ranks: Position of each pixel in descending order, int32, shape (…, HW).
        nan: Number of NaN pixels of each map, shape (…).
        constant: Whether a map is constant or not finite, so that only the tie rule orders its pixels, shape (…).
    """

    ranks: Tensor
    nan: Tensor
    constant: Tensor


def rank(maps: Tensor, ties: TieOrder = "random", seed: int = 0) -> RankedMaps:
    """Rank the pixels of each map from most to least relevant.

    Args:
        maps: Relevance, shape (…, height, width).
        ties: "random" or "raster"; see the module's docstring.
        seed: Seed of the random order of tied pixels.

    Example:
        >>> rank(torch.tensor([[[0.1, 0.9], [0.5, 0.5]]]), "raster").ranks
        tensor([[3, 0, 1, 2]], dtype=torch.int32)
        >>> found = rank(torch.tensor([[[1.0, float("nan")], [2.0, 0.0]]]))
        >>> found.ranks, found.nan
        (tensor([[1, 3, 0, 2]], dtype=torch.int32), tensor([1]))
    """
    if maps.dim() < 2:
        raise InputError(f"maps must have shape (…, height, width), got {tuple(maps.shape)}")
    values = maps.detach().flatten(-2)
    values = values if values.is_floating_point() else values.double()
    nan, constant = values.isnan().sum(-1), is_constant(values, axes=1)[..., 0]
    tie_order = _tie_order(values.shape[-1], ties, seed, values.device)
    # 0 − x instead of −x maps −0.0 and 0.0 to one zero; a radix sort would order the two. An ascending sort puts NaN
    # last, so pixels without a value are the least relevant.
    order = tie_order[(0 - values[..., tie_order]).argsort(dim=-1, stable=True)]
    positions = torch.arange(values.shape[-1], dtype=torch.int32, device=values.device).expand(order.shape)
    return RankedMaps(torch.empty_like(order, dtype=torch.int32).scatter_(-1, order, positions), nan, constant)


def removed_ranks(count: int, pixels: int, order: RemovalOrder) -> tuple[int, int]:
    """Range of ranks, end exclusive, that are removed once ``count`` pixels are gone.

    Example:
        >>> removed_ranks(3, 10, "morf"), removed_ranks(3, 10, "lerf")
        ((0, 3), (7, 10))
    """
    return (0, count) if order == "morf" else (pixels - count, pixels)


def distinct_rows(ranks: Tensor, owners: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Find maps of one image that have the same ranks, so that perturbed images are evaluated once.

    Args:
        ranks: Shape (N, HW).
        owners: The image of each map, shape (N,).

    Returns:
        The rows to evaluate, shape (M,), and for each row its position among those, shape (N,); None and None where all
        rows differ.

    Example:
        >>> ranks = torch.tensor([[0, 1], [1, 0], [0, 1], [0, 1]], dtype=torch.int32)
        >>> distinct_rows(ranks, torch.tensor([0, 0, 0, 1]))
        (tensor([0, 1, 3]), tensor([0, 1, 0, 2]))
    """
    weights = _hash_weights(ranks.shape[1], ranks.device)
    # In pieces, since the products take eight bytes for each pixel.
    hashes = torch.cat([(piece * weights).sum(1) for piece in torch.split(ranks, 64)]) + owners * weights[0]
    values, order = hashes.sort(stable=True)
    new = torch.ones_like(values, dtype=torch.bool)
    new[1:] = values[1:] != values[:-1]
    # The first row of each run of equal hashes stands for the others, if it is equal to them.
    first = torch.empty_like(order)
    first[order] = order[new][new.cumsum(0) - 1]
    others = (first != torch.arange(len(ranks), device=ranks.device)).nonzero()[:, 0]
    if not len(others):
        return None, None
    equal = torch.cat(
        [(ranks[i] == ranks[first[i]]).all(1) & (owners[i] == owners[first[i]]) for i in torch.split(others, 64)]
    )
    first[others] = torch.where(equal, first[others], others)
    distinct, again = torch.unique(first, return_inverse=True)
    return distinct, again


def patch_means(maps: Tensor, grid: tuple[int, int]) -> Tensor:
    """Compute the mean relevance of each patch: (N, height, width) to (N, rows, columns).

    Example:
        >>> patch_means(torch.arange(8.0).view(1, 2, 4), (1, 2))
        tensor([[[2.5000, 4.5000]]])
    """
    if maps.shape[-2] % grid[0] or maps.shape[-1] % grid[1]:
        raise InputError(
            f"maps of {maps.shape[-2]}×{maps.shape[-1]} pixels cannot be divided into {grid[0]}×{grid[1]} patches"
        )
    return F.avg_pool2d(maps[:, None].float(), (maps.shape[-2] // grid[0], maps.shape[-1] // grid[1]))[:, 0]


def kept_patches(ranks: Tensor, count: int, order: RemovalOrder) -> Tensor:
    """Indices of the patches kept when ``count`` are removed, in raster order: ranks (N, S) to (N, S − count).

    Example:
        >>> ranks = torch.tensor([[2, 0, 3, 1]])
        >>> kept_patches(ranks, 1, "morf"), kept_patches(ranks, 1, "lerf")
        (tensor([[0, 2, 3]]), tensor([[0, 1, 3]]))
    """
    start, stop = removed_ranks(count, ranks.shape[-1], order)
    by_rank = ranks.argsort(-1)
    kept = torch.cat([by_rank[:, :start], by_rank[:, stop:]], 1)
    return kept.sort(-1).values


@lru_cache(maxsize=8)
def _hash_weights(pixels: int, device: torch.device) -> Tensor:
    """Random odd numbers of 62 bits, with which ranks are hashed."""
    with torch.inference_mode(False):
        drawn = torch.randint(1 << 61, (pixels,), generator=torch.Generator().manual_seed(0))
        return (2 * drawn + 1).to(device)


@lru_cache(maxsize=32)
def _tie_order(pixels: int, ties: TieOrder, seed: int, device: torch.device) -> Tensor:
    """Order in which tied pixels are taken; drawn on the CPU, so that it is the same on every device."""
    if ties not in ("random", "raster"):
        raise OptionError(f"unknown tie rule ties={ties!r}: choose random or raster")
    with torch.inference_mode(False):  # the result is cached and may be used outside of inference mode
        if ties == "raster":
            return torch.arange(pixels, device=device)
        return torch.randperm(pixels, generator=torch.Generator().manual_seed(seed)).to(device)
