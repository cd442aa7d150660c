"""An axis of a relevance map, with its unit: seconds, hertz, or the names of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vitrail.errors import InputError

#: Units of axes that have a physical one.
UNITS = {"time": "s", "frequency": "Hz"}


@dataclass(frozen=True)
class MapAxis:
    """One axis of a map.

    Attributes:
        name: What it is: "time", "frequency", "height", "width", "variables" or "features".
        unit: Unit of its values, or "" where they are indices.
        step: Distance of two entries in that unit.
        values: Value of each entry where the steps are not equal, as for mel frequencies; None otherwise.
        labels: Name of each entry, as for features; None if there are none.

    Example:
        >>> MapAxis("time", "s", 0.5).at(3), MapAxis("frequency", "Hz", values=(0.0, 100.0, 400.0)).at(1.5)
        (1.5, 250.0)
    """

    name: str
    unit: str = ""
    step: float = 1.0
    values: tuple[float, ...] | None = None
    labels: tuple[str, ...] | None = None

    def at(self, index: float) -> float:
        """The value at an entry, or between two entries."""
        if self.values is None:
            return index * self.step
        low = min(max(int(index), 0), len(self.values) - 1)
        high = min(low + 1, len(self.values) - 1)
        return self.values[low] + (index - low) * (self.values[high] - self.values[low])

    def label(self, index: int) -> str:
        """The name of an entry, or its index."""
        return f"{self.name} {index}" if self.labels is None else self.labels[index]

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def given(self, value: Any, size: int) -> MapAxis:
        """The same with what a user states: a step, the value of each entry, or the name of each entry.

        Args:
            value: A number, as many numbers as there are entries, or as many names.
            size: Number of entries.

        Example:
            >>> MapAxis("features").given(["age", "height"], 2).label(1)
            'height'
        """
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return replace(self, unit=UNITS.get(self.name, ""), step=float(value), values=None)
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == size:
            if all(isinstance(one, str) for one in value):
                return replace(self, labels=tuple(value))
            if all(isinstance(one, int | float) for one in value):
                return replace(self, unit=UNITS.get(self.name, ""), values=tuple(float(one) for one in value))
        shown = f"{len(value)} entries" if isinstance(value, Sequence) and not isinstance(value, str) else repr(value)
        raise InputError(
            f"{self.name}={shown}: give the step between two entries, or {size} numbers or {size} names, one for each "
            "entry"
        )
