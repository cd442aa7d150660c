"""The null distribution of a check: the same map, moved to where the image gives no reason for it.

A random order of patches is an easy opponent: it removes scattered patches, which a model hardly notices. Moved copies
of the map have the same values, and regions of the same shape and size, but no relation to the image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.errors import OptionError

#: Grids with a side below this are too small to move a map on; their cells are shuffled.
MIN_SIDE = 4


def moved_maps(values: Tensor, count: int, seed: int = 0) -> Tensor:
    """Copies of a map, shifted over the edges of the grid, rotated and flipped.

    Shifts by at most one cell in both directions are not drawn, since such a copy lies on the map itself. Rotations by
    90 degrees need a square grid; other grids are rotated by 180 degrees.

    Args:
        values: Relevance of patches, shape (rows, columns).
        count: Number of copies.
        seed: Of the draws; they do not depend on the values or on the device.

    Returns:
        Shape (count, rows, columns).

    Example:
        >>> moved = moved_maps(torch.arange(16.0).view(4, 4), 3)
        >>> moved.shape, [sorted(m.flatten().tolist()) == list(range(16)) for m in moved]
        (torch.Size([3, 4, 4]), [True, True, True])
    """
    if values.dim() != 2 or count < 1:
        raise OptionError(f"expected a map of shape (rows, columns) and count ≥ 1, got {tuple(values.shape)}, {count}")
    generator = torch.Generator().manual_seed(seed)
    rows, columns = values.shape

    def draw(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    copies: list[Tensor] = []
    while len(copies) < count:
        if min(rows, columns) < MIN_SIDE:
            order = torch.randperm(rows * columns, generator=generator).to(values.device)
            copies.append(values.flatten()[order].view(rows, columns))
            continue
        down, right = draw(rows), draw(columns)
        if min(down, rows - down) <= 1 and min(right, columns - right) <= 1:
            continue
        turns = draw(4) if rows == columns else 2 * draw(2)
        copy = values.roll((down, right), (0, 1)).rot90(turns)
        copies.append(copy.flip(1) if draw(2) else copy)
    return torch.stack(copies)
