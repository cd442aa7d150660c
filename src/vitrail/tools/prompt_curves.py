"""Faithfulness of scores of prompts and questions: the target's value while words, units or cells are removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.inputs.map_source import PromptSource, QuestionSource
from vitrail.trust.prompt_check import UnitRemoval
from vitrail.trust.question_check import QuestionRemoval


def prompt_faithfulness(
    source: PromptSource | QuestionSource,
    explanations: Mapping[str, Any],
    levels: Sequence[float],
    advance: Callable[[int], None],
) -> tuple[dict[str, NDArray[np.float64]], str]:
    """Mean difference of the target's value with the least and the most relevant units removed.

    It is a share of the range of all values on the prompt, so that 1 is the best and a random order has 0 on average.

    Returns:
        For each method a column with one value for each prompt, shape (prompts, 1); and how tokens were removed.
    """
    first = next(iter(explanations.values()))
    columns: dict[str, list[float]] = {name: [] for name in explanations}
    removal = ""
    for b in range(len(first.maps)):
        remove: UnitRemoval | QuestionRemoval = (
            UnitRemoval(source, first, b, 0, advance=advance)
            if isinstance(source, PromptSource)
            else QuestionRemoval(source, first, b, 0, advance=advance)
        )
        removal, count = remove.by, remove.count
        removed = [min(max(1, round(level * count)), max(1, count - 1)) for level in levels]
        values = {}
        for name, explanation in explanations.items():
            order = remove.relevance(explanation, b, 0).argsort(descending=True, stable=True).to(remove.device)
            both = [
                remove(torch.stack([order[n:], order[: count - n]]).sort(1).values, remove.score)
                for n in dict.fromkeys(removed)
            ]
            values[name] = torch.stack(both, 1)
        joined = torch.cat([v.flatten() for v in values.values()])
        extent = float((joined.max() - joined.min()).clamp_min(1e-12))
        for name, (most, least) in values.items():
            columns[name].append(float((least - most).mean()) / extent)
    return {name: np.array(values)[:, None] for name, values in columns.items()}, removal
