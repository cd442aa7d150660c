"""Faithfulness of maps of named targets: the target's value while patches are removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.inputs.map_source import MapSource
from vitrail.targets.bound_targets import BoundTargets
from vitrail.targets.output_reader import OutputReader
from vitrail.trust.image_check import patch_values
from vitrail.trust.input_removal import DEFAULT_GRID, PatchRemoval


def faithfulness(
    source: MapSource, explanations: Mapping[str, Any], levels: Sequence[float], advance: Callable[[int], None]
) -> tuple[dict[str, NDArray[np.float64]], str]:
    """Mean difference of the target's value with the least and the most relevant patches removed.

    It is a share of the range of all values on the image, so that 1 is the best and a random order has 0 on average.

    Returns:
        For each method a column with one value for each image, shape (images, 1); and how patches were removed.
    """
    images, target = source.model_inputs.image, source.target
    assert images is not None and isinstance(target, BoundTargets)  # noqa: PT018
    grid = source.structure.layout.plane or DEFAULT_GRID
    columns: dict[str, list[float]] = {name: [] for name in explanations}
    removal = ""
    for b in range(len(images)):
        call = source.model_inputs.select(slice(b, b + 1))
        remove = PatchRemoval(source.loaded, call, grid, None, advance=advance)
        removal = remove.by
        values = {name: _curves(remove, e, b, levels, target) for name, e in explanations.items()}
        joined = torch.cat([v.flatten() for v in values.values()])
        extent = float((joined.max() - joined.min()).clamp_min(1e-12))
        for name, (first, last) in values.items():
            columns[name].append(float((last - first).mean()) / extent)
    return {name: np.array(values)[:, None] for name, values in columns.items()}, removal


def _curves(
    remove: PatchRemoval, explanation: Any, image: int, levels: Sequence[float], target: BoundTargets
) -> Tensor:
    """Values with the most relevant patches removed, and with the least relevant ones, shape (2, levels)."""
    pinned = explanation.named_targets[image][0].pinned
    order = patch_values(explanation, image, 0, remove.grid).flatten().argsort(descending=True, stable=True)
    order = order.to(remove.device)

    def score(output: Any) -> Tensor:
        return pinned.values(OutputReader(output, target.context))  # type: ignore[no-any-return]

    found = []
    for level in levels:
        count = min(max(1, round(level * len(order))), len(order) - 1)
        kept = torch.stack([order[count:], order[: len(order) - count]]).sort(1).values
        found.append(remove(kept, score))
    return torch.stack(found, 1).cpu()
