"""RISE: the mean of random masks, weighted by the class score of each masked image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.methods._masks import interpolation
from vitrail.methods.cost import forward_passes, number
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, check_whole_numbers, choose, register

PRECISIONS = {"model": None, "bfloat16": torch.bfloat16}


#: Axes whose entries have no order, so that each entry is a cell of its own.
_UNORDERED = ("variables", "features")


@dataclass(frozen=True)
class RandomMasks:
    """Random grids, interpolated and cropped at random shifts; ``masks[slice]`` computes some of them.

    Attributes:
        grids: Zeros and ones, shape (N, cells, cells) for images, with one axis for each axis of a map.
        shifts: Where each is cut along each axis, shape (N, axes).
        stretch: Interpolation along each axis, shape (length and one cell, cells).
        size: Size of a mask: height and width of the image.
    """

    grids: Tensor
    shifts: Tensor
    stretch: tuple[Tensor, ...]
    size: tuple[int, ...]

    @classmethod
    def draw(
        cls, count: int, cells: int, keep: float, seed: int, images: Tensor, names: Sequence[str] = ()
    ) -> RandomMasks:
        """Masks for images, from a separate generator: first all grids, then all shifts.

        Args:
            count: Number of masks.
            cells: Cells of a grid along each side.
            keep: Probability that a cell is shown.
            seed: Seed of the generator, which is on the CPU so that masks do not depend on the device.
            images: The images, shape (b, channels, height, width), or another canvas.
            names: What the axes of a map are; variables and features are each a cell of its own, without shifts.
        """
        size = tuple(int(n) for n in images.shape[2:])
        names = names or ("height", "width")
        alone = [name in _UNORDERED for name in names]
        number = [n if single else cells for n, single in zip(size, alone, strict=True)]
        sides = [ceil(n / c) for n, c in zip(size, number, strict=True)]
        generator = torch.Generator().manual_seed(seed)
        grids = torch.rand(count, *number, generator=generator, dtype=torch.float32) < keep
        places = torch.rand(count, len(size), generator=generator, dtype=torch.float32)
        steps = [0 if single else side for side, single in zip(sides, alone, strict=True)]
        shifts = (places * torch.tensor(steps)).floor().long()
        like = torch.empty(0, device=images.device, dtype=torch.promote_types(images.dtype, torch.float32))
        stretch = tuple(
            torch.eye(c, dtype=like.dtype, device=like.device) if single else interpolation(c, (c + 1) * side, like)
            for c, side, single in zip(number, sides, alone, strict=True)
        )
        return cls(grids.to(like), shifts.to(images.device), stretch, size)

    def __len__(self) -> int:
        return len(self.grids)

    def __getitem__(self, piece: slice) -> Tensor:
        """Masks between 0 and 1, shape (n, height, width)."""
        # A crop of the interpolated grid is the grid times crops of the interpolation matrices, one for each axis.
        masks = self.grids[piece]
        for axis, (matrix, length) in enumerate(zip(self.stretch, self.size, strict=True), 1):
            crop = matrix[self.shifts[piece, axis - 1, None] + torch.arange(length, device=matrix.device)]
            if axis == masks.dim() - 1 and axis > 1:
                masks = (masks.flatten(1, -2) @ crop.mT).view(*masks.shape[:-1], length)
            else:
                lines = masks.movedim(axis, 1)
                masks = (crop @ lines.reshape(*lines.shape[:2], -1)).view(-1, length, *lines.shape[2:]).movedim(1, axis)
        return masks


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
    applies=Applies(reads="outputs", any_axes=True),
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
        cells: Cells of each mask along each axis, before it is stretched; each variable and each feature is one cell.
        keep: Probability that a cell is shown.
        seed: Seed of the masks.
        precision: "model": as the model is. "bfloat16": by autocast, which is faster where the hardware has it.

    Returns:
        Relevance of pixels, shape (b, K, height, width), or over the axes of another input.
    """
    check_whole_numbers(1, masks=masks, cells=cells)
    check_whole_numbers(0, seed=seed)
    if not 0 < keep < 1:
        raise OptionError(f"keep={keep} is a probability: it must lie between 0 and 1, both left out")
    choose("precision", precision, PRECISIONS)
    images, axes = probe.canvas, probe.model_inputs.axes
    drawn = RandomMasks.draw(masks, cells, keep, seed, images, () if axes is None else axes.names)
    total = drawn.grids.new_zeros(len(images), probe.count, prod(drawn.size))
    for piece in probe.pieces(masks):
        M = drawn[piece]
        for i, image in enumerate(images):
            scores = probe.scores((image * M[:, None]).to(image.dtype), i, PRECISIONS[precision])
            total[i].addmm_(scores.T.to(M), M.flatten(1))
    return (total / (masks * keep)).view(len(images), probe.count, *drawn.size)
