"""FunnyBirds: seven protocols on birds whose parts can be left out [hesse2023funnybirds].

The answers of the model to the interventions are the same for all methods: `BirdResponses`. A map enters by the sum of
its relevance in each part and background object: `PartImportance`. A value of NaN means that a protocol leaves an
image out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.funnybirds.birds import MAX_OBJECTS, PARTS, BirdClass, BirdScene, list_interventions, part_subsets
from vitrail.data.funnybirds.labels import FIRST_OBJECT, LABELS
from vitrail.errors import InputError
from vitrail.scores.agreement import spearman

#: Fractions of the total relevance above which a part counts as important; the best one is chosen for each method.
PART_THRESHOLDS = torch.linspace(0.01, 0.5, 80, dtype=torch.float64)
#: Fraction of the logit that the removal of a relevant part or object takes away at least.
RELEVANT_DROP = 0.05
#: Protocols with one value for each threshold, and the part of completeness that the first three make together.
THRESHOLDED = ("controlled_data_check", "preservation_check", "deletion_check", "distractibility")


class PartImportance(NamedTuple):
    """Relevance of K maps of each of B images.

    Attributes:
        parts: In each of the five parts, shape (B, K, 5).
        objects: In each background object, shape (B, K, 34).
        total: In the whole map, shape (B, K).
    """

    parts: Tensor
    objects: Tensor
    total: Tensor

    def of(self, k: int) -> PartImportance:
        """Of one of the K maps, without their axis."""
        return PartImportance(self.parts[:, k], self.objects[:, k], self.total[:, k])


def measure_parts(maps: Tensor, labels: Tensor) -> PartImportance:
    """Sum relevance in the parts and background objects, each enlarged by two pixels.

    Args:
        maps: Relevance before scaling, at the size of the part maps, shape (B, K, height, width).
        labels: Part maps of `BirdRenderer`, shape (B, height, width).

    Example:
        >>> labels = torch.zeros(1, 9, 9, dtype=torch.uint8)
        >>> labels[0, 4, 4] = LABELS["tail"]
        >>> measure_parts(torch.ones(1, 1, 9, 9), labels).parts.tolist()
        [[[0.0, 0.0, 0.0, 25.0, 0.0]]]
    """
    if maps.shape[-2:] != labels.shape[-2:] or len(maps) != len(labels):
        raise InputError(f"maps {tuple(maps.shape)} and part maps {tuple(labels.shape)} differ in number or size")
    values, total = maps.double().flatten(2), maps.double().sum((2, 3))

    def inside(label: int) -> Tensor:
        mask = F.max_pool2d((labels == label).float()[:, None], 5, stride=1, padding=2)
        return (values @ mask.double().flatten(2).mT)[:, :, 0]

    parts = [sum(inside(v) for k, v in LABELS.items() if k.rstrip("012") == part) for part in PARTS]
    objects = [inside(FIRST_OBJECT + index) for index in range(MAX_OBJECTS)]
    return PartImportance(torch.stack([torch.as_tensor(part) for part in parts], -1), torch.stack(objects, -1), total)


@dataclass(frozen=True, eq=False)
class BirdResponses:
    """Logits of a model for B images of birds and their interventions.

    Attributes:
        classes: The classes.
        labels: Class of each image, shape (B,).
        subsets: Logits with each set of parts of `part_subsets` alone; the last one is the image. Shape (B, 32, C).
        objects: Logits without each background object; NaN where there is none. Shape (B, 34, C).
    """

    classes: Sequence[BirdClass]
    labels: Tensor
    subsets: Tensor
    objects: Tensor

    @classmethod
    def of(cls, classes: Sequence[BirdClass], scenes: Sequence[BirdScene], logits: Tensor) -> BirdResponses:
        """Arrange the logits of `list_interventions`, in its order, shape (interventions, C)."""
        interventions = list_interventions(scenes)
        if len(logits) != len(interventions):
            raise InputError(f"{len(logits)} rows of logits for {len(interventions)} interventions")
        objects = torch.full((len(scenes), MAX_OBJECTS, logits.shape[1]), torch.nan, dtype=logits.dtype)
        for row, (index, change) in zip(logits, interventions, strict=True):
            if isinstance(change, int):
                objects[index, change] = row
        labels = torch.tensor([int(scene["class_idx"]) for scene in scenes])
        subsets = logits[: len(part_subsets()) * len(scenes)].view(len(scenes), -1, logits.shape[1])
        return cls(classes, labels, subsets, objects)

    @cached_property
    def logits(self) -> Tensor:
        """Logits of the images, shape (B, C)."""
        return self.subsets[:, -1]

    @cached_property
    def contrasts(self) -> list[ContrastClasses | None]:
        """The two classes of target sensitivity of each class."""
        return [find_contrast(self.classes, index) for index in range(len(self.classes))]

    @property
    def targets(self) -> Tensor:
        """Classes to explain, shape (B, 4): the image's own, the predicted, and the two of target sensitivity."""
        pairs = [self.contrasts[label] for label in self.labels.tolist()]
        others = [(p.first, p.second) if p else (int(c), int(c)) for p, c in zip(pairs, self.labels, strict=True)]
        own = torch.stack([self.labels.cpu(), self.logits.argmax(1).cpu()], 1)
        return torch.cat([own, torch.tensor(others).view(-1, 2)], 1)

    def kept(self, parts: Tensor) -> Tensor:
        """Logits with some of the parts alone, bool, shape (B, T, 5) to (B, T, C)."""
        index = torch.zeros(2 ** len(PARTS), dtype=torch.long)
        for number, subset in enumerate(part_subsets()):
            index[sum(2 ** PARTS.index(part) for part in subset)] = number
        chosen = index[(parts.cpu() * 2 ** torch.arange(len(PARTS))).sum(-1)].to(self.subsets.device)
        return self.subsets.gather(1, chosen[:, :, None].expand(-1, -1, self.subsets.shape[2]))

    def drops(self) -> tuple[Tensor, Tensor, Tensor]:
        """The logit of each image's class, and how far the removal of each part and object lowers it."""
        own = self.labels[:, None, None]
        before = self.logits.gather(1, own[:, 0])
        single = self.kept(~torch.eye(len(PARTS), dtype=torch.bool).expand(len(own), -1, -1))
        without = (values.gather(2, own.expand(-1, values.shape[1], 1))[:, :, 0] for values in (single, self.objects))
        parts, objects = (before - values for values in without)
        return before, parts, objects


