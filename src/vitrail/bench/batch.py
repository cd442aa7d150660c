"""A batch of pictures with its maps, and what a protocol is: from such a batch to scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from vitrail.bench.explainer import ExplainedBatch, Explainer, Reasons
from vitrail.bench.ground_truth import GroundTruth


@dataclass
class Batch:
    """Pictures with their truth and their maps.

    Attributes:
        ids: The pictures' ids.
        images: As the model takes them, on its device, shape (B, channels, height, width).
        truths: What is known about each.
        predicted: The model's answers, shape (B,).
        labels: True classes, shape (B,), −1 where unknown or none of the model's.
        classes: The explained classes, shape (B, K).
        columns: By target, which of the K it is for each picture, or None where it has no such target.
        made: Maps by method.
        bad: Methods and pictures without a map, and why.
        explainer: What made them, for protocols that need more.
        data: Which data set of the plan they are of.
    """

    ids: tuple[str, ...]
    images: Tensor
    truths: list[GroundTruth]
    predicted: Tensor
    labels: Tensor
    classes: Tensor
    columns: dict[str, list[int | None]]
    made: dict[str, ExplainedBatch]
    bad: Reasons
    explainer: Explainer
    data: int = 0

    def at(self, target: str) -> Tensor:
        """The column of each picture's target, 0 where it has none, shape (B,)."""
        return torch.tensor([k or 0 for k in self.columns[target]])

    def explained(self, target: str) -> list[int]:
        """The class of each picture's target, −1 where it has none."""
        rows = enumerate(self.columns[target])
        return [-1 if k is None else int(self.classes[row, k]) for row, k in rows]

    def maps(self, method: str, target: str) -> Tensor:
        """One map for each picture, shape (B, height, width)."""
        maps = self.made[method].maps
        return maps[torch.arange(len(maps), device=maps.device), self.at(target).to(maps.device)]

    def without(self, method: str, target: str) -> dict[int, str]:
        """Places in the batch for which there is no such map, and why."""
        absent = {row: "the picture has no label" for row, k in enumerate(self.columns[target]) if k is None}
        return absent | {row: why for (name, row), why in self.bad.items() if name == method}


@dataclass
class Found:
    """Scores of one method, target and protocol for the pictures of a batch.

    Attributes:
        values: By score, one value for each picture, shape (B,), or a row of them, shape (B, M).
        reasons: Pictures without scores, and why.
        seconds: Time a picture.
        forwards: Pictures shown to the model, for each picture.
        strips: By score, what the model said at each level; of perturbation tests.
        sparse: Whether values that are not a number are left out: scores that only some of the pictures have.
    """

    protocol: str
    method: str
    target: str
    values: Mapping[str, Tensor]
    reasons: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    forwards: float = 0.0
    strips: Mapping[str, tuple[tuple[int, ...], Tensor]] = field(default_factory=dict)
    sparse: bool = False


Score = Callable[[Batch, str, str], tuple[dict[str, Tensor], dict[int, str]]]


@dataclass(frozen=True)
class Protocol:
    """A protocol other than the perturbation presets.

    Attributes:
        name: What plans call it.
        needs: What a data set must have: "mask", "boxes", "label", "things" (pictures with two classes), "classes" (a
            class for each pixel).
        score: From a batch, a method and a target to values, and to pictures without and why.
        explains: Targets it is for; empty where it takes any.
        targets: What its maps explain where that is not the plan's targets.
        sparse: See `Found`.
    """

    name: str
    needs: tuple[str, ...]
    score: Score
    explains: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    sparse: bool = False

    def __call__(self, batch: Batch, targets: tuple[str, ...]) -> Iterator[Found]:
        """Scores of every method."""
        for method in batch.made:
            for target in self.targets or targets:
                began = perf_counter()
                values, reasons = self.score(batch, method, target)
                each = (perf_counter() - began) / len(batch.ids)
                yield Found(self.name, method, target, values, reasons, each, sparse=self.sparse)
