"""Combinations of several properties of a case, of which a few are tried in every run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def combinations(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of some values, for `pytest.mark.parametrize`.

    Each value is tried in every run, together with the first of the other axes. Combinations that differ from these
    first ones in more than one value are slow tests.

    Args:
        axes: The values of each property.
    """
    found = []
    for values in product(*axes):
        others = sum(value is not axis[0] for value, axis in zip(values, axes, strict=True))
        found.append(pytest.param(*values, marks=[pytest.mark.slow] * (others > 1)))
    return found