class ContrastClasses(NamedTuple):
    """Two classes that each share two parts with a third one, and these parts."""

    first: int
    second: int
    first_parts: tuple[str, ...]
    second_parts: tuple[str, ...]


def find_contrast(classes: Sequence[BirdClass], index: int) -> ContrastClasses | None:
    """Find the first two classes that share two parts each, different ones, with a class; None if there are none.

    Example:
        >>> variants = ((0, 0, 0, 0, 0), (0, 0, 1, 1, 1), (1, 1, 1, 0, 0))
        >>> classes = [dict(zip(PARTS, own, strict=True)) for own in variants]
        >>> find_contrast(classes, 0)
        ContrastClasses(first=1, second=2, first_parts=('beak', 'eye'), second_parts=('tail', 'wing'))
    """
    shared = [tuple(part for part in PARTS if own[part] == classes[index][part]) for own in classes]
    candidates = [other for other, parts in enumerate(shared) if len(parts) == len(PARTS) - 3]
    for first, second in itertools.combinations(candidates, 2):
        if not set(shared[first]) & set(shared[second]):
            return ContrastClasses(first, second, shared[first], shared[second])
    return None


def sufficient_sets(classes: Sequence[BirdClass], index: int) -> list[tuple[str, ...]]:
    """Smallest sets of parts that no other class shares with a class.

    Example:
        >>> variants = ((0, 0, 0, 0, 0), (0, 0, 0, 1, 1), (1, 1, 0, 0, 1))
        >>> classes = [dict(zip(PARTS, own, strict=True)) for own in variants]
        >>> sufficient_sets(classes, 0)
        [('wing',), ('beak', 'tail'), ('eye', 'tail')]
    """
    others = [own for number, own in enumerate(classes) if number != index]
    found: list[tuple[str, ...]] = []
    for subset in part_subsets()[1:]:
        unique = not any(all(own[part] == classes[index][part] for part in subset) for own in others)
        if unique and not any(set(smaller) <= set(subset) for smaller in found):
            found.append(subset)
    return found


def important_parts(importance: PartImportance, thresholds: Tensor = PART_THRESHOLDS) -> tuple[Tensor, Tensor]:
    """Parts and objects with more than a fraction of the relevance of one map, shapes (B, T, 5) and (B, T, 34)."""
    limit = importance.total[:, None, None] * thresholds.to(importance.total)[None, :, None]
    return importance.parts[:, None] > limit, importance.objects[:, None] > limit


def score_bird_model(responses: BirdResponses) -> dict[str, Tensor]:
    """Compute what depends on the model alone.

    Returns:
        ``accuracy`` ↑, whether the class is predicted; ``background_independence`` ↑, fraction of the background
        objects whose removal lowers the logit of the class by less than 5 %, NaN without objects; ``objects``, their
        number. Shape (B,).
    """
    before, _, drops = responses.drops()
    present = ~drops.isnan()
    relevant = present & (drops.abs() >= (before * RELEVANT_DROP).abs()) & (drops > 0)
    return {
        "accuracy": (responses.logits.argmax(1) == responses.labels).double(),
        "background_independence": 1 - relevant.sum(1) / present.sum(1).double(),
        "objects": present.sum(1).double(),
    }


