"""Occlusion: decrease of the class score when a window of the image is covered."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import OptionError
from vitrail.methods.cost import Cost, ModelSize, number
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, check_whole_numbers, register

#: Side of a patch, in pixels, where a model's own is unknown or changes on the way.
PATCH = 16


def _cost(options: Mapping[str, Any], size: ModelSize, _: int) -> Cost:
    window, stride = number(options, "window"), max(1, number(options, "stride"))
    down, across = (ceil(max(1, n - window + 1) / stride) for n in size.grid)
    return Cost(1 + down * across, 1.0 + down * across)


@register(
    "occlusion",
    "Occlusion",
    "perturbation",
    cite="zeiler2014visualizing",
    takes="probe",
    score="prob",
    signed=True,
    variants={"2x2": {"window": 2}},
    applies=Applies(reads="outputs"),
    cost=_cost,
)
def occlusion(probe: Probe, *, window: int = 1, stride: int = 1, fill: float = 0.0) -> Tensor:
    """Loss of the class's score when a window is covered, averaged over the windows that cover a pixel.

    Args:
        probe: The model and its inputs.
        window: Side of the square window, in patches; of models without one grid, in patches of 16 pixels.
        stride: Step between windows, in patches, at most the window. Windows stay inside the grid.
        fill: What is written into the window, in the model's normalised space: 0 is the mean colour.

    Returns:
        Relevance of pixels, shape (b, K, height, width); 0 where no window came.
    """
    check_whole_numbers(1, window=window, stride=stride)
    if stride > window:
        raise OptionError(f"stride={stride} steps over patches that window={window} does not reach; both count patches")
    images = probe.images
    height, width = int(images.shape[2]), int(images.shape[3])
    rows, columns = probe.structure.layout.grid or (ceil(height / PATCH), ceil(width / PATCH))
    if window > min(rows, columns):
        raise OptionError(f"window={window} is larger than the grid of {rows}×{columns} patches")
    down = _spans(rows, ceil(height / rows), window, stride, height, images.device)
    across = _spans(columns, ceil(width / columns), window, stride, width, images.device)
    count = len(down) * len(across)
    dtype = torch.promote_types(images.dtype, torch.float32)
    total = torch.zeros(len(images), probe.count, height * width, dtype=dtype, device=images.device)
    whole_scores = probe.unchanged()
    for piece in probe.pieces(count):
        index = torch.arange(piece.start, piece.stop, device=images.device)
        covered = down[index // len(across), :, None] & across[index % len(across), None, :]
        for i, image in enumerate(images):
            loss = whole_scores[i] - probe.scores(torch.where(covered[:, None], fill, image), i)
            total[i].addmm_(loss.T.to(dtype), covered.flatten(1).to(dtype))
    times = (down.sum(0)[:, None] * across.sum(0)).flatten()
    return (total / times.clamp_min(1)).view(len(images), probe.count, height, width)


def _spans(patches: int, side: int, window: int, stride: int, length: int, device: torch.device) -> Tensor:
    """Which pixels of a line each window covers, shape (windows, length)."""
    start = torch.arange(0, patches - window + 1, stride, device=device)[:, None] * side
    pixel = torch.arange(length, device=device)
    return (pixel >= start) & (pixel < start + window * side)
