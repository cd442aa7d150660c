"""Turn the relevance of patches into maps: upsample, normalise, detect constant maps."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure


def to_maps(
    relevance: Tensor, signed: bool, structure: ModelStructure, model_inputs: ModelInputs
) -> tuple[Tensor, Tensor, Tensor]:
    """Convert relevance to maps over the input.

    Args:
        relevance: Relevance of patches, shape (M, b, K, S), or of a grid over the axes of the input, such as
            (M, b, K, rows, columns) for images, by M methods.
        signed: Whether negative relevance has a meaning.
        structure: What was found in the model.
        model_inputs: What the model was called with.

    Returns:
        Maps at input resolution, the relevance on its grid, and which maps are constant, shape (M, b, K).
    """
    grid, size = structure.layout.grid, model_inputs.map_size
    valid = model_inputs.valid
    if relevance.dim() == 4 and valid is not None:
        return _to_token_maps(relevance, signed, valid, structure.layout.prefix or 0)
    # The prefix of a text is padding, whose zeros would give contrast to constant relevance.
    constant = is_constant(relevance.flatten(3), axes=1)[..., 0]
    if size is not None and relevance.dim() == 4 and grid is not None and relevance.shape[-1] == prod(grid):
        relevance = relevance.reshape(*relevance.shape[:3], *grid)
    if size is None or not _is_placed(relevance, size, grid):
        raw = F.pad(relevance, (structure.layout.prefix, 0)) if structure.layout.prefix else relevance
        return normalise(raw, signed=signed, axes=1).float(), raw, constant
    raw, axes = relevance, len(size)
    area = structure.layout.area if tuple(raw.shape[3:]) == grid else None
    if area is not None:
        covered = normalise(upsample(raw, area.size), signed=signed, axes=axes).float()
        return place(covered, size, area.start), raw, constant
    return normalise(upsample(raw, size), signed=signed, axes=axes).float(), raw, constant


def _is_placed(relevance: Tensor, size: tuple[int, ...], grid: tuple[int, ...] | None) -> bool:
    """Whether relevance lies on the axes of a map, and not on tokens in a row; shape (M, b, K, …)."""
    placed = tuple(relevance.shape[3:])
    # Tokens in a row and a map of one axis look the same: a map has the size of the input or of the grid.
    return len(placed) == len(size) and (len(size) > 1 or placed in (size, grid))


def _to_token_maps(relevance: Tensor, signed: bool, valid: Tensor, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance of tokens of texts with padding, shape (M, b, K, S): as of each text alone, and zero at padding."""
    raw = F.pad(relevance.masked_fill(~valid[None, :, None, prefix:], 0.0), (prefix, 0))
    there, words = valid[None, :, None], (valid & (valid.cumsum(-1) > prefix))[None, :, None]
    maps = torch.where(there, normalise(raw, signed=signed, axes=1, among=there), 0.0)
    return maps.float(), raw, is_constant(raw, axes=1, among=words)[..., 0]


#: Interpolation by the number of axes of a map.
_MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


def upsample(grid: Tensor, size: tuple[int, ...]) -> Tensor:
    """Upsample maps linearly along each axis (``align_corners=False``): (…, rows, columns) to (…, height, width).

    Example:
        >>> upsample(torch.tensor([[0.0, 1.0]]), (1, 4))
        tensor([[0.0000, 0.2500, 0.7500, 1.0000]])
        >>> upsample(torch.tensor([0.0, 1.0]), (4,))
        tensor([0.0000, 0.2500, 0.7500, 1.0000])
    """
    axes = len(size)
    if tuple(grid.shape[-axes:]) == size and axes != 2:
        return grid
    maps = F.interpolate(grid.reshape(-1, 1, *grid.shape[-axes:]), size=size, mode=_MODES[axes], align_corners=False)
    return maps.reshape(*grid.shape[:-axes], *size)


def place(maps: Tensor, size: tuple[int, ...], corner: tuple[int, ...]) -> Tensor:
    """Put maps onto the part of an input that they cover; entries outside it are zero, maps beyond the input are cut.

    Args:
        maps: Maps in the last axes, such as (…, height, width).
        size: Size of the input along each axis of a map.
        corner: First entry along each axis that the maps cover.

    Example:
        >>> place(torch.ones(1, 4), (1, 5), (0, 0))
        tensor([[1., 1., 1., 1., 0.]])
    """
    axes = len(size)
    every: Any = ...
    covered = maps.shape[-axes:]
    canvas = maps.new_zeros(*maps.shape[:-axes], *size)
    inside = [slice(max(0, c), min(n, c + m)) for c, n, m in zip(corner, size, covered, strict=True)]
    source = [slice(i.start - c, i.stop - c) for i, c in zip(inside, corner, strict=True)]
    canvas[every, *inside] = maps[every, *source]
    return canvas


def normalise(maps: Tensor, signed: bool = False, axes: int = 2, among: Tensor | None = None) -> Tensor:
    """Min-max scale each map to [0, 1] or, if signed, divide it by its largest magnitude.

    Constant maps become zeros.

    Args:
        maps: Maps in the last ``axes`` axes.
        signed: Scale to [-1, 1] and keep zero at zero.
        axes: Number of axes of a map.
        among: Which values count, if not all do; it broadcasts to the maps.

    Example:
        >>> normalise(torch.tensor([[2.0, 4.0, 3.0]]), axes=1)
        tensor([[0.0000, 1.0000, 0.5000]])
        >>> normalise(torch.tensor([[2.0, -4.0]]), signed=True, axes=1)
        tensor([[ 0.5000, -1.0000]])
    """
    high, low = _range(maps, axes, among)
    size = torch.maximum(high.abs(), low.abs())
    constant = _is_narrow(high, low, size)
    # Where the span is 0 the map is constant, and whatever comes out of the division is replaced.
    scaled = maps / size if signed else (maps - low) / (high - low)
    return scaled.masked_fill(constant, 0.0)


def is_constant(maps: Tensor, axes: int = 2, among: Tensor | None = None) -> Tensor:
    """Detect maps that are constant up to rounding or not finite; without any value they count as constant.

    Args:
        maps: Maps in the last ``axes`` axes.
        axes: Number of axes of a map.
        among: Which values count, if not all do; it broadcasts to the maps.

    Returns:
        A boolean tensor with size 1 in the maps' axes, so that it broadcasts over them.

    Example:
        >>> is_constant(torch.tensor([[2.0, 2.0], [1.0, 2.0]]), axes=1)
        tensor([[ True],
                [False]])
    """
    high, low = _range(maps, axes, among)
    return _is_narrow(high, low, torch.maximum(high.abs(), low.abs()))


def _is_narrow(high: Tensor, low: Tensor, size: Tensor) -> Tensor:
    return ~((high - low) > 8 * torch.finfo(high.dtype).eps * size)


def _range(maps: Tensor, axes: int, among: Tensor | None) -> tuple[Tensor, Tensor]:
    """Largest and smallest value of each map."""
    over = tuple(range(-axes, 0))
    if among is None:
        if axes == 1:
            low, high = maps.aminmax(dim=-1, keepdim=True)
            return high, low
        return maps.amax(over, keepdim=True), maps.amin(over, keepdim=True)
    high, low = torch.where(among, maps, -torch.inf), torch.where(among, maps, torch.inf)
    return high.amax(over, keepdim=True), low.amin(over, keepdim=True)