def score_bird_maps(
    responses: BirdResponses, importance: PartImportance, thresholds: Tensor = PART_THRESHOLDS
) -> dict[str, Tensor]:
    """Compute the protocols of explanations.

    Args:
        responses: Logits of the interventions.
        importance: Relevance of the maps of ``responses.targets``, K = 4.
        thresholds: Fractions above which a part counts as important, shape (T,).

    Returns:
        Of shape (B, T): ``controlled_data_check``, the largest fraction of a sufficient set of parts that is important,
        of images that are classified correctly; ``preservation_check``, whether the important parts alone keep the
        prediction; ``deletion_check``, whether their removal changes it; ``distractibility``, fraction of the parts and
        objects without influence that are not important. Of shape (B,): ``single_deletion``, rank correlation of
        importance and drop of the logit for the five parts, from 0 to 1; ``target_sensitivity``, for two other classes,
        whether the parts that each shares with the image are more important to it than to the other one. All ↑.
    """
    own, predicted, first, second = (importance.of(k) for k in range(4))
    before, drops, object_drops = responses.drops()
    parts, objects = (values.cpu() for values in important_parts(own, thresholds))
    removed, _ = important_parts(predicted, thresholds)
    answer = responses.logits.argmax(1)
    keeps, deletes = (responses.kept(chosen).argmax(2) == answer[:, None] for chosen in (removed, ~removed))
    everything, effect = torch.cat([parts, objects], 2), torch.cat([drops, object_drops], 1).cpu()
    without_influence = (effect.abs() < (before.cpu() * RELEVANT_DROP).abs()) | (effect < 0)  # false for NaN
    count = without_influence.sum(1, keepdim=True).double()
    distracted = (everything & without_influence[:, None]).sum(2) / count
    return {
        "controlled_data_check": _controlled_data_check(responses, parts),
        "preservation_check": keeps.double().cpu(),
        "deletion_check": (~deletes).double().cpu(),
        "distractibility": 1 - distracted,
        "single_deletion": spearman(drops.cpu(), own.parts.cpu()) / 2 + 0.5,
        "target_sensitivity": _target_sensitivity(responses, first.parts.cpu(), second.parts.cpu()),
    }


def _controlled_data_check(responses: BirdResponses, important: Tensor) -> Tensor:
    sets = [sufficient_sets(responses.classes, index) for index in range(len(responses.classes))]
    values = torch.full(important.shape[:2], torch.nan, dtype=torch.float64)
    for row, label in enumerate(responses.labels.tolist()):
        if int(responses.logits[row].argmax()) == label:
            masks = torch.tensor([[part in subset for part in PARTS] for subset in sets[label]])
            shares = (important[row][:, None] & masks).sum(2) / masks.sum(1).double()
            values[row] = shares.amax(1)
    return values


def _target_sensitivity(responses: BirdResponses, first: Tensor, second: Tensor) -> Tensor:
    pairs = [responses.contrasts[label] for label in responses.labels.tolist()]
    named = [(pair.first_parts, pair.second_parts) if pair else ((), ()) for pair in pairs]
    shared = torch.tensor([[[part in own for part in PARTS] for own in parts] for parts in named])
    # Logits of the two classes (last axis) after removal of the parts of the first and of the second (axis 1).
    without = responses.kept(~shared).cpu()
    logits = without.gather(2, responses.targets[:, None, 2:].expand(-1, 2, -1))
    # Images are left out where the model does not use the parts as the protocol assumes.
    valid = (logits[:, 0, 0] < logits[:, 1, 0]) & (logits[:, 1, 1] < logits[:, 0, 1])
    valid &= torch.tensor([pair is not None for pair in pairs])
    to_first, to_second = ((importance[:, None] * shared).sum(2) for importance in (first, second))
    right = (to_first[:, 0] > to_second[:, 0]).double() + (to_first[:, 1] < to_second[:, 1]).double()
    return (right / 2).where(valid, torch.nan)


def summarise_birds(values: Mapping[str, Tensor], thresholds: Tensor = PART_THRESHOLDS) -> dict[str, float]:
    """Average the values of `score_bird_maps` over images, at the threshold that is best for the method.

    Returns:
        The mean of each protocol, ``threshold``, and the paper's dimensions: ``completeness``, the mean of
        distractibility and of the mean of the three checks; ``correctness``, single deletion; ``contrastivity``, target
        sensitivity; ``mean`` of these three.
    """
    curves = torch.stack([values[name].nanmean(0) for name in THRESHOLDED])
    best = int((curves[:3].mean(0) + curves[3]).argmax())
    found = {name: curve[best].item() for name, curve in zip(THRESHOLDED, curves, strict=True)}
    found |= {name: values[name].nanmean().item() for name in ("single_deletion", "target_sensitivity")}
    completeness = (curves[:3, best].mean() + curves[3, best]).item() / 2
    correctness, contrastivity = found["single_deletion"], found["target_sensitivity"]
    dimensions = {"completeness": completeness, "correctness": correctness, "contrastivity": contrastivity}
    return found | {"threshold": thresholds[best].item()} | dimensions | {"mean": sum(dimensions.values()) / 3}
