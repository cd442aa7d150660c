"""Occlusion: decrease of the class score when a window of the image is covered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.layout import by
from vitrail.errors import OptionError
from vitrail.methods.cost import Cost, ModelSize, number
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, check_whole_numbers, register


def _cost(options: Mapping[str, Any], size: ModelSize, _: int) -> Cost:
    window, stride = number(options, "window"), max(1, number(options, "stride"))
    count = prod(len(_starts(n, min(window, n), stride)) for n in size.grid)
    return Cost(1 + count, 1.0 + count)


@register(
    "occlusion",
    "Occlusion",
    "perturbation",
    cite="zeiler2014visualizing",
    takes="probe",
    score="prob",
    signed=True,
    variants={"2x2": {"window": 2}},
    applies=Applies(reads="outputs", any_axes=True),
    cost=_cost,
)
def occlusion(probe: Probe, *, window: int = 1, stride: int = 1, fill: float = 0.0) -> Tensor:
    """Loss of the class's score when a window is covered, averaged over the windows that cover a pixel.

    A video is covered by tubelets, a spectrogram by patches, a waveform by pieces of time, a table by features.

    Args:
        probe: The model and its inputs.
        window: Side of the window along each axis, in patches; of models without one grid, in patches of 16 pixels, in
            frames of a video, or in 64ths of a series. An axis with fewer patches is covered as a whole.
        stride: Step between windows, in patches, at most the window. Windows stay inside the grid.
        fill: What is written into the window, in the model's normalised space: 0 is the mean colour.

    Returns:
        Relevance of pixels, shape (b, K, height, width), or over the axes of another input; 0 where no window came.
    """
    check_whole_numbers(1, window=window, stride=stride)
    if stride > window:
        raise OptionError(f"stride={stride} steps over patches that window={window} does not reach; both count patches")
    images, grid = probe.canvas, probe.cells
    size = tuple(int(n) for n in images.shape[2:])
    if window > (min(grid) if len(grid) == 2 else max(grid)):
        raise OptionError(f"window={window} is larger than the grid of {by(grid)} patches")
    area = None if probe.model_inputs.image is not None else probe.structure.layout.area
    spans = []
    for axis, (cells, length) in enumerate(zip(grid, size, strict=True)):
        first, side = (0, ceil(length / cells)) if area is None else (area.start[axis], area.size[axis] // cells)
        spans.append(_spans(cells, first, side, min(window, cells), stride, length, images.device))
    count = prod(len(span) for span in spans)
    dtype = torch.promote_types(images.dtype, torch.float32)
    total = torch.zeros(len(images), probe.count, prod(size), dtype=dtype, device=images.device)
    whole_scores = probe.unchanged()
    for piece in probe.pieces(count):
        covered = _covered(torch.arange(piece.start, piece.stop, device=images.device), spans)
        for i, image in enumerate(images):
            loss = whole_scores[i] - probe.scores(torch.where(covered[:, None], fill, image), i)
            total[i].addmm_(loss.T.to(dtype), covered.flatten(1).to(dtype))
    times = spans[0].sum(0)
    for span in spans[1:]:
        times = times[..., None] * span.sum(0)
    return (total / times.flatten().clamp_min(1)).view(len(images), probe.count, *size)


def _covered(index: Tensor, spans: Sequence[Tensor]) -> Tensor:
    """Which entries each window covers, shape (windows, axes …); windows are numbered row by row."""
    places, axes = [], len(spans)
    for span in reversed(spans):
        places.append(index % len(span))
        index = index // len(span)
    found = torch.ones((len(index), *[1] * axes), dtype=torch.bool, device=index.device)
    for axis, (place, span) in enumerate(zip(reversed(places), spans, strict=True)):
        shape = [len(index), *[1] * axes]
        shape[axis + 1] = span.shape[1]
        found = found & span[place].view(shape)
    return found


def _starts(patches: int, window: int, stride: int) -> range:
    """First patch of each window."""
    return range(0, patches - window + 1, stride)


def _spans(patches: int, first: int, side: int, window: int, stride: int, length: int, device: torch.device) -> Tensor:
    """Which entries of a line each window covers, shape (windows, length)."""
    start = first + torch.tensor(_starts(patches, window, stride), device=device)[:, None] * side
    entry = torch.arange(length, device=device)
    return (entry >= start) & (entry < start + window * side)
