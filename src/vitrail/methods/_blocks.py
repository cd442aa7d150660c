"""Choice of blocks, and the principal component of their channels, for methods on feature maps and attention heads."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.methods.registry import within

#: An index from the start, or negative from the end; several as a list, or with "+" between them.
BlockChoice = int | str | list[int]


def block_indices(block: BlockChoice) -> list[int]:
    """The indices in an option.

    Example:
        >>> block_indices(-1), block_indices("8+-1"), block_indices([2, 3])
        ([-1], [8, -1], [2, 3])
    """
    given: Any = block.split("+") if isinstance(block, str) else block
    try:
        several = given if isinstance(given, Sequence) else [given]
        indices = [int(one) if isinstance(one, str) else index(one) for one in several if not isinstance(one, bool)]
    except (TypeError, ValueError):
        several, indices = [None], []
    if not indices or len(indices) < len(several):
        raise OptionError(
            f"block={block!r} is no choice of blocks: give an index, negative from the end, a list of indices, or "
            "several with + between them, as in block=8+11"
        )
    return indices


def blocks_needed(block: BlockChoice | None) -> slice:
    """The blocks that a pass must keep: one, or all of them where several are averaged; None for the last."""
    indices = [-1] if block is None else block_indices(block)
    return slice(indices[0], indices[0] + 1 or None) if len(indices) == 1 else slice(None)


def chosen_blocks(block: BlockChoice, count: int) -> list[int]:
    """The chosen ones of ``count`` blocks, in the given order.

    Example:
        >>> chosen_blocks([0, -1], 12)
        [0, 11]
        >>> chosen_blocks(12, 12)
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: block=12 is out of range: this model has 12 blocks, 0 to 11
    """
    indices = block_indices(block)
    if count == 1 and not {0, -1}.issuperset(indices):
        raise OptionError(f"block={block} is out of range: only one feature map of this model is read, block=-1")
    for one in indices:
        within("block", one, count, "blocks")
    return [one % count for one in indices]


def chosen_block(block: int | None, count: int) -> int | None:
    """One block, for methods that read the feature maps of a single one; None for the method's own choice."""
    return None if block is None else chosen_blocks(block, max(1, count))[0]


def mean_over_blocks(maps: Sequence[Tensor]) -> Tensor:
    """Mean of the maps of several blocks; a single one is returned as it is.

    Gradients grow and shrink from block to block, so each map is divided by its largest magnitude first. Maps on
    different grids are enlarged to the finest.

    Example:
        >>> mean_over_blocks([torch.tensor([[1.0, 4.0]]), torch.tensor([[0.2, 0.1]])])
        tensor([[0.6250, 0.7500]])
    """
    if len(maps) == 1:
        return maps[0]
    largest = max((tuple(one.shape[1:]) for one in maps), key=lambda shape: torch.Size(shape).numel())
    scaled = []
    for one in maps:
        high = one.flatten(1).abs().amax(1).view(-1, *[1] * (one.dim() - 1))
        unit = one / torch.where(high > 0, high, 1.0)
        if tuple(one.shape[1:]) != largest:
            unit = F.interpolate(unit[:, None], size=largest, mode="bilinear", align_corners=False)[:, 0]
        scaled.append(unit)
    return torch.stack(scaled).mean(0)


def principal_component(channels: Tensor, valid: Tensor | None = None) -> Tensor:
    """Projection of each position's channels onto their first principal component, shape (b, positions).

    Channels are centred over the positions. The sign of a principal component is arbitrary; it is chosen so that the
    projection correlates positively with the sum of the channels, the map without this option.

    Args:
        channels: Weighted activations, shape (b, C, positions).
        valid: Which positions are no padding, shape (b, positions); None for all.

    Example:
        >>> principal_component(torch.tensor([[[0.0, 3.0, 0.0], [0.0, 4.0, 0.0]]]))
        tensor([[-1.6667,  3.3333, -1.6667]])
    """
    there = torch.ones_like(channels[:, :1]) if valid is None else valid[:, None].to(channels)
    centred = (channels - (channels * there).sum(-1, keepdim=True) / there.sum(-1, keepdim=True)) * there
    # An empty map has no component; torch's decomposition refuses what is not finite.
    _, _, vectors = torch.linalg.svd(centred.mT.nan_to_num(), full_matrices=False)
    projection = (centred.mT @ vectors[:, 0, :, None])[..., 0]
    agreement = (projection * centred.sum(1)).sum(-1, keepdim=True)
    return torch.where(agreement < 0, -projection, projection)
