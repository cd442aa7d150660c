"""A batch of images or texts with its maps, and the interface of a protocol: from such a batch to scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.bench.context import BenchTextModel
from vitrail.bench.explainer import ChunkExplainer, ExplainedBatch, Reasons
from vitrail.bench.ground_truth import GroundTruth
from vitrail.scores.infidelity import PatchEffects
from vitrail.scores.statistics import Array


def distinct_classes(
    by_target: Sequence[Mapping[str, int]], targets: Iterable[str]
) -> tuple[Tensor, dict[str, list[int | None]]]:
    """List the classes of each sample once.

    Returns:
        The classes, shape (B, K), where samples with fewer classes repeat their first one, and by target the column
        of each sample; None where the sample has no such target.

    Example:
        >>> distinct_classes([{"predicted": 5, "label": 7}, {"predicted": 3}], ("predicted", "label"))
        (tensor([[5, 7],
                [3, 3]]), {'predicted': [0, 0], 'label': [1, None]})
    """
    distinct = [list(dict.fromkeys(classes.values())) or [0] for classes in by_target]
    width = max(map(len, distinct))
    columns = {
        name: [row.index(one[name]) if name in one else None for one, row in zip(by_target, distinct, strict=True)]
        for name in targets
    }
    return torch.tensor([row + row[:1] * (width - len(row)) for row in distinct]), columns


class TargetColumns:
    """Which class of each sample a target means; the base of batches of images and of texts.

    Attributes:
        classes: Explained classes, shape (B, K).
        columns: By target, the column of ``classes`` for each sample; None where the sample has no such target.
        failures: Reasons for missing maps.
        sample: What a sample is called in reasons.
    """

    classes: Tensor
    columns: dict[str, list[int | None]]
    failures: Reasons
    sample = "image"

    def target_columns(self, target: str) -> Tensor:
        """Return the column of each sample's target, 0 where it has none, shape (B,)."""
        return torch.tensor([k or 0 for k in self.columns[target]])

    def target_classes(self, target: str) -> list[int]:
        """Return the class of each sample's target, −1 where it has none."""
        rows = enumerate(self.columns[target])
        return [-1 if k is None else int(self.classes[row, k]) for row, k in rows]

    def missing_maps(self, method: str, target: str) -> dict[int, str]:
        """Return the positions of samples without such a map, with the reason."""
        unlabelled = {row: f"the {self.sample} has no label" for row, k in enumerate(self.columns[target]) if k is None}
        return unlabelled | {row: why for (name, row), why in self.failures.items() if name == method}


@dataclass
class ScoreBatch(TargetColumns):
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
        object_maps: By method, the maps of every class of each image, once a protocol has computed them: the pixel
            labels of each image, the maps by image and label, and reasons for missing maps.
        patch_effects: By target, the effects of removing patches, once a protocol has computed them.
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
    explainer: ChunkExplainer
    dataset: int = 0
    object_maps: dict[str, tuple[list[list[int]], dict[tuple[int, int], Tensor], dict[int, str]]] = field(
        default_factory=dict
    )
    patch_effects: dict[str, PatchEffects] = field(default_factory=dict)

    def maps(self, method: str, target: str) -> Tensor:
        """Return one map for each image, shape (B, height, width)."""
        maps = self.explanations[method].maps
        return maps[torch.arange(len(maps), device=maps.device), self.target_columns(target).to(maps.device)]


@dataclass
class ExplainedTexts:
    """Word scores of one method for B texts with K classes each.

    Attributes:
        scores: For each text the scores of its words, shape (K, W); NaN for words the model did not read.
        constant: Which scores are constant, shape (B, K).
        seconds: Each text's share of the time.
        forwards: Number of inputs evaluated for each text.
        memory: Peak memory in bytes while each text's batch was explained; NaN where it is unknown.
    """

    scores: list[Array]
    constant: Tensor
    seconds: list[float]
    forwards: list[float]
    memory: list[float]


@dataclass
class TextBatch(TargetColumns):
    """Texts with their words, marked words and word scores.

    Attributes:
        ids: Ids of the texts.
        words: Words of each text.
        marked: Which words annotators marked, shape (W,) each; None where there are no annotations.
        classes: Explained classes, shape (B, K).
        columns: By target, the column of ``classes`` for each text; None where the text has no such target.
        explanations: Word scores by method.
        failures: Reasons for missing scores.
        model: The model, with its tokenizer.
        batch_size: Most windows in one forward pass.
    """

    ids: tuple[str, ...]
    words: list[tuple[str, ...]]
    marked: list[NDArray[np.bool_] | None]
    classes: Tensor
    columns: dict[str, list[int | None]]
    explanations: dict[str, ExplainedTexts]
    failures: Reasons
    model: BenchTextModel
    batch_size: int = 8
    sample = "text"

    def scores(self, method: str, target: str) -> list[Array]:
        """Return the word scores of each text's target, shape (W,) each."""
        columns = self.target_columns(target).tolist()
        return [scores[k] for scores, k in zip(self.explanations[method].scores, columns, strict=True)]


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


#: From a batch of images or texts, a method and a target to values by score, and to the reasons for missing values.
#: Values by score, and reasons for missing values by position in the batch.
ScoresAndReasons = tuple[dict[str, Tensor], dict[int, str]]
ScoreFunction = Callable[[Any, str, str], ScoresAndReasons]


@dataclass(frozen=True)
class BenchProtocol:
    """A protocol other than the perturbation presets.

    Attributes:
        name: Name in plans.
        needs: What a data set must have: "mask", "boxes", "label", "two classes" (images with two known classes),
            "class masks" (masks that distinguish classes), "grid" (grids of images) or "rationale" (texts with marked
            words).
        score: Computes the scores.
        targets: What its maps explain, if that is not the plan's targets.
        sparse: See `ProtocolScores`.
        text: Whether it scores texts instead of images.
        world: Whether it scores pairs of the worlds.
    """

    name: str
    needs: tuple[str, ...]
    score: ScoreFunction
    targets: tuple[str, ...] = ()
    sparse: bool = False
    text: bool = False
    world: bool = False

    def __call__(self, batch: ScoreBatch | TextBatch, targets: tuple[str, ...]) -> Iterator[ProtocolScores]:
        """Compute the scores of every method."""
        for method in batch.explanations:
            for target in self.targets or targets:
                start = perf_counter()
                values, reasons = self.score(batch, method, target)
                seconds = (perf_counter() - start) / len(batch.ids)
                yield ProtocolScores(self.name, method, target, values, reasons, seconds, sparse=self.sparse)
