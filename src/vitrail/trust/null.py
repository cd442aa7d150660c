"""The null distribution of a check: the same map moved to other places of the image.

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


def moved_signals(values: Tensor, count: int, seed: int = 0) -> Tensor:
    """Copies of a map over any axes, shifted over their ends and reversed; axes are not exchanged.

    Shifts by at most one cell along every axis are not drawn. Where no axis has ``MIN_SIDE`` cells, cells are shuffled.

    Returns:
        Shape (count, cells along each axis …).

    Example:
        >>> moved = moved_signals(torch.arange(24.0).view(6, 1, 4), 3)
        >>> moved.shape, [sorted(m.flatten().tolist()) == list(range(24)) for m in moved]
        (torch.Size([3, 6, 1, 4]), [True, True, True])
    """
    generator = torch.Generator().manual_seed(seed)
    sides = list(values.shape)

    def draw(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    copies: list[Tensor] = []
    while len(copies) < count:
        if max(sides) < MIN_SIDE:
            order = torch.randperm(values.numel(), generator=generator).to(values.device)
            copies.append(values.flatten()[order].view(values.shape))
            continue
        shifts = [draw(side) for side in sides]
        if all(min(shift, side - shift) <= 1 for shift, side in zip(shifts, sides, strict=True)):
            continue
        copy = values.roll(shifts, list(range(values.dim())))
        copies.append(copy.flip([axis for axis in range(values.dim()) if draw(2)]))
    return torch.stack(copies)


def shifted_orders(values: Tensor, count: int, seed: int = 0) -> Tensor:
    """Copies of the scores of words, shifted along the text over its end, forwards or backwards.

    Each shift is drawn once; if a text has fewer shifts than copies, random orders fill the rest.

    Args:
        values: Scores of words, shape (W,).
        count: Number of copies.
        seed: Of the draws; they do not depend on the values.

    Returns:
        Shape (count, W).

    Example:
        >>> copies = shifted_orders(torch.arange(30.0), 3)
        >>> copies.shape, bool((copies == torch.arange(30.0)).all(1).any())
        (torch.Size([3, 30]), False)
    """
    if values.dim() != 1 or count < 1:
        raise OptionError(f"expected scores of shape (words,) and count ≥ 1, got {tuple(values.shape)}, {count}")
    generator = torch.Generator().manual_seed(seed)
    words = len(values)
    copies = [values.roll(shift) for shift in range(1, words)]
    copies += [values.flip(0).roll(shift) for shift in range(words)]
    copies = [copy for copy in copies if not torch.equal(copy, values)]  # as of symmetric scores
    drawn = [copies[i] for i in torch.randperm(len(copies), generator=generator)[:count].tolist()]
    while len(drawn) < count:
        drawn.append(values[torch.randperm(words, generator=generator).to(values.device)])
    return torch.stack(drawn)
