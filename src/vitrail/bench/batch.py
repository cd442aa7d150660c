"""A batch of images with its maps, and the interface of a protocol: from such a batch to scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor

from vitrail.bench.explainer import ExplainedBatch, Explainer, Reasons
from vitrail.bench.ground_truth import GroundTruth


@dataclass
class ScoreBatch:
    """Images with their ground truth and their maps.

    Attributes:
        ids: Ids of the images.
        images: Inputs of the model, on its device, shape (B, channels, height, width).
        truths: Ground truth of each image.
        predicted: Predicted classes, shape (B,).
        labels: True classes, shape (B,); −1 where unknown or not a class of the model.
        classes: Explained classes, shape (B, K).
        columns: By target, the column of ``classes`` for each image; None where the image has no such target.
        explanations: Maps by method.
        failures: Reasons for missing maps.
        explainer: Computes further maps for protocols that need them.
        dataset: Position of the data set in the plan.
    """

    ids: tuple[str, ...]
    images: Tensor
    truths: list[GroundTruth]
    predicted: Tensor
    labels: Tensor
    classes: Tensor
    columns: dict[str, list[int | None]]
    explanations: dict[str, ExplainedBatch]
    failures: Reasons
    explainer: Explainer
    dataset: int = 0

    def target_columns(self, target: str) -> Tensor:
        """Return the column of each image's target, 0 where it has none, shape (B,)."""
        return torch.tensor([k or 0 for k in self.columns[target]])

    def target_classes(self, target: str) -> list[int]:
        """Return the class of each image's target, −1 where it has none."""
        rows = enumerate(self.columns[target])
        return [-1 if k is None else int(self.classes[row, k]) for row, k in rows]

    def maps(self, method: str, target: str) -> Tensor:
        """Return one map for each image, shape (B, height, width)."""
        maps = self.explanations[method].maps
        return maps[torch.arange(len(maps), device=maps.device), self.target_columns(target).to(maps.device)]

    def missing_maps(self, method: str, target: str) -> dict[int, str]:
        """Return the positions of images without such a map, with the reason."""
        unlabelled = {row: "the image has no label" for row, k in enumerate(self.columns[target]) if k is None}
        return unlabelled | {row: why for (name, row), why in self.failures.items() if name == method}


@dataclass
class ProtocolScores:
    """Scores of one method, target and protocol for the images of a batch.

    Attributes:
        protocol: Name of the protocol.
        method: Spec of the method.
        target: Whose class is explained.
        values: By score, one value per image, shape (B,), or several, shape (B, M).
        reasons: Positions of images without scores, with the reason.
        seconds: Time per image.
        forwards: Images evaluated per image.
        curves: By score of a perturbation test, the numbers of removed pixels and the model's outputs at each level.
        sparse: Whether NaN values are left out of the table: scores that only some of the images have.
    """

    protocol: str
    method: str
    target: str
    values: Mapping[str, Tensor]
    reasons: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    forwards: float = 0.0
    curves: Mapping[str, tuple[tuple[int, ...], Tensor]] = field(default_factory=dict)
    sparse: bool = False


#: From a batch, a method and a target to values by score, and to the reasons for missing values by position.
ScoreFunction = Callable[[ScoreBatch, str, str], tuple[dict[str, Tensor], dict[int, str]]]


@dataclass(frozen=True)
class BenchProtocol:
    """A protocol other than the perturbation presets.

    Attributes:
        name: Name in plans.
        needs: What a data set must have: "mask", "boxes", "label", "two classes" (images with two known classes) or
            "class masks" (masks that distinguish classes).
        score: Computes the scores.
        targets: What its maps explain, if that is not the plan's targets.
        sparse: See `ProtocolScores`.
    """

    name: str
    needs: tuple[str, ...]
    score: ScoreFunction
    targets: tuple[str, ...] = ()
    sparse: bool = False

    def __call__(self, batch: ScoreBatch, targets: tuple[str, ...]) -> Iterator[ProtocolScores]:
        """Compute the scores of every method."""
        for method in batch.explanations:
            for target in self.targets or targets:
                start = perf_counter()
                values, reasons = self.score(batch, method, target)
                seconds = (perf_counter() - start) / len(batch.ids)
                yield ProtocolScores(self.name, method, target, values, reasons, seconds, sparse=self.sparse)
