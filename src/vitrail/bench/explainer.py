"""Maps of many methods for a batch of pictures, whatever single pictures or methods do."""

from __future__ import annotations

import gc
import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.bench.context import BenchContext, BenchModel
from vitrail.bench.peak import Peak
from vitrail.errors import MapWarning, OutputError, VitrailError
from vitrail.explain import explain
from vitrail.explanation import Explanation
from vitrail.methods import find
from vitrail.postprocess import normalise

T = TypeVar("T")
#: For a method and a picture's place in the batch, why there is no map.
Reasons = dict[tuple[str, int], str]


@dataclass
class ExplainedBatch:
    """Maps of one method for B pictures with K classes each.

    Attributes:
        maps: At the size of the pictures, shape (B, K, height, width); zeros where there is none.
        grid: As the method gave them, shape (B, K, rows, columns).
        flat: Which say nothing, shape (B, K).
        signed: Whether negative relevance has a meaning.
        seconds: Each picture's share of the time.
        forwards: How many changed pictures the model was shown for each picture.
        memory: Bytes held at the most while the batch of each picture was explained; methods of one pass share it.
            Not a number where nobody can tell.
    """

    maps: Tensor
    grid: Tensor
    flat: Tensor
    signed: bool
    seconds: list[float]
    forwards: list[float]
    memory: list[float]

    def half(self, grid: tuple[int, int] | None) -> Tensor:
        """Each map scaled to [0, 1], or [-1, 1] if signed, in half precision on the grid of the patches.

        Maps finer than that grid are averaged over each patch.
        """
        scaled = normalise(self.grid.float(), self.signed)
        if grid is not None and scaled.shape[-2] > grid[0]:
            scaled = F.adaptive_avg_pool2d(scaled.flatten(0, 1), grid).reshape(*scaled.shape[:2], *grid)
        return scaled.half().cpu()


class _Part(NamedTuple):
    """Maps of some of the pictures, for all of their classes or for one."""

    rows: Sequence[int]
    column: int | None
    done: Explanation
    looks: float
    memory: float


class _Attempt(NamedTuple):
    """What is to be explained, and where maps and failures go."""

    ids: Sequence[str]
    images: Tensor
    aimed: Tensor | Callable[[Any], Tensor]
    column: int | None
    found: dict[str, list[_Part]]
    bad: Reasons


@dataclass
class Explainer:
    """Makes maps with one model; call it with a batch.

    Attributes:
        stage: The opened plan.
        model: The model.
        key: The run's key, which seeds are made of.
    """

    stage: BenchContext
    model: BenchModel
    key: str
    looks: int = field(default=0, init=False)

    def __call__(
        self,
        ids: Sequence[str],
        images: Tensor,
        classes: Tensor,
        specs: Sequence[str],
        target: Callable[[Any], Tensor] | None = None,
    ) -> tuple[dict[str, ExplainedBatch], Reasons]:
        """Explain K classes of each picture.

        A method or picture that fails is tried alone, so that it takes nothing else with it.

        Args:
            ids: The pictures' ids, which seeds are made of.
            images: Shape (B, channels, height, width).
            classes: Shape (B, K); a class that a picture has twice is explained once where each costs a pass.
            specs: The methods.
            target: Explained instead of the classes: from the model's output to one number for each picture.
        """
        found: dict[str, list[_Part]] = {spec: [] for spec in specs}
        bad: Reasons = {}
        rows = range(len(ids))

        def attempt(some: Sequence[str], few: Sequence[int], column: int | None = None) -> None:
            aimed = target if target is not None else classes if column is None else classes[:, column : column + 1]
            self._attempt(_Attempt(ids, images, aimed, column, found, bad), some, few)

        shared = [spec for spec in specs if not seeded(spec)]
        dear = [spec for spec in shared if target is None and find(spec)[1].family != "perturbation"]
        if free := [spec for spec in shared if spec not in dear]:
            attempt(free, rows)
        first = _first(classes)
        for k in range(classes.shape[1]):
            fresh = [row for row in rows if first[row][k] == k]
            if dear and fresh:
                attempt(dear, fresh, k)
        for spec in specs:
            if seeded(spec):
                for row in rows:
                    attempt([spec], [row])
        return {spec: _joined(parts, first) for spec, parts in found.items() if parts}, bad

    def _attempt(self, given: _Attempt, specs: Sequence[str], rows: Sequence[int]) -> None:
        ids, images, aimed, column, found, bad = given
        options = {spec: {"seed": seed_of(self.key, ids[rows[0]], spec)} if seeded(spec) else {} for spec in specs}
        at = torch.as_tensor(list(rows))
        self.looks = 0
        try:
            with Peak(images.device) as peak:
                done = within_memory(
                    self.stage,
                    lambda batch: explain(
                        self.model.about, images[at.to(images.device)], methods=options,
                        target=aimed[at] if isinstance(aimed, Tensor) else aimed,
                        batch_size=batch, advance=self._looked,
                    ),
                )  # fmt: skip
        except OutputError:
            raise
        except Exception as error:  # noqa: BLE001 - any failure of one picture is a row, not the end
            if len(specs) == 1 and len(rows) == 1:
                bad[specs[0], rows[0]] = reason(error)
                return
            parts = [([spec], rows) for spec in specs] if len(specs) > 1 else [(specs, [row]) for row in rows]
            for some, few in parts:
                self._attempt(given, some, few)
            return
        for spec in specs:
            found[spec].append(_Part(rows, column, done[spec], self.looks / len(rows), peak.bytes))

    def _looked(self, pictures: int) -> None:
        self.looks += pictures


