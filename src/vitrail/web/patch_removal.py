"""Probabilities of an input without some of its patches, which the user has chosen, and curves of removed patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.pipeline.explanation import Explanation
from vitrail.trust.signal_check import cell_means
from vitrail.web.page_targets import RequestedTarget
from vitrail.web.served_model import ServedModel
from vitrail.web.target_scores import TargetScores, target_scores

#: Number of shifted copies of the chosen region. With the region itself, one batch on a CPU.
SHIFTS = 7


def shifted_regions(removed: Sequence[int], grid: tuple[int, ...], count: int = SHIFTS) -> list[list[int]]:
    """The same region elsewhere: shifted over the edges by equal steps along all axes.

    Args:
        removed: Indices of patches, in the order of the grid.
        grid: Number of patches along each axis: rows and columns, or time, rows and columns.
        count: Number of regions, at most one less than the number of patches.

    Example:
        >>> shifted_regions([0, 1], (4, 4), 3)
        [[5, 6], [10, 11], [15, 12]]
    """
    places = torch.arange(prod(grid)).view(grid)
    found = []
    for step in range(1, min(count, prod(grid) - 1) + 1):
        moves = [-(-step * n // (count + 1)) for n in grid]
        moved = places.roll([-move for move in moves], tuple(range(len(grid)))).flatten()
        found.append(moved[list(removed)].tolist())
    return found


def page_patches(served: ServedModel, patches: Sequence[int], inverse: bool = False) -> list[int]:
    """Patches as the page counts them in the order of the model's grid, or the other way round.

    Only spectrograms differ: the page shows frequency upwards and time to the right, the grid has time first.
    """
    if served.media != "sound":
        return list(patches)
    rows, columns = served.plane  # frequency, time
    if inverse:
        return [(rows - 1 - patch % rows) * columns + patch // rows for patch in patches]
    return [patch % columns * rows + rows - 1 - patch // columns for patch in patches]


def remove_patches(
    served: ServedModel, raw_input: Any, removed: Sequence[int], targets: Sequence[RequestedTarget]
) -> dict[str, Any]:
    """Evaluate a model on an input without some patches, and without as many others.

    Patches are removed as in the check, see `vitrail.trust.input_removal`.

    Args:
        served: The model.
        raw_input: Pixels at the model's input size, shape (height, width, 3), or bytes of a video or sound.
        removed: Indices of the removed patches, row by row as the page shows them; of a video, frame by frame.
        targets: The targets whose probabilities are returned.

    Returns:
        ``without``: probabilities of the targets without the patches; ``elsewhere``: the mean over shifted regions of
        the same shape; ``example``: the first of these regions; ``by``: how patches are removed.

    Raises:
        InputError: A patch does not exist, or all or none are removed.
    """
    with torch.inference_mode(False), torch.no_grad():
        scores = target_scores(served, raw_input, targets)
        count = scores.remove.count
        chosen = sorted(set(removed))
        if not chosen or chosen[0] < 0 or chosen[-1] >= count or len(chosen) == count:
            raise InputError(
                f"{len(chosen)} of {count} patches: remove at least one of patches 0 to {count - 1}, not all"
            )
        regions = [page_patches(served, chosen)]
        regions += shifted_regions(regions[0], scores.grid)
        kept = torch.ones(len(regions), count, dtype=torch.bool)
        for row, region in enumerate(regions):
            kept[row, region] = False
        keep = kept.nonzero()[:, 1].view(len(regions), -1)
        probabilities = scores.read(scores.remove.output(keep.to(scores.remove.device))).cpu()
    return {
        "without": probabilities[0].tolist(), "elsewhere": probabilities[1:].mean(0).tolist(),
        "example": page_patches(served, regions[1], inverse=True) if len(regions) > 1 else [],
        "by": scores.remove.by,
    }  # fmt: skip


def removal_curves(
    served: ServedModel, raw_input: Any, targets: Sequence[RequestedTarget], explanation: Explanation,
    percents: Sequence[int], advance: Callable[[int], None],
) -> dict[str, list[float]]:  # fmt: skip
    """Deletion and insertion curves of a map over patches: the most relevant removed, and only these kept.

    One patch is always kept.

    Args:
        served: The model.
        raw_input: Its input.
        targets: What is explained, and for a prompt the others among which it has its share.
        explanation: The map, for the first target alone.
        percents: Shares of the patches, in per cent.
        advance: Called with the number of inputs after each forward pass.

    Returns:
        ``deletion`` and ``insertion``: the probability of the target at each share.
    """
    with torch.inference_mode(False), torch.no_grad():
        scores = target_scores(served, raw_input, targets, advance)
        values = explanation.grid[0, 0]
        if tuple(values.shape) != scores.grid:
            values = cell_means(explanation.maps[0, 0].float(), scores.grid)
        order = values.double().nan_to_num(0.0, 0.0, 0.0).flatten().argsort(descending=True, stable=True)
        removed = [min(round(p / 100 * len(order)), len(order) - 1) for p in percents]
        kept = [max(1, round(p / 100 * len(order))) for p in percents]
        return {"deletion": [_kept(scores, order[n:]) for n in removed],
                "insertion": [_kept(scores, order[:n]) for n in kept]}  # fmt: skip


def _kept(scores: TargetScores, patches: Tensor) -> float:
    keep = patches.sort().values[None].to(scores.remove.device)
    return float(scores.remove(keep, lambda output: scores.read(output)[:, 0])[0])
