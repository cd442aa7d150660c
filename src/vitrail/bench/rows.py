"""Rows of a part: scores as they come in, and reasons where there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from torch import Tensor

from vitrail.bench.batch import Batch, Found
from vitrail.bench.parts import COSTS, CURVES, KEYS
from vitrail.bench.protocols import PROTOCOLS
from vitrail.scores.presets import find_presets

#: What stands in the column ``protocol`` for what is known of the map itself.
EXPLAIN = "explain"


class ScoreRows:
    """The rows of one part.

    Args:
        model: Name of the model.
        dataset: Name of the data set.
        methods: The methods of the chunk.

    Attributes:
        columns: By name; see `vitrail.bench.results_store`.
    """

    def __init__(self, model: str, dataset: str, methods: Sequence[str]) -> None:
        self.model, self.dataset, self.methods = model, dataset, methods
        names = (*KEYS, "value", "explained", "error", *COSTS, *CURVES)
        self.columns: dict[str, list[Any]] = {name: [] for name in names}

    def add(
        self,
        keys: Sequence[str],
        value: float | None,
        explained: int,
        error: str | None = None,
        rest: Mapping[str, Any] | None = None,
    ) -> None:
        """One row; the keys are image, method, target, protocol and score."""
        row: dict[str, Any] = dict(zip(KEYS, (self.model, self.dataset, *keys), strict=True))
        row |= {"value": value, "explained": explained, "error": error, **(rest or {})}
        for name, column in self.columns.items():
            column.append(row.get(name, 0.0 if name in COSTS[:2] else None))

    def found(self, batch: Batch, found: Found) -> None:
        """What a protocol found, one row for each picture and score."""
        explained = batch.explained(found.target) if found.target in batch.columns else [-1] * len(batch.ids)
        values: dict[str, list[float]] = {}
        for name, tensor in found.values.items():
            wide = tensor.detach().double().cpu()
            if wide.dim() == 1:
                values[name] = wide.tolist()
            else:
                values |= {f"{name}/{j}": column.tolist() for j, column in enumerate(wide.T)}
        cost = {"seconds": found.seconds, "forwards": found.forwards}
        for row, image in enumerate(batch.ids):
            keys = (image, found.method, found.target, found.protocol)
            if row in found.reasons:
                self.add((*keys, ""), None, explained[row], found.reasons[row], cost)
                continue
            for name, column in values.items():
                if found.sparse and isnan(column[row]):
                    continue
                curve = _levels(*found.strips[name], row) if name in found.strips else {}
                self.add((*keys, name), column[row], explained[row], None, cost | curve)

    def made(self, batch: Batch, probabilities: Tensor, targets: Sequence[str]) -> None:
        """What is known of the maps themselves: the probability of their class, and what they cost."""
        for method in self.methods:
            for target in targets:
                missing = batch.without(method, target)
                for row, (image, kind) in enumerate(zip(batch.ids, batch.explained(target), strict=True)):
                    keys = (image, method, target, EXPLAIN)
                    if row in missing or method not in batch.made:
                        self.add((*keys, ""), None, kind, missing.get(row, "no map"))
                        continue
                    made, k = batch.made[method], batch.columns[target][row]
                    memory = None if isnan(made.memory[row]) else made.memory[row]
                    cost = {"seconds": made.seconds[row], "forwards": made.forwards[row], "memory": memory}
                    self.add((*keys, "probability"), float(probabilities[row, kind]), kind, None, cost)
                    self.add((*keys, "flat"), float(made.flat[row, k]), kind, None, cost)

    def absent(
        self, image: str, protocols: Sequence[str], targets: Sequence[str], why: str, methods: Sequence[str] = ()
    ) -> None:
        """Rows that say why a picture has no scores."""
        for method in methods or self.methods:
            for name in protocols:
                explains = targets if name in (*PROTOCOLS, EXPLAIN) else find_presets(name)[0].explains
                for target in targets:
                    if target in explains:
                        self.add((image, method, target, name, ""), None, -1, why)


def _levels(removed: tuple[int, ...], notes: Tensor, row: int) -> dict[str, Any]:
    """A curve's columns."""
    lists = notes[row].T.tolist()
    found: dict[str, Any] = dict(zip(CURVES, ([*removed], *lists), strict=True))
    found["winner"] = [int(kind) for kind in lists[2]]
    return found
