"""From the relevance of patches to a map over the image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def upsample(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, corners not aligned: (…, gh, gw) to (…, height, width).

    Example:
        >>> upsample(torch.tensor([[0.0, 1.0]]), (1, 4))
        tensor([[0.0000, 0.2500, 0.7500, 1.0000]])
    """
    flat = grid.reshape(-1, 1, *grid.shape[-2:])
    return F.interpolate(flat, size=size, mode="bilinear", align_corners=False).reshape(*grid.shape[:-2], *size)


def place(maps: Tensor, size: tuple[int, int], corner: tuple[int, int]) -> Tensor:
    """Put maps onto the part of an image that they cover; pixels outside it are zero, maps beyond the image are cut.

    Args:
        maps: Shape (…, height, width).
        size: Height and width of the image.
        corner: First row and column that the maps cover.

    Example:
        >>> place(torch.ones(1, 4), (1, 5), (0, 0))
        tensor([[1., 1., 1., 1., 0.]])
    """
    top, left = corner
    height, width = maps.shape[-2:]
    canvas = maps.new_zeros(*maps.shape[:-2], *size)
    rows = slice(max(0, top), min(size[0], top + height))
    columns = slice(max(0, left), min(size[1], left + width))
    inside = maps[..., rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    canvas[..., rows, columns] = inside
    return canvas


def normalise(maps: Tensor, signed: bool = False, axes: int = 2) -> Tensor:
    """Each map to [0, 1] by its minimum and maximum, or, if signed, to [-1, 1] by its largest magnitude.

    A map without contrast becomes zeros: it says nothing, and must not look as if it did.

    Args:
        maps: Maps in the last ``axes`` axes.
        signed: Keep zero where it is.
        axes: How many axes a map has.

    Example:
        >>> normalise(torch.tensor([[2.0, 4.0, 3.0]]), axes=1)
        tensor([[0.0000, 1.0000, 0.5000]])
        >>> normalise(torch.tensor([[2.0, -4.0]]), signed=True, axes=1)
        tensor([[ 0.5000, -1.0000]])
    """
    over = tuple(range(-axes, 0))
    low = torch.zeros((), dtype=maps.dtype, device=maps.device) if signed else maps.amin(over, keepdim=True)
    span = maps.abs().amax(over, keepdim=True) if signed else maps.amax(over, keepdim=True) - low
    return torch.where(flat(maps, axes), 0.0, (maps - low) / torch.where(span > 0, span, 1.0))


def flat(maps: Tensor, axes: int = 2) -> Tensor:
    """Which maps are constant up to rounding or not finite, as a mask that broadcasts over the maps' axes."""
    over = tuple(range(-axes, 0))
    high, low = maps.amax(over, keepdim=True), maps.amin(over, keepdim=True)
    eps = torch.finfo(maps.dtype).eps
    return ~((high - low) > 8 * eps * torch.maximum(high.abs(), low.abs()))
