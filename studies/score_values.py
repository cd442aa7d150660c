"""Accumulated scores as values of each image, which files keep, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from model_halves import Values

from vitrail.scores.statistics import SampleScores

T = TypeVar("T", bound=SampleScores)


def add_scores(values: Values, method: str, scores: SampleScores, names: Iterable[str], prefix: str = "") -> None:
    """Add columns of the scores of a method, in the order of the image ids, under their name after a prefix.

    Args:
        values: What is added to.
        method: Name of the method.
        scores: Its scores.
        names: Columns to add; those of a row of values (``true/0``, ``true/1``, …) by their common name.
        prefix: Put before the names, such as that of a protocol.
    """
    table = scores.table()
    for name in names:
        for k, column in enumerate(scores.columns):
            if column == name or column.rpartition("/")[0] == name:
                values.setdefault(f"{prefix}{column}", {})[method] = table[:, k].tolist()


def scores_of(kind: type[T], values: Values, method: str, prefix: str = "") -> T:
    """Scores of a method from its values; images are named by their number."""
    found = {score.removeprefix(prefix): own[method] for score, own in values.items()
             if score.startswith(prefix) and method in own}  # fmt: skip
    rows = zip(*found.values(), strict=True)
    return kind(tuple(found), {f"{i:06d}": np.array(row) for i, row in enumerate(rows)})


def methods_of(values: Values, prefix: str = "") -> list[str]:
    """Methods that have values of scores with a prefix, in the order of the file."""
    return list(dict.fromkeys(m for score, own in values.items() if score.startswith(prefix) for m in own))
