"""Class probabilities of an image without some of its patches, which the user has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vitrail.capture.outputs import class_logits
from vitrail.capture.score_function import class_probabilities
from vitrail.errors import InputError
from vitrail.trust.input_removal import DEFAULT_GRID, PatchRemoval
from vitrail.web.model import ServedModel

#: Number of shifted copies of the chosen region. With the region itself, one batch on a CPU.
SHIFTS = 7


def shifted_regions(removed: Sequence[int], grid: tuple[int, int], count: int = SHIFTS) -> list[list[int]]:
    """The same region elsewhere: shifted over the edges by equal steps along both axes.

    Args:
        removed: Indices of patches, row by row.
        grid: Rows and columns of patches.
        count: Number of regions, at most one less than the number of patches.

    Example:
        >>> shifted_regions([0, 1], (4, 4), 3)
        [[5, 6], [10, 11], [15, 12]]
    """
    rows, columns = grid
    found = []
    for step in range(1, min(count, rows * columns - 1) + 1):
        down, right = -(-step * rows // (count + 1)), -(-step * columns // (count + 1))
        found.append([(p // columns + down) % rows * columns + (p % columns + right) % columns for p in removed])
    return found


def remove_patches(
    served: ServedModel, raw_input: Any, removed: Sequence[int], classes: Sequence[int]
) -> dict[str, Any]:
    """Evaluate a model on an image without some patches, and without as many others.

    Patches are removed as in the check, see `vitrail.trust.input_removal`.

    Args:
        served: The model.
        raw_input: Pixels at the model's input size, shape (height, width, 3).
        removed: Indices of the removed patches, row by row.
        classes: The classes whose probabilities are returned.

    Returns:
        ``without``: probabilities of the classes without the patches; ``elsewhere``: the mean over shifted regions of
        the same shape; ``example``: the first of these regions; ``by``: how patches are removed.

    Raises:
        InputError: A patch does not exist, or all or none are removed.
    """
    grid = served.structure.layout.plane or DEFAULT_GRID
    count = grid[0] * grid[1]
    chosen = sorted(set(removed))
    if not chosen or chosen[0] < 0 or chosen[-1] >= count or len(chosen) == count:
        raise InputError(f"{len(chosen)} of {count} patches: remove at least one of patches 0 to {count - 1}, not all")
    inputs = served.model_inputs(raw_input)
    assert inputs.image is not None
    with torch.inference_mode(False), torch.no_grad():
        remove = PatchRemoval(served.loaded, inputs.image, grid, None, served.batch_size)
        regions = [chosen, *shifted_regions(chosen, grid)]
        kept = [[patch for patch in range(count) if patch not in set(region)] for region in regions]
        output = remove.output(torch.tensor(kept, device=inputs.image.device))
        logits = class_logits(served.loaded.module, output)
    assert logits is not None
    scores = class_probabilities(served.loaded.module, logits, served.loaded.scores).cpu()
    probabilities = scores[:, list(classes)]
    return {
        "without": probabilities[0].tolist(), "elsewhere": probabilities[1:].mean(0).tolist(),
        "example": regions[1] if len(regions) > 1 else [], "by": remove.by,
    }  # fmt: skip
