"""Faithfulness of maps and word scores: the target's value while patches, words or cells are removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.inputs.map_source import MapSource, PromptSource, QuestionSource
from vitrail.targets.bound_targets import BoundTargets
from vitrail.targets.output_reader import OutputReader
from vitrail.trust.image_check import patch_values
from vitrail.trust.input_removal import DEFAULT_GRID, InputRemoval, PatchRemoval
from vitrail.trust.prompt_check import UnitRemoval
from vitrail.trust.question_check import QuestionRemoval


def faithfulness(
    source: MapSource | PromptSource | QuestionSource,
    explanations: Mapping[str, Any],
    levels: Sequence[float],
    advance: Callable[[int], None],
) -> tuple[dict[str, NDArray[np.float64]], str]:
    """Mean difference of the target's value with the least and the most relevant units removed.

    Units are the patches of an image, the words of a prompt, or both. The difference is a share of the range of all
    values on the input, so that 1 is the best and a random order has 0 on average.

    Returns:
        For each method a column with one value for each input, shape (inputs, 1); and how units were removed.
    """
    first = next(iter(explanations.values()))
    columns: dict[str, list[float]] = {name: [] for name in explanations}
    by = ""
    for b in range(len(first.maps)):
        remove, score, relevance = _removal(source, first, b, advance)
        by, count = remove.by, remove.count
        numbers = [min(max(1, round(level * count)), max(1, count - 1)) for level in levels]
        if not isinstance(source, MapSource):  # a short prompt has fewer words than levels
            numbers = list(dict.fromkeys(numbers))
        values = {}
        for name, explanation in explanations.items():
            order = relevance(explanation).argsort(descending=True, stable=True).to(remove.device)
            kept = [torch.stack([order[n:], order[: count - n]]).sort(1).values for n in numbers]
            values[name] = torch.stack([remove(both, score) for both in kept], 1)
        joined = torch.cat([v.flatten() for v in values.values()])
        extent = float((joined.max() - joined.min()).clamp_min(1e-12))
        for name, (most, least) in values.items():
            columns[name].append(float((least - most).mean()) / extent)
    return {name: np.array(column)[:, None] for name, column in columns.items()}, by


def _removal(
    source: MapSource | PromptSource | QuestionSource, first: Any, b: int, advance: Callable[[int], None]
) -> tuple[InputRemoval, Callable[[Any], Tensor], Callable[[Any], Tensor]]:
    """What removes units of an input, the score of its outputs, and the relevance of its units, shape (units,)."""
    if isinstance(source, MapSource):
        grid, target = source.structure.layout.plane or DEFAULT_GRID, source.target
        assert isinstance(target, BoundTargets)
        pinned, context = first.named_targets[b][0].pinned, target.context
        patches = PatchRemoval(source.loaded, source.model_inputs.select(slice(b, b + 1)), grid, advance=advance)
        return (
            patches,
            lambda output: pinned.values(OutputReader(output, context)),
            lambda explanation: patch_values(explanation, b, 0, grid).flatten(),
        )
    units: UnitRemoval | QuestionRemoval = (
        UnitRemoval(source, first, b, 0, advance=advance)
        if isinstance(source, PromptSource)
        else QuestionRemoval(source, first, b, 0, advance=advance)
    )
    return units, units.score, lambda explanation: units.relevance(explanation, b, 0)
