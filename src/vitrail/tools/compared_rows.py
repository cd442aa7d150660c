"""Rows of a comparison of methods, computed from the values of each input, and the recommendation they give."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vitrail.scores.comparison import RankedMethod


@dataclass(frozen=True)
class ComparedRow:
    """One method in a comparison.

    Attributes:
        method: The method.
        ranked: Its faithfulness with interval and paired tests: area under the probability with the least relevant
            patches removed first, minus the area with the most relevant first.
        class_similarity: Mean rank correlation between the maps of the two likeliest classes; 1 is class-agnostic.
        localisation: Mean average precision against the masks, or None without masks.
        forwards: Cost of one map in forward passes; a backward pass counts as two.
        values: ``faithfulness`` of each input, and ``class_similarity`` and ``localisation`` where they were measured;
            NaN where an input has none.
    """

    method: str
    ranked: RankedMethod
    class_similarity: float | None
    localisation: float | None
    forwards: float
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All numbers of the row as JSON values, without those of each input."""
        to_best = self.ranked.to_best
        return {
            "method": self.method, "control": self.ranked.control, "faithfulness": list(self.ranked.value),
            "tied_with_best": self.ranked.tied_with_best,
            "to_best": None if to_best is None else list(to_best.difference),
            "class_similarity": self.class_similarity, "localisation": self.localisation, "forwards": self.forwards,
        }  # fmt: skip


def ranked_rows(
    values: Mapping[str, Mapping[str, Sequence[float]]],
    controls: Collection[str],
    forwards: Mapping[str, float],
    seed: int = 0,
) -> tuple[ComparedRow, ...]:
    """Rank methods and controls by faithfulness, the most faithful first, then the controls.

    Args:
        values: By score and method, one value for each input: "faithfulness", and where they were measured
            "class_similarity" and "localisation", with NaN where an input has none.
        controls: Methods that are controls.
        forwards: Cost of one map by method; methods that are not named here are left out.
        seed: Of the intervals and tests.

    Example:
        >>> values = {"faithfulness": {"good": [0.5, 0.6] * 6, "bad": [0.1, 0.2] * 6, "random": [0.0, 0.1] * 6}}
        >>> rows = ranked_rows(values, ["random"], {"good": 3.0, "bad": 3.0, "random": 0.0})
        >>> [(row.method, round(row.ranked.value.value, 2)) for row in rows]
        [('good', 0.55), ('bad', 0.15), ('random', 0.05)]
    """
    from vitrail.scores.comparison import MethodValues, rank_methods

    columns = {name: np.asarray(values["faithfulness"][name], np.float64)[:, None] for name in forwards}
    samples = {
        name: MethodValues(tuple(f"{i:03d}" for i in range(len(column))), column) for name, column in columns.items()
    }
    rows = []
    for name, one in rank_methods(samples, "up", controls, seed=seed).items():
        measured = {score: tuple(map(float, own[name])) for score, own in values.items() if name in own}
        similarity, localisation = (_mean(measured.get(score, ())) for score in ("class_similarity", "localisation"))
        rows.append(ComparedRow(name, one, similarity, localisation, forwards[name], measured))
    return tuple(rows)


def _mean(values: Sequence[float]) -> float | None:
    """Mean of the defined values, or None without any."""
    defined = [value for value in values if np.isfinite(value)]
    return float(np.mean(defined)) if defined else None


def recommend(rows: Sequence[ComparedRow]) -> tuple[str | None, str]:
    """The cheapest of the class-specific methods that are not known to be worse than the best, with the reason."""
    methods = [row for row in rows if not row.ranked.control]
    better = [row for row in methods if row.ranked.to_control is not None and row.ranked.to_control.significant
              and row.ranked.to_control.difference.value > 0]  # fmt: skip
    if not better:
        count, needed = min((row.ranked.images for row in methods), default=0), inputs_needed(len(methods))
        if count < needed:
            return None, (
                f"{count} input{'s are' if count != 1 else ' is'} too few to show that a method is better than the "
                f"controls: with {len(methods)} compared, use at least {needed}, better 32 to 64."
            )
        return None, (
            "No method is significantly better than the controls on these inputs: use more of them, or do not rely on "
            "maps of this model."
        )
    specific = [row for row in better if row.class_similarity is None or row.class_similarity < 0.99]
    best = (specific or better)[0]
    tied = [row for row in specific or better if row.ranked.tied_with_best or row is best]
    # On few inputs a corrected test finds no difference whatever it is: the interval must not show one either.
    even = [row for row in tied if row is best or row.ranked.to_best is None or row.ranked.to_best.difference[2] >= 0]
    choice = min(even, key=lambda row: (row.forwards, -row.ranked.value.value))
    others = [row.method for row in tied if row is not choice]
    sure = (
        f"Not significantly different from it: {', '.join(others)}"
        if others
        else "Every other class-specific method is significantly less faithful"
        if len(specific or better) > 1
        else "It is the only method that is significantly better than the controls"
    )
    return choice.method, (
        f"Recommended: {choice.method}, {100 * choice.ranked.value.value:.1f} points of faithfulness at "
        f"{format_passes(choice.forwards)} a map. {sure}."
    )


def inputs_needed(methods: int) -> int:
    """The fewest inputs on which a paired permutation test of some methods, corrected by Holm, is sure to find a lead.

    With n inputs there are 2^n ways to swap two methods, and the smallest two-sided p-value is 2 / 2^n. It is estimated
    from random draws, so half of the level is asked for.

    Example:
        >>> inputs_needed(1), inputs_needed(3), inputs_needed(20)
        (7, 8, 11)
    """
    from vitrail.scores.comparison import ALPHA

    count = 1
    while 2 * max(methods, 1) / 2**count >= ALPHA / 2:
        count += 1
    return count


def format_passes(forwards: float) -> str:
    """A number of forward passes, for display."""
    count = f"{forwards:.0f}"
    return f"{count} forward pass{'' if count == '1' else 'es'}"