def seeded(spec: str) -> bool:
    """Whether a method draws numbers and nobody said from which seed.

    Example:
        >>> seeded("random"), seeded("random:seed=1"), seeded("rollout")
        (True, False, False)
    """
    return "seed" in find(spec)[2] and "seed=" not in spec


def seed_of(key: str, image: str, method: str) -> int:
    """The seed of one map, from what it is a map of and from nothing else.

    Example:
        >>> seed_of("run", "cat", "rise") == seed_of("run", "cat", "rise") != seed_of("run", "dog", "rise")
        True
    """
    return int.from_bytes(hashlib.sha256(f"{key}\0{image}\0{method}".encode()).digest()[:4], "big") & 0x7FFFFFFF


def within_memory(stage: BenchContext, call: Callable[[int], T]) -> T:
    """Call with a number of pictures in a forward pass, and with half as many whenever memory runs out."""
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MapWarning)  # the table says which maps are flat
                return call(stage.batch)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            full = isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)
            if not full or stage.batch == 1:
                raise
        stage.batch = max(1, stage.batch // 2)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def reason(error: BaseException) -> str:
    """An error as one line for a table."""
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    return line if isinstance(error, VitrailError) and line else f"{type(error).__name__}: {line}".removesuffix(": ")


def _first(classes: Tensor) -> list[list[int]]:
    """For each class of each picture, where that class comes first.

    Example:
        >>> _first(torch.tensor([[5, 7], [5, 5]]))
        [[0, 1], [0, 0]]
    """
    return [[row.index(one) for one in row] for row in classes.tolist()]


def _joined(parts: Sequence[_Part], first: list[list[int]]) -> ExplainedBatch:
    """Explanations of some of the pictures each, put in their places; a class that comes again has the same map."""
    one = parts[0].done
    count = one.maps.shape[1] if parts[0].column is None else len(first[0])

    def empty(like: Tensor) -> Tensor:
        return like.new_zeros(len(first), count, *like.shape[2:])

    zeros, unknown = [0.0] * len(first), [math.nan] * len(first)
    made = ExplainedBatch(
        empty(one.maps), empty(one.grid), empty(one.constant), one.signed, zeros, zeros.copy(), unknown
    )
    for rows, column, done, looks, memory in parts:
        at = torch.as_tensor(list(rows), device=done.maps.device)
        columns = slice(None) if column is None else slice(column, column + 1)
        made.maps[at, columns], made.grid[at, columns], made.flat[at, columns] = done.maps, done.grid, done.constant
        for row in rows:
            made.seconds[row] += done.seconds / len(rows)
            made.forwards[row] += looks
            made.memory[row] = max((m for m in (made.memory[row], memory) if not math.isnan(m)), default=math.nan)
    if parts[0].column is not None:
        for row, places in enumerate(first):
            for tensor in (made.maps, made.grid, made.flat):
                tensor[row] = tensor[row, places]
    return made
