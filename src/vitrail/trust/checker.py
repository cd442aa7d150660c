"""Check maps on the model and image they explain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.outputs import class_logits
from vitrail.errors import InputError, ModelError, OptionError, VitrailError
from vitrail.map_source import MapSource
from vitrail.methods import find
from vitrail.methods.cost import size_of
from vitrail.scores.agreement import spearman
from vitrail.scores.sanity import randomisation_steps, randomised
from vitrail.scores.sensitivity import RADIUS, noise_samples
from vitrail.targets import class_scores
from vitrail.trust.map_check import FAITHFUL, HARDLY, MapCheck, MapChecks
from vitrail.trust.null import moved_maps
from vitrail.trust.removal import DEFAULT_GRID, PatchRemoval, log_odds

#: Largest p-value of a faithful map, lowest similarity of a stable one, highest one of a class-specific one.
SIGNIFICANT, STABLE, SAME = 0.05, 0.5, HARDLY
TESTS = ("removal", "class", "noise", "model")


@dataclass(frozen=True)
class Budget:
    """How thorough a check is.

    Attributes:
        copies: Moved copies of each map.
        levels: Shares of the patches that are removed; the first is the one that is put into words.
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


#: Levels and statistic were chosen on the validation split of scenes and on half of the pets; see the documentation.
BUDGETS = {
    "quick": Budget(copies=49, levels=(0.1, 0.4), draws=2, reruns=60),
    "full": Budget(copies=199, levels=(0.1, 0.05, 0.2, 0.3, 0.4, 0.6), draws=8, reruns=None, keep=True),
}


def check_maps(
    source: MapSource,
    explanations: Mapping[str, Any],
    image: int,
    k: int,
    *,
    budget: str | Budget = "quick",
    tests: Sequence[str] = TESTS,
    removal: str | None = None,
    batch_size: int = 64,
    seed: int = 0,
    advance: Callable[[int], None] = lambda _: None,
) -> MapChecks:
    """Check one map of each method; see `vitrail.Explanation.check`."""
    if isinstance(budget, str) and budget not in BUDGETS:
        raise OptionError(f"budget={budget!r} is not one of {', '.join(map(repr, BUDGETS))}")
    unknown = [test for test in tests if test not in TESTS]
    if unknown:
        raise OptionError(f"test {unknown[0]!r} is not one of {', '.join(map(repr, TESTS))}")
    images = source.model_inputs.image
    if images is None:
        raise InputError("maps of texts cannot be checked yet: the check removes patches of images")
    first = next(iter(explanations.values()))
    if not (0 <= image < first.maps.shape[0] and 0 <= k < first.maps.shape[1]):
        raise OptionError(
            f"image={image}, k={k} does not exist: there are {first.maps.shape[0]} images with "
            f"{first.maps.shape[1]} targets each"
        )
    chosen = BUDGETS[budget] if isinstance(budget, str) else budget
    grid = source.structure.layout.grid or DEFAULT_GRID
    remove = PatchRemoval(source.loaded, images[image : image + 1], grid, removal, batch_size, advance)
    run = _CheckRun(source, first, image, k, chosen, remove, seed, frozenset(tests))
    return MapChecks({name: run(explanation) for name, explanation in explanations.items()})


def patch_values(explanation: Any, image: int, k: int, grid: tuple[int, int]) -> Tensor:
    """A map as relevance of patches, shape (rows, columns): as the method computed it where it did, else pixel means.

    Args:
        explanation: A `vitrail.Explanation`.
        image: Which image.
        k: Which target.
        grid: Rows and columns of patches.
    """
    own: Tensor = explanation.grid[image, k]
    if tuple(own.shape) != grid:
        own = F.adaptive_avg_pool2d(explanation.maps[image, k][None, None].float(), grid)[0, 0]
    return own.double().nan_to_num(0.0, 0.0, 0.0)


