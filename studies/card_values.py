"""Values of each image behind the numbers of a card, and the numbers from them; see `cards.py`.

A similarity is NaN where one of the two maps is constant. Values are in single precision, as files keep them, before
means are computed and rounded, so that the same numbers follow from a file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from value_tables import Values

#: Tests whose values are rank correlations of each image.
SIMILARITIES = ("repeat", "other image", "seed", "noise", "label", "head", "last block", "all")
#: What names of other values begin with or are: options, whether maps are bitwise equal, constant maps, errors of sums.
OPTIONS, EQUAL, CONSTANT, COMPLETENESS = "options ", "repeat equal", "constant", "completeness"
PAIRS = "pairs "
#: By test, a value for each image; of one method.
CardValues = dict[str, list[float]]


def single_precision(values: ArrayLike) -> list[float]:
    """Values as a file keeps them."""
    return [float(v) for v in np.asarray(values, np.float32)]


def similarity(values: list[float]) -> dict[str, Any]:
    """Mean rank correlation, its standard error, and the number of maps that are not constant."""
    rho: NDArray[np.float64] = np.array(values)
    rho = rho[np.isfinite(rho)]
    if not len(rho):
        return {"rho": None, "maps": 0}
    error = round(float(rho.std(ddof=1) / len(rho) ** 0.5), 4) if len(rho) > 1 else None
    return {"rho": round(float(rho.mean()), 4), "error": error, "maps": len(rho)}


def summarise(values: CardValues) -> dict[str, Any]:
    """The numbers of a method that are computed from values of each image."""
    row: dict[str, Any] = {CONSTANT: int(sum(values[CONSTANT]))}
    row |= {test: similarity(values[test]) for test in SIMILARITIES if test in values}
    row["repeat"]["equal"] = float(np.mean(values[EQUAL]))
    row["options"] = {
        test.removeprefix(OPTIONS): similarity(own) for test, own in values.items() if test.startswith(OPTIONS)
    }
    errors = values.get(COMPLETENESS)
    row[COMPLETENESS] = None
    if errors:
        numbers = {"median": float(np.median(errors)), "largest": max(errors)}
        row[COMPLETENESS] = {**{name: round(v, 5) for name, v in numbers.items()}, "maps": len(errors)}
    return row


def of_method(values: Values, method: str) -> CardValues:
    """Values of a method from those of a file, without those of pairs of objects."""
    return {test: own[method] for test, own in values.items() if method in own and not test.startswith(PAIRS)}
