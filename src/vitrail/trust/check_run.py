"""Check maps of one input and target: the base of checks of images and of texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.errors import VitrailError
from vitrail.inputs.map_source import CheckSource
from vitrail.methods import find
from vitrail.methods.cost import ModelSize
from vitrail.scores.agreement import spearman
from vitrail.scores.sanity import randomisation_steps, randomised
from vitrail.targets.named_target import NamedTarget
from vitrail.trust.input_removal import InputRemoval
from vitrail.trust.map_check import FAITHFUL, HARDLY, MapCheck

#: Largest p-value of a faithful map, lowest similarity of a stable one, highest one of a class-specific one.
SIGNIFICANT, STABLE, SAME = 0.05, 0.5, HARDLY
TESTS = ("removal", "class", "noise", "model")


@dataclass(frozen=True)
class Budget:
    """How thorough a check is.

    Attributes:
        copies: Moved copies of each map.
        levels: Shares of the patches that are removed; the first is reported in the sentences.
        draws: Draws of noise.
        keep: Whether copies are also evaluated with their most relevant patches only (insertion).
        reruns: Most forward passes, of one image, for computing maps again; None for no limit.
    """

    copies: int
    levels: tuple[float, ...]
    draws: int
    reruns: int | None
    keep: bool = False

    @property
    def removals(self) -> int:
        """Forward passes for one map with removed patches."""
        kept = self.copies + 1 if self.keep else 1
        return len(self.levels) * (self.copies + 1 + kept)


#: Levels and statistic were chosen on the validation split of scenes and on 20 pets; see the documentation.
BUDGETS = {
    "quick": Budget(copies=49, levels=(0.1, 0.4), draws=2, reruns=60),
    "full": Budget(copies=199, levels=(0.1, 0.05, 0.2, 0.3, 0.4, 0.6), draws=8, reruns=None, keep=True),
}


@dataclass(frozen=True)
class CheckSettings:
    """Settings of a check.

    Attributes:
        image: Which input.
        k: Which target.
        budget: How thorough the check is.
        seed: Seed of moved copies, noise and random weights.
        tests: Some of ``TESTS``.
    """

    image: int
    k: int
    budget: Budget
    seed: int
    tests: frozenset[str]


class CheckRun(ABC):
    """Checks maps of one input and target; what does not depend on the method is evaluated once.

    Args:
        source: The model and inputs.
        first: One of the explanations that are checked.
        settings: What is checked, and how.
        remove: Evaluates the input with some patches or words kept.
    """

    #: What is removed.
    unit = "patches"

    def __init__(self, source: CheckSource, first: Any, settings: CheckSettings, remove: InputRemoval) -> None:
        self.source, self.remove = source, remove
        self.image, self.k, self.budget = settings.image, settings.k, settings.budget
        self.seed, self.tests = settings.seed, settings.tests
        self.targets, self.groups, self.classes = first.targets, first.groups, first.classes
        self.scores = first.scores
        named = first.named_targets
        self.named: NamedTarget | None = None if named is None else named[self.image][self.k].pinned
        whole = self._evaluate(torch.arange(remove.count, device=remove.device)[None])
        self.probability = float(self._shown(whole))
        self.controls = {name: self._curves(values[None], False)[0][0] for name, values in self._control_maps().items()}
        self.other: int | NamedTarget | None = self._other_class(first)
        self.label = first.target_name(self.image, self.k)

    @property
    @abstractmethod
    def inputs(self) -> Any:
        """The input, in a form that ``source.explain`` takes."""

    @abstractmethod
    def _values(self, explanation: Any, image: int | None = None, k: int | None = None) -> Tensor:
        """A map as relevance of patches or words; by default of the input and target that are checked."""

    @abstractmethod
    def _copies(self, values: Tensor) -> Tensor:
        """Moved copies of a map."""

    @abstractmethod
    def _control_maps(self) -> dict[str, Tensor]:
        """Maps that do not depend on the model."""

    @abstractmethod
    def _score(self, output: Any) -> Tensor:
        """Log-odds of the target, or the value of the target function, shape (n,)."""

    @abstractmethod
    def _noisy(self) -> Any:
        """The input with small noise, several times; None where it cannot be changed a little."""

    @abstractmethod
    def _sample(self) -> Tensor | ModelInputs:
        """What the model takes, to find its parameters."""

    @abstractmethod
    def _size(self) -> ModelSize:
        """What the cost of a method depends on."""

    def __call__(self, explanation: Any) -> MapCheck:
        """Check one method's map."""
        before = self.remove.forwards
        values = self._values(explanation)
        copies = self._copies(values)
        removed, kept = self._curves(torch.cat([values[None], copies]), self.budget.keep)
        if not self.budget.keep:
            kept = self._curves(values[None], True)[1]
        null_mean, null_std = removed[1:].mean(0), removed[1:].std(0).clamp_min(1e-9)
        statistics = ((null_mean - removed) / null_std).mean(1)
        scale = statistics[1:].std().clamp_min(1e-9)
        statistics, null = statistics / scale, statistics[1:] / scale
        constant = bool(explanation.constant[self.image, self.k])
        controls = {n: float(((null_mean - v) / null_std).mean() / scale) for n, v in self.controls.items()}
        removed, kept = self._shown(removed), self._shown(kept)
        p_value = (1 + int((null >= statistics[0]).sum())) / (1 + len(null))
        spent = float(self.remove.forwards - before)
        similarity, cost, skipped = self._similarities(explanation, values)
        failures = []
        if "removal" in self.tests and (constant or p_value > SIGNIFICANT):
            failures.append("no better than chance")
        if any(value < STABLE for name, value in similarity.items() if name in ("noise", "seed")):
            failures.append("unstable")
        same = [value > SAME for name, value in similarity.items() if name in ("class", "head")]
        if same and all(same):
            failures.append("not class-specific")
        return MapCheck(
            method=explanation.method, label=self.label, verdict=failures[0] if failures else FAITHFUL,
            failures=tuple(failures), p_value=p_value, removal=self.remove.by, levels=self.budget.levels,
            probability=self.probability, removed=_floats(removed[0]), kept=_floats(kept[0]),
            null_removed=_floats(removed[1:].mean(0)), null_kept=_floats(kept[1:].mean(0)) if len(kept) > 1 else (),
            copies=len(null), statistic=float(statistics[0]), controls=controls,
            other_class="" if self.other is None else self._name(self.other),
            class_similarity=similarity.get("class"), noise_similarity=similarity.get("noise"),
            seed_similarity=similarity.get("seed"), head_similarity=similarity.get("head"),
            block_similarity=similarity.get("block"), forwards=spent + cost, skipped=tuple(skipped),
            is_probability=self._has_probabilities, unit=self.unit,
        )  # fmt: skip

    def _evaluate(self, keep: Tensor) -> Tensor:
        return self.remove(keep, self._score)

    @property
    def _has_probabilities(self) -> bool:
        """Whether the reported values are probabilities."""
        return self.targets is not None

    def _shown(self, scores: Tensor) -> Tensor:
        """Scores as they are reported: probabilities, or values of the target function."""
        return scores.sigmoid() if self.source.target is None else scores

    def _curves(self, maps: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """Scores with the most relevant patches removed, and, if ``keep``, with them only, shape (n, levels) each."""
        patches = maps[0].numel()
        # Ties are broken at random, since the order of the patches would favour one corner of the image.
        noise = torch.rand(patches, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        order = torch.stack([_descending(one.flatten(), noise.to(one)) for one in maps]).to(self.remove.device)
        removed, kept = [], []
        for level in self.budget.levels:
            count = min(max(1, round(level * patches)), patches - 1)
            removed.append(self._evaluate(order[:, count:].sort(1).values))
            if keep:
                kept.append(self._evaluate(order[:, :count].sort(1).values))
        joined = torch.stack(removed, 1).cpu()
        return joined, torch.stack(kept, 1).cpu() if kept else joined[:0]

    def _other_class(self, first: Any) -> int | NamedTarget | None:
        """The most probable class or candidate other than the explained one, or None if the target is a function."""
        if self.source.target is not None or first.logits is None or first.logits.shape[1] < 2:
            return None
        explained = int(first.targets[self.image, self.k])
        count = first.logits.shape[1]
        members = {explained} if explained < count else set(self.groups[explained - count].indices)
        ranked = first.logits[self.image].topk(min(len(members) + 1, count)).indices.tolist()
        return next((c for c in ranked if c not in members), None)

    def _name(self, index: int | NamedTarget) -> str:
        if isinstance(index, NamedTarget):
            return str(index)
        return self.classes[index].split(",")[0] if self.classes else f"class {index}"

    def _similarities(self, explanation: Any, values: Tensor) -> tuple[dict[str, float], float, list[str]]:
        """Rank correlations with maps computed again, their cost in forward passes, and the tests that were skipped."""
        similarities: dict[str, float] = {}
        skipped: list[str] = []
        spent, each = 0.0, self._cost(explanation)

        def similarity(name: str, inputs: Any, **changed: Any) -> None:
            nonlocal spent
            target = changed.pop("target", self._own_target(explanation))
            options = {**explanation.options, **changed}
            again = self.source.explain(inputs, {explanation.method: options}, target)
            count = inputs.batch if isinstance(inputs, ModelInputs) else len(inputs)
            spent += each * count
            other = torch.stack([self._values(one, b, 0) for one in again.values() for b in range(count)])
            rho = spearman(values.expand_as(other).flatten(1).cpu(), other.flatten(1).cpu()).nan_to_num(0.0)
            similarities[name] = float(rho.min())

        def affordable(name: str, count: int) -> bool:
            limit = self.budget.reruns
            if limit is None or spent + count * each <= limit:
                return True
            skipped.append(f"{name}: {count} maps of {each:.0f} forward passes each exceed the budget")
            return False

        try:
            if "class" in self.tests and self.other is None:
                skipped.append("class: the target is a function or the only class")
            elif "class" in self.tests and affordable("class", 1):
                similarity("class", self.inputs, target=[[self.other]])
            noisy = self._noisy() if "noise" in self.tests else None
            if "noise" in self.tests and noisy is None:
                skipped.append("noise: a text cannot be changed a little")
            elif "noise" in self.tests and affordable("noise", self.budget.draws):
                similarity("noise", noisy)
            if "noise" in self.tests and "seed" in explanation.options and affordable("seed", 1):
                similarity("seed", self.inputs, seed=explanation.options["seed"] + 1)
            if "model" in self.tests and affordable("model", 2):
                self._randomise(similarity)
        except VitrailError as error:
            skipped.append(f"class: {error}")
        return similarities, spent, skipped

    def _randomise(self, similarity: Callable[..., None]) -> None:
        module = self.source.loaded.module
        steps = {step.name: step.parameters for step in randomisation_steps(module, self._sample())}
        names = list(steps)
        head, last = steps[names[0]], steps[names[min(1, len(names) - 1)]]
        with randomised(module, head, seed=self.seed):
            similarity("head", self.inputs)
        with randomised(module, (*head, *last), seed=self.seed):
            similarity("block", self.inputs)

    def _own_target(self, explanation: Any) -> Any:
        if self.named is not None:
            return self.named
        if self.source.target is not None:
            return _nth(self.source.target, self.k)
        explained, count = int(explanation.targets[self.image, self.k]), explanation.logits.shape[1]
        return [[explained if explained < count else self.groups[explained - count]]]

    def _cost(self, explanation: Any) -> float:
        """Forward passes for one map: a forward and a backward pass, and what the method evaluates beyond them."""
        _, method, options = find(explanation.method, None)
        options = {**options, **{k: v for k, v in explanation.options.items() if k in options}}
        each = 3.0 + method.cost(options, self._size(), 1).forwards
        smoothing = explanation.smoothing
        return each if smoothing is None else 1.0 + smoothing.copies * each


def _nth(target: Callable[[Any], Tensor], k: int) -> Callable[[Any], Tensor]:
    def value(output: Any) -> Tensor:
        values = target(output)
        return values if values.dim() == 1 else values[:, k]

    return value


def _descending(values: Tensor, ties: Tensor) -> Tensor:
    """Positions sorted by decreasing value; equal values are sorted by ``ties``."""
    shuffled = ties.argsort()
    return shuffled[values[shuffled].argsort(descending=True, stable=True)]


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