class _CheckRun:
    """Checks maps of one image and target; what does not depend on the method is evaluated once."""

    def __init__(
        self,
        source: MapSource,
        first: Any,
        image: int,
        k: int,
        budget: Budget,
        remove: PatchRemoval,
        seed: int,
        tests: frozenset[str],
    ) -> None:
        self.source, self.image, self.k, self.budget = source, image, k, budget
        self.remove, self.seed, self.tests, self.grid = remove, seed, tests, remove.grid
        self.targets, self.groups = first.targets, first.groups
        every = torch.arange(self.grid[0] * self.grid[1], device=remove.images.device)[None]
        whole = self._evaluate(every)
        self.probability = float(self._shown(whole))
        self.controls = {name: self._curves(values[None], False)[0][0] for name, values in self._control_maps().items()}
        self.other = self._other_class(first)
        self.label = first.label(image, k).rpartition(" (")[0] or first.label(image, k)
        self.classes = first.classes

    def __call__(self, explanation: Any) -> MapCheck:
        before = self.remove.forwards
        values = patch_values(explanation, self.image, self.k, self.grid)
        copies = moved_maps(values, self.budget.copies, self.seed)
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
            is_probability=self.targets is not None,
        )  # fmt: skip

    def _score(self, output: Any) -> Tensor:
        """Log-odds of the target, or the value of the target function, shape (n,)."""
        if self.source.target is not None:
            values = self.source.target(output)
            return values if values.dim() == 1 else values[:, self.k]
        logits = class_logits(self.source.loaded.module, output)
        if logits is None:
            raise ModelError("the model returned no class scores for an image with removed patches")
        scores = class_scores(logits.double(), "logprob", self.groups)
        return log_odds(scores[:, self.targets[self.image, self.k]])

    def _evaluate(self, keep: Tensor) -> Tensor:
        return self.remove(0, keep, self._score)

    def _shown(self, scores: Tensor) -> Tensor:
        """Scores as they are reported: probabilities, or values of the target function."""
        return scores.sigmoid() if self.source.target is None else scores

    def _curves(self, maps: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """Scores with the most relevant patches removed, and if wanted with them only, shape (n, levels) each."""
        patches = maps[0].numel()
        # Ties are broken at random, since the order of the patches would favour one corner of the image.
        noise = torch.rand(patches, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)
        order = torch.stack([_descending(one.flatten(), noise.to(one)) for one in maps]).to(self.remove.images.device)
        removed, kept = [], []
        for level in self.budget.levels:
            count = min(max(1, round(level * patches)), patches - 1)
            removed.append(self._evaluate(order[:, count:].sort(1).values))
            if keep:
                kept.append(self._evaluate(order[:, :count].sort(1).values))
        joined = torch.stack(removed, 1).cpu()
        return joined, torch.stack(kept, 1).cpu() if kept else joined[:0]

    def _control_maps(self) -> dict[str, Tensor]:
        rows, columns = self.grid
        y, x = ((torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5 for n in (rows, columns))
        return {"centre": -(y[:, None].square() + x[None].square())}

    def _other_class(self, first: Any) -> int | None:
        """The likeliest class beside the explained one, or None where the target is a function."""
        if self.source.target is not None or first.logits is None or first.logits.shape[1] < 2:
            return None
        own = int(first.targets[self.image, self.k])
        count = first.logits.shape[1]
        members = {own} if own < count else set(self.groups[own - count].indices)
        ranked = first.logits[self.image].topk(min(len(members) + 1, count)).indices.tolist()
        return next((c for c in ranked if c not in members), None)

    def _name(self, index: int) -> str:
        return self.classes[index].split(",")[0] if self.classes else f"class {index}"

    def _similarities(self, explanation: Any, values: Tensor) -> tuple[dict[str, float], float, list[str]]:
        """Rank correlations with maps computed again, their cost in forward passes, and the tests that were skipped."""
        found: dict[str, float] = {}
        skipped: list[str] = []
        spent, each = 0.0, self._cost(explanation)
        image = self.remove.images

        def similarity(name: str, images: Tensor, **changed: Any) -> None:
            nonlocal spent
            target = changed.pop("target", self._own_target(explanation))
            options = {**explanation.options, **changed}
            again = self.source.explain(images, {explanation.method: options}, target)
            spent += each * len(images)
            other = torch.stack(
                [patch_values(one, b, 0, self.grid) for one in again.values() for b in range(len(images))]
            )
            rho = spearman(values.expand_as(other).flatten(1).cpu(), other.flatten(1).cpu()).nan_to_num(0.0)
            found[name] = float(rho.min())

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
                similarity("class", image, target=[[self.other]])
            if "noise" in self.tests and affordable("noise", self.budget.draws):
                noisy = [image + noise for noise in noise_samples(image, RADIUS, self.budget.draws, self.seed)]
                similarity("noise", torch.cat(noisy))
            if "noise" in self.tests and "seed" in explanation.options and affordable("seed", 1):
                similarity("seed", image, seed=explanation.options["seed"] + 1)
            if "model" in self.tests and affordable("model", 2):
                self._randomise(similarity, image)
        except VitrailError as error:
            skipped.append(f"class: {error}")
        return found, spent, skipped

    def _randomise(self, similarity: Callable[..., None], image: Tensor) -> None:
        steps = {step.name: step.parameters for step in randomisation_steps(self.source.loaded.module, image)}
        names = list(steps)
        head, last = steps[names[0]], steps[names[min(1, len(names) - 1)]]
        with randomised(self.source.loaded.module, head, seed=self.seed):
            similarity("head", image)
        with randomised(self.source.loaded.module, (*head, *last), seed=self.seed):
            similarity("block", image)

    def _own_target(self, explanation: Any) -> Any:
        if self.source.target is not None:
            return _nth(self.source.target, self.k)
        own, count = int(explanation.targets[self.image, self.k]), explanation.logits.shape[1]
        return [[own if own < count else self.groups[own - count]]]

    def _cost(self, explanation: Any) -> float:
        """Forward passes for one map: a forward and a backward pass, and what the method evaluates beyond them."""
        _, method, options = find(explanation.method, None)
        options = {**options, **{k: v for k, v in explanation.options.items() if k in options}}
        return 3.0 + method.cost(options, size_of(self.source.structure), 1).forwards


def _nth(target: Callable[[Any], Tensor], k: int) -> Callable[[Any], Tensor]:
    def value(output: Any) -> Tensor:
        values = target(output)
        return values if values.dim() == 1 else values[:, k]

    return value


def _descending(values: Tensor, ties: Tensor) -> Tensor:
    """Positions by falling value; of equal values, by ``ties``."""
    shuffled = ties.argsort()
    return shuffled[values[shuffled].argsort(descending=True, stable=True)]


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(float(v) for v in values)
