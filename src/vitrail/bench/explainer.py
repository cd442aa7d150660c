"""Explain a batch of images with many methods; a failure of one image or method does not affect the others."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.bench.context import BenchContext, BenchModel
from vitrail.bench.method_groups import serves_all_targets
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.errors import ModelError, OutputError, error_line
from vitrail.methods import find
from vitrail.methods.postprocess import to_maps
from vitrail.methods.probe import Probe
from vitrail.models.class_group import ClassGroup
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.memory import PeakMemory, shrink_batch_to_fit

#: Name of the control whose maps are noise.
NOISE = "random"
#: Reason for a missing map, by method and position in the batch.
Reasons = dict[tuple[str, int], str]


@dataclass
class ExplainedBatch:
    """Maps of one method for B images with K classes each.

    Attributes:
        maps: Maps at the size of the images, shape (B, K, height, width); zeros where there is none.
        grid: Maps as the method returned them, shape (B, K, rows, columns).
        constant: Which maps are constant, shape (B, K).
        signed: Whether negative relevance has a meaning.
        seconds: Each image's share of the time.
        forwards: Number of images evaluated for each image.
        memory: Peak memory in bytes while each image's batch was explained. Methods that share a pass share it. NaN
            where it is unknown.
    """

    maps: Tensor
    grid: Tensor
    constant: Tensor
    signed: bool
    seconds: list[float]
    forwards: list[float]
    memory: list[float]


class _PartialExplanation(NamedTuple):
    """Maps of some rows of the batch, for all of their classes or for one column of them."""

    rows: Sequence[int]
    column: int | None
    explanation: Explanation
    forwards: float
    memory: float


class _ExplainRequest(NamedTuple):
    """What to explain, and where to put maps and failures."""

    ids: Sequence[str]
    images: Tensor
    target: list[list[int | ClassGroup]]
    column: int | None
    partial: dict[str, list[_PartialExplanation]]
    failures: Reasons


@dataclass
class ChunkExplainer:
    """Compute maps with one model.

    Attributes:
        context: The opened plan.
        model: The model.
        key: Key of the run, from which seeds are derived.
        layout: What is known of the model's tokens beforehand.
    """

    context: BenchContext
    model: BenchModel
    key: str
    layout: Layout | None = None
    _evaluated: int = field(default=0, init=False)

    def __call__(
        self,
        ids: Sequence[str],
        images: Tensor,
        classes: Tensor | Sequence[Sequence[int | ClassGroup]],
        specs: Sequence[str],
    ) -> tuple[dict[str, ExplainedBatch], Reasons]:
        """Explain K classes of each image.

        When a call fails, methods and then images are retried one by one, so that only the failing one has no map.

        Args:
            ids: Ids of the images, from which seeds are derived.
            images: Shape (B, channels, height, width).
            classes: Shape (B, K), or a row of K classes and groups of classes for each image. One that is repeated in
                a row is explained once where each costs a pass.
            specs: The methods.

        Returns:
            Maps by method, and the reasons for missing maps.
        """
        partial: dict[str, list[_PartialExplanation]] = {spec: [] for spec in specs}
        failures: Reasons = {}
        all_rows = range(len(ids))
        targets = classes.tolist() if isinstance(classes, Tensor) else [list(row) for row in classes]

        def explain_rows(some_specs: Sequence[str], rows: Sequence[int], column: int | None = None) -> None:
            chosen = targets if column is None else [row[column : column + 1] for row in targets]
            self._explain_rows(_ExplainRequest(ids, images, chosen, column, partial, failures), some_specs, rows)

        unseeded = [spec for spec in specs if not needs_seed(spec)]
        by_class = [spec for spec in unseeded if not serves_all_targets(spec)]
        if all_classes := [spec for spec in unseeded if spec not in by_class]:
            explain_rows(all_classes, all_rows)
        first = _first_positions(targets)
        for k in range(len(targets[0])):
            new_rows = [row for row in all_rows if first[row][k] == k]
            if by_class and new_rows:
                explain_rows(by_class, new_rows, k)
        noise: dict[str, ExplainedBatch] = {}
        for spec in specs:
            if needs_seed(spec) and find(spec)[1].name == NOISE:
                noise[spec] = self._noise(ids, images, len(targets[0]), spec)
            elif needs_seed(spec):
                for row in all_rows:
                    explain_rows([spec], [row])
        joined = {spec: _join_partial(parts, first) for spec, parts in partial.items() if parts}
        explained = joined | noise
        return {spec: explained[spec] for spec in specs if spec in explained}, failures

    def _noise(self, ids: Sequence[str], images: Tensor, count: int, spec: str) -> ExplainedBatch:
        """Maps of the random control: every image has its own seed, and none needs a pass of the model."""
        started = perf_counter()
        _, method, options = find(spec)
        with PeakMemory(images.device) as peak:
            module, structure = self.model.loaded.module, self.model.structure
            noise = [
                method.apply(
                    Probe(module, ModelInputs((image[None],)), structure, _no_score, count),
                    options | {"seed": map_seed(self.key, name, spec)},
                )
                for name, image in zip(ids, images.cpu(), strict=True)
            ]
            relevance, signed = torch.cat(noise).to(images.device), method.is_signed(options)
            maps, grid, constant = to_maps(relevance[None], signed, structure, ModelInputs((images,)))
        seconds = (perf_counter() - started) / len(ids)
        return ExplainedBatch(
            maps[0], grid[0], constant[0], signed, [seconds] * len(ids), [0.0] * len(ids), [peak.bytes] * len(ids)
        )

    def _explain_rows(self, request: _ExplainRequest, specs: Sequence[str], rows: Sequence[int]) -> None:
        ids, images, target, column, partial, failures = request
        options = {spec: {"seed": map_seed(self.key, ids[rows[0]], spec)} if needs_seed(spec) else {} for spec in specs}
        at = torch.as_tensor(list(rows))
        self._evaluated = 0
        try:
            with PeakMemory(images.device) as peak:
                explanations = shrink_batch_to_fit(
                    self.context.explaining,
                    lambda batch: explain(
                        self.model.loaded, images[at.to(images.device)], methods=options,
                        target=[target[row] for row in rows], layout=self.layout,
                        batch_size=batch, advance=self._count_evaluated,
                    ),
                )  # fmt: skip
        except OutputError:
            raise
        except Exception as error:  # noqa: BLE001 - a failure of one image becomes a row of the results
            if len(specs) == 1 and len(rows) == 1:
                failures[specs[0], rows[0]] = error_line(error)
                return
            retries = [([spec], rows) for spec in specs] if len(specs) > 1 else [(specs, [row]) for row in rows]
            for some_specs, some_rows in retries:
                self._explain_rows(request, some_specs, some_rows)
            return
        forwards = self._evaluated / len(rows)
        for spec in specs:
            partial[spec].append(_PartialExplanation(rows, column, explanations[spec], forwards, peak.bytes))

    def _count_evaluated(self, images: int) -> None:
        self._evaluated += images


def _no_score(_output: object, _owner: Tensor, _kind: str) -> Tensor:
    raise ModelError(f"the control {NOISE} does not evaluate the model")


def needs_seed(spec: str) -> bool:
    """Whether a method draws random numbers and its spec does not fix the seed.

    Example:
        >>> needs_seed("random"), needs_seed("random:seed=1"), needs_seed("rollout")
        (True, False, False)
    """
    return "seed" in find(spec)[2] and "seed=" not in spec


def map_seed(key: str, image: str, method: str) -> int:
    """Return the seed of one map, which depends on the run's key, the image and the method only.

    Example:
        >>> map_seed("run", "cat", "rise") == map_seed("run", "cat", "rise") != map_seed("run", "dog", "rise")
        True
    """
    return int.from_bytes(hashlib.sha256(f"{key}\0{image}\0{method}".encode()).digest()[:4], "big") & 0x7FFFFFFF


def _first_positions(targets: list[list[int | ClassGroup]]) -> list[list[int]]:
    """Return, for each class of each row, the first column that has the same class.

    Example:
        >>> _first_positions([[5, 7], [5, 5]])
        [[0, 1], [0, 0]]
    """
    return [[row.index(one) for one in row] for row in targets]


def _join_partial(parts: Sequence[_PartialExplanation], first: list[list[int]]) -> ExplainedBatch:
    """Join explanations of some rows each into one batch; repeated classes get the same map."""
    one = parts[0].explanation
    count = one.maps.shape[1] if parts[0].column is None else len(first[0])

    def empty(like: Tensor) -> Tensor:
        return like.new_zeros(len(first), count, *like.shape[2:])

    zeros, unknown = [0.0] * len(first), [math.nan] * len(first)
    batch = ExplainedBatch(
        empty(one.maps), empty(one.grid), empty(one.constant), one.signed, zeros, zeros.copy(), unknown
    )
    for rows, column, part, forwards, memory in parts:
        at = torch.as_tensor(list(rows), device=part.maps.device)
        columns = slice(None) if column is None else slice(column, column + 1)
        batch.maps[at, columns], batch.grid[at, columns], batch.constant[at, columns] = (
            part.maps,
            part.grid,
            part.constant,
        )
        for row in rows:
            batch.seconds[row] += part.seconds / len(rows)
            batch.forwards[row] += forwards
            batch.memory[row] = max((m for m in (batch.memory[row], memory) if not math.isnan(m)), default=math.nan)
    if parts[0].column is not None and any(row != list(range(count)) for row in first):
        # Indices are copied to the device once, not for each image.
        positions = torch.tensor(first, device=one.maps.device)
        rows_of = torch.arange(len(first), device=one.maps.device)[:, None]
        batch.maps, batch.grid, batch.constant = (
            t[rows_of, positions] for t in (batch.maps, batch.grid, batch.constant)
        )
    return batch
