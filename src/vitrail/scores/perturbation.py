"""Records of perturbation tests: the model's outputs at every level, from which all scores are computed.

For each image, method, target, removal order and fill a record holds at every level: the number of removed pixels, the
log-probability of the predicted class and of the label, the top-1 class, and the two largest log-probabilities. Records
of several workers can be joined in any order with the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.models.class_group import ClassGroup, append_groups
from vitrail.scores.curves import aopc, find_area, lodds, srg
from vitrail.scores.presets import Curve, MapTarget, Preset
from vitrail.scores.ranks import RemovalOrder
from vitrail.scores.statistics import SampleScores


def summarise_outputs(
    log_probs: Tensor, predicted: Tensor, labels: Tensor, groups: Sequence[ClassGroup] = ()
) -> Tensor:
    """Reduce model outputs to the values a record keeps, shape (N, 5).

    They are the log-probabilities of the predicted class and of the label, the top-1 class, and the highest and the
    second highest log-probability.

    Args:
        log_probs: Shape (N, C), in float32.
        predicted: Predicted class of the unperturbed image, shape (N,); C + i for ``groups[i]``.
        labels: True class, shape (N,), or −1 where it is unknown, which gives NaN; C + i for ``groups[i]``.
        groups: Groups of classes.

    Example:
        >>> log_probs = torch.tensor([[0.25, 0.75]]).log()
        >>> summarise_outputs(log_probs, torch.tensor([0]), torch.tensor([1])).exp()[:, [0, 1, 3, 4]]
        tensor([[0.2500, 0.7500, 0.7500, 0.2500]])
    """
    top = log_probs.topk(min(2, log_probs.shape[1]), 1)
    second = top.values[:, 1] if log_probs.shape[1] > 1 else torch.full_like(top.values[:, 0], -torch.inf)
    of_classes = append_groups(log_probs, groups, log=True).gather(1, torch.stack([predicted, labels.clamp_min(0)], 1))
    of_label = torch.where(labels < 0, torch.nan, of_classes[:, 1])
    # Class indices are integers far below 2²⁴, so float32 represents them exactly.
    top_class = top.indices[:, 0].to(of_classes.dtype)
    return torch.stack([of_classes[:, 0], of_label, top_class, top.values[:, 0], second], 1)


class CurveKey(NamedTuple):
    """Key of a recorded curve: method, target (the class its maps explain), removal order and fill."""

    method: str
    target: MapTarget
    order: RemovalOrder
    fill: str


@dataclass(frozen=True)
class ForwardCounts:
    """Number of images passed through the model, by purpose; trial passes of token dropping do not count.

    Attributes:
        unperturbed: Unperturbed images, once for all methods, orders, targets and scores.
        perturbed: Images with some pixels removed.
        empty: Images with all pixels removed, where the fill depends on the image; once for all methods.
        empty_shared: Images with all pixels removed, where the fill is the same for the whole data set.
    """

    unperturbed: int = 0
    perturbed: int = 0
    empty: int = 0
    empty_shared: int = 0

    @property
    def total(self) -> int:
        """Sum of all counts."""
        return self.unperturbed + self.perturbed + self.empty + self.empty_shared

    def __add__(self, other: ForwardCounts) -> ForwardCounts:
        names = ("unperturbed", "perturbed", "empty", "empty_shared")
        return ForwardCounts(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True)
class RecordedCurve:
    """Model outputs of n images at the levels of one removal order and fill.

    Attributes:
        ids: Image ids.
        units: Number of pixels of an image, or of patches where tokens are dropped.
        removed: Number of removed pixels or patches at each of L levels, ascending.
        predicted: Predicted class of the unperturbed image, shape (n,).
        labels: True class, shape (n,), −1 where unknown.
        outputs: Shape (n, L, 5); see `summarise_outputs`.
        nan: Number of NaN pixels of the map, shape (n,).
        constant: Whether the map is constant or not finite, shape (n,).
        groups: Groups of classes by the number they have in ``predicted`` and ``labels``.
    """

    ids: tuple[str, ...]
    units: int
    removed: tuple[int, ...]
    predicted: Tensor
    labels: Tensor
    outputs: Tensor = field(repr=False)
    nan: Tensor = field(repr=False)
    constant: Tensor = field(repr=False)
    groups: Mapping[int, ClassGroup] = field(default_factory=dict)

    def at(self, counts: Sequence[int]) -> Tensor:
        """Outputs at some levels, given as numbers of removed pixels, shape (n, len(counts), 5)."""
        index = {count: i for i, count in enumerate(self.removed)}
        missing = [count for count in counts if count not in index]
        if missing:
            raise InputError(f"no record of the level {missing[0]} of {self.units} removed: evaluate this preset first")
        return self.outputs[:, [index[count] for count in counts]]

    def read(self, counts: Sequence[int], quantity: str, target: MapTarget) -> Tensor:
        """Compute a quantity of ``QUANTITIES`` at some levels, float64, shape (n, len(counts)); NaN without a label."""
        outputs = self.at(counts).double()
        has_label = (self.labels >= 0)[:, None]
        if quantity == "accuracy":
            return torch.where(has_label, self._predicts(outputs, self.labels), torch.nan)
        if quantity == "agreement":
            return self._predicts(outputs, self.predicted)
        of_label = quantity == "label" or (quantity == "explained" and target == "label")
        return outputs[..., 1 if of_label else 0].exp()

    def _predicts(self, outputs: Tensor, classes: Tensor) -> Tensor:
        """Whether the top-1 class at each level is the class of the image, or in its group: 1 or 0, shape (n, L)."""
        top = outputs[..., 2]
        right = top == classes[:, None]
        for number, group in self.groups.items():
            right |= (classes == number)[:, None] & torch.isin(top, top.new_tensor(group.indices))
        return right.double()

    def select(self, order: Sequence[int]) -> RecordedCurve:
        """Select images by position."""
        rows = torch.tensor(order, dtype=torch.long)
        names = ("predicted", "labels", "outputs", "nan", "constant")
        tensors: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, ids=tuple(self.ids[i] for i in order), **tensors)


def join_curves(curves: Sequence[RecordedCurve]) -> RecordedCurve:
    """Join curves of different images into one, sorted by image id."""
    first = curves[0]
    if any((c.units, c.removed) != (first.units, first.removed) for c in curves):
        raise InputError("records differ in levels or image size: evaluate all batches with the same presets and size")
    if any(c.groups != first.groups for c in curves):
        raise InputError("records differ in their groups of classes: evaluate all batches with the same groups")
    ids = [i for curve in curves for i in curve.ids]
    if len(set(ids)) < len(ids):
        duplicate = next(i for i in ids if ids.count(i) > 1)
        raise InputError(f"image {duplicate!r} was scored twice: give every image a unique id")
    names = ("predicted", "labels", "outputs", "nan", "constant")
    tensors: dict[str, Any] = {name: torch.cat([getattr(curve, name) for curve in curves]) for name in names}
    joined = replace(first, ids=tuple(ids), **tensors)
    return joined.select(sorted(range(len(ids)), key=ids.__getitem__))


@dataclass(frozen=True)
class PerturbationRecords:
    """Recorded curves of an evaluation.

    Attributes:
        curves: By method, target, removal order and fill.
        forwards: Number of images passed through the model.
        settings: Settings besides the presets that change the numbers. Joined records must agree in them.
    """

    curves: Mapping[CurveKey, RecordedCurve] = field(default_factory=dict)
    forwards: ForwardCounts = field(default_factory=ForwardCounts)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def join(parts: Iterable[PerturbationRecords]) -> PerturbationRecords:
        """Join records of different images, different methods, or both, in any order."""
        parts = [part for part in parts if part.curves]
        if not parts:
            return PerturbationRecords()
        if any(dict(part.settings) != dict(parts[0].settings) for part in parts):
            settings = [dict(part.settings) for part in parts]
            raise InputError(f"records with different settings cannot be joined: {settings}")
        by_key: dict[CurveKey, list[RecordedCurve]] = {}
        for part in parts:
            for key, curve in part.curves.items():
                by_key.setdefault(key, []).append(curve)
        forwards = sum((part.forwards for part in parts), ForwardCounts())
        curves = {key: join_curves(by_key[key]) for key in sorted(by_key)}
        return PerturbationRecords(curves, forwards, parts[0].settings)

    def __add__(self, other: PerturbationRecords) -> PerturbationRecords:
        return PerturbationRecords.join([self, other])

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, sorted."""
        return tuple(sorted({key.method for key in self.curves}))

    @property
    def targets(self) -> tuple[MapTarget, ...]:
        """Targets that were evaluated: "predicted", "label", or both."""
        return tuple(sorted({key.target for key in self.curves}, reverse=True))

    def curve(self, curve: Curve, method: str, target: MapTarget, quantity: str) -> tuple[tuple[str, ...], Tensor]:
        """Image ids, and a quantity of ``QUANTITIES`` at each level of a curve, shape (n, L)."""
        recorded = self._recorded(curve, method, target)
        return recorded.ids, recorded.read(curve.removed(recorded.units), quantity, target)

    def _recorded(self, curve: Curve, method: str, target: MapTarget) -> RecordedCurve:
        key = CurveKey(method, target, curve.order, curve.fill)
        if key not in self.curves:
            known = ", ".join(sorted({"/".join(k) for k in self.curves}))
            raise InputError(f"no record of {'/'.join(key)}; available: {known or 'none'}")
        return self.curves[key]

    def scores(self, preset: Preset, method: str, target: MapTarget = "predicted") -> dict[str, Tensor]:
        """Compute every score of a preset by name, one value per image, float64, shape (n,)."""
        rule, morf_log_probs = find_area(preset.area), torch.empty(0)
        scores: dict[str, Tensor] = {}
        areas: dict[RemovalOrder, Tensor] = {}
        for curve in preset.curves:
            recorded = self._recorded(curve, method, target)
            counts = curve.removed(recorded.units)
            values = rule(recorded.read(counts, preset.quantity, target), curve.grid.shares(recorded.units))
            scores[curve.score_name] = values
            areas.setdefault(curve.order, values)
            if curve.order == "morf":
                morf_log_probs = recorded.at(counts)[..., 0].double()
        for extra in preset.extras:
            name = f"{extra}({preset.fills[0]})"
            if extra in ("aopc", "lodds"):
                scores[name] = aopc(morf_log_probs) if extra == "aopc" else lodds(morf_log_probs)
            else:
                scores[name] = srg(areas["lerf"], areas["morf"])
        return scores

    def sample_scores(self, preset: Preset, method: str, target: MapTarget = "predicted") -> SampleScores:
        """Scores of a preset by image id, for means, intervals and paired tests; columns are the scores' labels."""
        recorded = self._recorded(preset.curves[0], method, target)
        collected = SampleScores()
        values = {preset.label(name): v for name, v in self.scores(preset, method, target).items()}
        collected.add(recorded.ids, {"flat": recorded.constant.double(), **values})
        return collected

    def summary(self, preset: Preset, method: str, target: MapTarget = "predicted") -> dict[str, Any]:
        """Number of images, number of constant or non-finite maps, and the mean of each score under its label."""
        return self.sample_scores(preset, method, target).summary()
