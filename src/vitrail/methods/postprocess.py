"""Turn the relevance of patches into maps: upsample, normalise, detect constant maps."""

from __future__ import annotations

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
        relevance: Relevance of patches, shape (M, b, K, S), or of a grid, (M, b, K, rows, columns), by M methods.
        signed: Whether negative relevance has a meaning.
        structure: What was found in the model.
        model_inputs: What the model was called with.

    Returns:
        Maps at input resolution, the relevance on its grid, and which maps are constant, shape (M, b, K).
    """
    grid, image = structure.layout.grid, model_inputs.image
    valid = model_inputs.valid
    if relevance.dim() == 4 and valid is not None:
        return _to_token_maps(relevance, signed, valid, structure.layout.prefix or 0)
    # The prefix of a text is padding, whose zeros would give contrast to constant relevance.
    constant = is_constant(relevance.flatten(3), axes=1)[..., 0]
    if relevance.dim() == 4 and grid is not None and image is not None:
        relevance = relevance.reshape(*relevance.shape[:3], *grid)
    if relevance.dim() == 5 and image is not None:
        raw, axes = relevance, 2
        area = structure.layout.area if tuple(raw.shape[-2:]) == grid else None
        size = (int(image.shape[2]), int(image.shape[3]))
        if area is not None:
            covered = normalise(upsample(raw, (area.height, area.width)), signed=signed).float()
            return place(covered, size, (area.top, area.left)), raw, constant
        big = upsample(raw, size)
    else:
        raw = big = F.pad(relevance, (structure.layout.prefix or 0, 0))
        axes = 1
    return normalise(big, signed=signed, axes=axes).float(), raw, constant


def _to_token_maps(relevance: Tensor, signed: bool, valid: Tensor, prefix: int) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance of tokens of texts with padding, shape (M, b, K, S): as of each text alone, and zero at padding."""
    raw = F.pad(relevance.masked_fill(~valid[None, :, None, prefix:], 0.0), (prefix, 0))
    there, words = valid[None, :, None], (valid & (valid.cumsum(-1) > prefix))[None, :, None]
    maps = torch.where(there, normalise(raw, signed=signed, axes=1, among=there), 0.0)
    return maps.float(), raw, is_constant(raw, axes=1, among=words)[..., 0]


def upsample(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """Upsample maps bilinearly (``align_corners=False``): (…, rows, columns) to (…, height, width).

    Example:
        >>> upsample(torch.tensor([[0.0, 1.0]]), (1, 4))
        tensor([[0.0000, 0.2500, 0.7500, 1.0000]])
    """
    maps = F.interpolate(grid.reshape(-1, 1, *grid.shape[-2:]), size=size, mode="bilinear", align_corners=False)
    return maps.reshape(*grid.shape[:-2], *size)


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
    span = torch.maximum(high.abs(), low.abs()) if signed else high - low
    low = torch.zeros((), dtype=maps.dtype, device=maps.device) if signed else low
    return torch.where(is_constant(maps, axes, among), 0.0, (maps - low) / torch.where(span > 0, span, 1.0))


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
    eps = torch.finfo(maps.dtype).eps
    return ~((high - low) > 8 * eps * torch.maximum(high.abs(), low.abs()))


def _range(maps: Tensor, axes: int, among: Tensor | None) -> tuple[Tensor, Tensor]:
    """Largest and smallest value of each map."""
    over = tuple(range(-axes, 0))
    if among is None:
        return maps.amax(over, keepdim=True), maps.amin(over, keepdim=True)
    high, low = torch.where(among, maps, -torch.inf), torch.where(among, maps, torch.inf)
    return high.amax(over, keepdim=True), low.amin(over, keepdim=True)
