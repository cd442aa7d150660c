"""RISE: the mean of random masks, weighted by the class score of each masked image."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.methods._masks import interpolation
from vitrail.methods.cost import forward_passes, number
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, check_whole_numbers, choose, register

PRECISIONS = {"model": None, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class RandomMasks:
    """Random grids, interpolated and cropped at random shifts; ``masks[slice]`` computes some of them.

    Attributes:
        grids: Zeros and ones, shape (N, cells, cells).
        shifts: Where each is cut, down and across, shape (N, 2).
        down: Interpolation along the height, shape (height and one cell, cells).
        across: Interpolation along the width.
        size: Height and width of the image.
    """

    grids: Tensor
    shifts: Tensor
    down: Tensor
    across: Tensor
    size: tuple[int, int]

    @classmethod
    def draw(cls, count: int, cells: int, keep: float, seed: int, images: Tensor) -> RandomMasks:
        """Masks for images, from a separate generator: first all grids, then all shifts.

        Args:
            count: Number of masks.
            cells: Cells of a grid along each side.
            keep: Probability that a cell is shown.
            seed: Seed of the generator, which is on the CPU so that masks do not depend on the device.
            images: The images, shape (b, channels, height, width).
        """
        height, width = int(images.shape[2]), int(images.shape[3])
        cell = (ceil(height / cells), ceil(width / cells))
        generator = torch.Generator().manual_seed(seed)
        grids = torch.rand(count, cells, cells, generator=generator, dtype=torch.float32) < keep
        places = torch.rand(count, 2, generator=generator, dtype=torch.float32)
        shifts = (places * torch.tensor(cell)).floor().long()
        like = torch.empty(0, device=images.device, dtype=torch.promote_types(images.dtype, torch.float32))
        down, across = (interpolation(cells, (cells + 1) * side, like) for side in cell)
        return cls(grids.to(like), shifts.to(images.device), down, across, (height, width))

    def __len__(self) -> int:
        return len(self.grids)

    def __getitem__(self, piece: slice) -> Tensor:
        """Masks between 0 and 1, shape (n, height, width)."""
        # A crop of the interpolated grid is the grid times crops of the two interpolation matrices.
        top, left = self.shifts[piece].T
        rows, columns = (torch.arange(length, device=top.device) for length in self.size)
        down, across = self.down[top[:, None] + rows], self.across[left[:, None] + columns]
        return (down @ self.grids[piece]) @ across.mT


@register(
    "rise",
    "RISE",
    "perturbation",
    cite="petsiuk2018rise",
    takes="probe",
    score="prob",
    variants={
        "paper": {"cells": 7, "masks": 8000},
        "notebook": {"keep": 0.1, "masks": 6000},
        "quick": {"masks": 64},
        "preview": {"masks": 400},
    },
    applies=Applies(reads="outputs"),
    cost=forward_passes(lambda options, _: number(options, "masks")),
    evaluations_per_mask=lambda _: 1,
)
def rise(
    probe: Probe, *, masks: int = 4000, cells: int = 8, keep: float = 0.5, seed: int = 0, precision: str = "model"
) -> Tensor:
    """Random masks weighted by the class score of the masked images; all targets share the forward passes.

    Args:
        probe: The model and its inputs.
        masks: How many masks; all images get the same ones.
        cells: Cells of each mask along each side, before it is stretched.
        keep: Probability that a cell is shown.
        seed: Seed of the masks.
        precision: "model": as the model is. "bfloat16": by autocast, which is faster where the hardware has it.

    Returns:
        Relevance of pixels, shape (b, K, height, width).
    """
    check_whole_numbers(1, masks=masks, cells=cells)
    check_whole_numbers(0, seed=seed)
    if not 0 < keep < 1:
        raise OptionError(f"keep={keep} is a probability: it must lie between 0 and 1, both left out")
    choose("precision", precision, PRECISIONS)
    images = probe.images
    drawn = RandomMasks.draw(masks, cells, keep, seed, images)
    total = drawn.grids.new_zeros(len(images), probe.count, drawn.size[0] * drawn.size[1])
    for piece in probe.pieces(masks):
        M = drawn[piece]
        for i, image in enumerate(images):
            scores = probe.scores((image * M[:, None]).to(image.dtype), i, PRECISIONS[precision])
            total[i].addmm_(scores.T.to(M), M.flatten(1))
    return (total / (masks * keep)).view(len(images), probe.count, *drawn.size)
