"""Grid pointing game: whether the relevance for a class lies in the cell of a grid of images that shows the class.

A grid joins n × n images of different classes, each of which the model classifies with confidence. The map of a class
should put its positive relevance into the cell of that class; a class-agnostic map reaches 1/n² on average
[bohle2021convolutional, rao2022towards]. `vitrail.data.draw_grids` chooses the images; `vitrail.scores.disconnected`
has the two settings in which cells cannot influence each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.scores.pointing import energy_pointing_game, pointing_game
from vitrail.scores.segmentation import sanitise_maps
from vitrail.scores.statistics import SampleScores

#: Limits of AggAtt's bins of maps ordered by localisation, from the best map (0) to the worst (1).
AGGATT_BINS = (0.0, 0.02, 0.05, 0.5, 0.95, 0.98, 1.0)


def compose_grids(images: Tensor, n: int = 2, size: tuple[int, int] | None = None) -> Tensor:
    """Join images into grids; each is resized to its cell (bilinear, antialiased).

    Args:
        images: The cells row by row, shape (G, n², channels, height, width).
        n: Cells in a row and in a column.
        size: Height and width of a grid; by default those of one image.

    Returns:
        Shape (G, channels, *size).

    Example:
        >>> cells = torch.arange(4.0).view(1, 4, 1, 1, 1).expand(-1, -1, -1, 2, 2)
        >>> compose_grids(cells)[0, 0]
        tensor([[0., 1.],
                [2., 3.]])
    """
    if images.dim() != 5 or images.shape[1] != n * n:
        raise InputError(f"expected images of shape (grids, {n * n}, channels, h, w), got {tuple(images.shape)}")
    height, width = size or (int(images.shape[3]), int(images.shape[4]))
    rows, columns = _edges(height, n), _edges(width, n)
    grids = images.new_empty(len(images), images.shape[2], height, width)
    for cell in range(n * n):
        (top, bottom), (left, right) = rows[cell // n], columns[cell % n]
        own, shape = images[:, cell], (bottom - top, right - left)
        if tuple(own.shape[-2:]) != shape:
            own = F.interpolate(own, size=shape, mode="bilinear", antialias=True, align_corners=False)
        grids[:, :, top:bottom, left:right] = own
    return grids


def cell_masks(n: int, size: tuple[int, int]) -> Tensor:
    """Mask of each cell of a grid, row by row.

    Args:
        n: Cells in a row and in a column.
        size: Height and width of the grid.

    Returns:
        Shape (n², height, width), bool.

    Example:
        >>> cell_masks(2, (2, 4))[1].int()
        tensor([[0, 0, 1, 1],
                [0, 0, 0, 0]], dtype=torch.int32)
    """
    masks = torch.zeros(n * n, *size, dtype=torch.bool)
    rows, columns = _edges(size[0], n), _edges(size[1], n)
    for cell, mask in enumerate(masks):
        (top, bottom), (left, right) = rows[cell // n], columns[cell % n]
        mask[top:bottom, left:right] = True
    return masks


def score_grid_pointing(maps: Tensor, cells: Tensor | None = None, n: int = 2) -> dict[str, Tensor]:
    """Compute the grid pointing game of each grid, the mean over its maps.

    Args:
        maps: A map for each of K classes of each grid, shape (G, K, height, width), signed or not.
        cells: The cell that shows each class, shape (G, K), counted row by row; by default map k belongs to cell k.
        n: Cells in a row and in a column.

    Returns:
        ``cell_share``: positive relevance in the right cell over all positive relevance, L = Σ_cell S⁺ / Σ S⁺;
        ``cell_peak``: whether the maximum is in the right cell, the share of the maxima if several tie;
        ``corners``: share of the positive relevance in the four corner regions of the grid, each 1/14 of its side,
        which is a patch of a 14 × 14 grid; ``flat``: number of maps that are constant or not finite. Shape (G,) each.
        A map without positive relevance has a ``cell_share`` of 0, a constant one also a ``cell_peak`` of 1/n².

    Example:
        >>> maps = torch.tensor([[[[3.0, 0.0], [1.0, -9.0]], [[2.0, 0.0], [0.0, 0.0]]]])
        >>> found = score_grid_pointing(maps, torch.tensor([[0, 1]]))
        >>> found["cell_share"].item(), found["cell_peak"].item()
        (0.375, 0.5)
    """
    if maps.dim() != 4:
        raise InputError(f"expected maps of shape (grids, classes, height, width), got {tuple(maps.shape)}")
    grids, count = maps.shape[:2]
    size = (int(maps.shape[2]), int(maps.shape[3]))
    if cells is None:
        if count != n * n:
            raise InputError(f"{count} maps a grid, a grid has {n * n} cells: pass cells=, the cell of each map")
        cells = torch.arange(count).expand(grids, -1)
    if tuple(cells.shape) != (grids, count) or int(cells.min()) < 0 or int(cells.max()) >= n * n:
        raise InputError(f"cells must have shape {(grids, count)} and values from 0 to {n * n - 1}")
    flat = maps.flatten(0, 1)
    finite, constant = sanitise_maps(flat)
    masks = cell_masks(n, size).to(finite.device)[cells.flatten().to(finite.device)]
    values = {
        "cell_share": energy_pointing_game(finite, masks),
        "cell_peak": pointing_game(finite, masks),
        "corners": energy_pointing_game(finite, _corner_mask(size).to(finite.device).expand_as(finite)),
    }
    means = {name: value.view(grids, count).mean(1) for name, value in values.items()}
    return means | {"flat": constant.view(grids, count).sum(1)}


def aggregate_attributions(maps: Tensor, shares: Tensor, bins: Sequence[float] = AGGATT_BINS) -> Tensor:
    """AggAtt: order maps by how well they localise, and average them in bins from the best to the worst.

    Args:
        maps: Maps of one cell, shape (N, height, width).
        shares: Localisation of each map, shape (N,).
        bins: Limits of the bins as shares of the maps, ascending from 0 to 1.

    Returns:
        Mean map of each bin, each map first divided by its largest magnitude, shape (bins, height, width).

    Example:
        >>> maps = torch.stack([torch.eye(2), 1 - torch.eye(2)])
        >>> aggregate_attributions(maps, torch.tensor([0.2, 0.9]), (0, 0.5, 1))[0]
        tensor([[0., 1.],
                [1., 0.]])
    """
    if list(bins) != sorted(bins) or bins[0] != 0 or bins[-1] != 1:
        raise OptionError(f"bins={tuple(bins)} must ascend from 0 to 1")
    top = maps.abs().amax((1, 2), keepdim=True)
    order = shares.argsort(descending=True, stable=True)
    scaled = (maps / top.where(top > 0, 1.0))[order]
    limits = [round(limit * len(maps)) for limit in bins]
    # A bin of few maps has at least one.
    return torch.stack([scaled[min(a, len(maps) - 1) : max(b, a + 1)].mean(0) for a, b in itertools.pairwise(limits)])


@dataclass
class GridPointingScores(SampleScores):
    """Accumulates the results of `score_grid_pointing`.

    Example:
        >>> scores = GridPointingScores()
        >>> scores.add(["a"], score_grid_pointing(torch.ones(1, 4, 4, 4) * torch.eye(4)))
        >>> scores.summary()["cell_share"], scores.summary()["images"]
        (0.25, 1)
    """


def _edges(length: int, n: int) -> list[tuple[int, int]]:
    limits = [round(i * length / n) for i in range(n + 1)]
    return list(itertools.pairwise(limits))


def _corner_mask(size: tuple[int, int]) -> Tensor:
    height, width = (max(1, round(length / 14)) for length in size)
    mask = torch.zeros(size, dtype=torch.bool)
    for rows in (slice(0, height), slice(-height, None)):
        for columns in (slice(0, width), slice(-width, None)):
            mask[rows, columns] = True
    return mask
