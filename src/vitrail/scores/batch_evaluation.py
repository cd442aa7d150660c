"""Perturbation tests of one batch of images: orders, levels, perturbed images and the model's outputs for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrail.capture.removal import TokenDropper
from vitrail.models.class_group import ClassGroup
from vitrail.scores.fills import TOKENS, Normalisation, find_fill
from vitrail.scores.perturbation import (
    CurveKey,
    ForwardCounts,
    PerturbationRecords,
    RecordedCurve,
    summarise_outputs,
)
from vitrail.scores.presets import MapTarget, Preset
from vitrail.scores.ranks import RemovalOrder, TieOrder, distinct_rows, kept_patches, patch_means, rank, removed_ranks

#: For each removal order and fill, the numbers of pixels (or patches) to remove.
LevelCounts = dict[tuple[RemovalOrder, str], tuple[int, ...]]
MapsByMethod = Mapping[str, Tensor]


class PerturbedModel(Protocol):
    """The attributes of an evaluator that the evaluation of a batch uses.

    Attributes:
        presets: The presets.
        batch: Most images in one forward pass.
        ties: Order of tied pixels.
        seed: Seed of the tie order and of the noise fill.
        normalisation: Mean and standard deviation of the images.
        settings: Settings that are recorded.
        token_dropper: Drops tokens, where a preset does.
        empty_log_probs: The model's outputs for empty images, which all batches share.
    """

    presets: tuple[Preset, ...]
    batch: int
    ties: TieOrder
    seed: int
    normalisation: Normalisation
    settings: dict[str, Any]
    token_dropper: TokenDropper | None
    empty_log_probs: dict[Any, Tensor]

    def log_probs(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Run the model; log-probabilities, shape (N, C). With ``keep``, of these patches only."""
        ...


@dataclass
class MethodMaps:
    """Maps of one method and target, the images they belong to, and the model's outputs."""

    method: str
    target: MapTarget
    maps: Tensor
    owners: Tensor
    outputs: dict[tuple[RemovalOrder, str], Tensor]
    nan: Tensor
    constant: Tensor


class BatchEvaluation:
    """Evaluation of all presets on at most one batch of images.

    Args:
        evaluator: The model and the settings.
        images: Normalised for the model, shape (b, channels, height, width).
        labels: True classes, shape (b,); −1 where unknown.
        predicted: The explained classes, shape (b,), or None for the model's predictions.
        groups: Groups of classes, see `vitrail.scores.Evaluator`.
    """

    def __init__(
        self,
        evaluator: PerturbedModel,
        images: Tensor,
        labels: Tensor,
        predicted: Tensor | None,
        groups: Sequence[ClassGroup],
    ) -> None:
        self.evaluator, self.images, self.labels, self.groups = evaluator, images, labels, groups
        self.pixels = int(images.shape[2] * images.shape[3])
        log_probs = evaluator.log_probs(images)
        self.predicted = log_probs.argmax(1) if predicted is None else predicted
        self.classes = log_probs.shape[1]
        self.unperturbed = summarise_outputs(log_probs, self.predicted, labels, groups)
        self.forwards = ForwardCounts(unperturbed=len(images))
        self.levels: dict[MapTarget, LevelCounts] = {target: self._levels(target) for target in ("predicted", "label")}
        self.fill_images: dict[str, Tensor] = {}
        self.empty_outputs: dict[str, Tensor] = {}

    def units(self, fill: str) -> int:
        """Number of pixels, or of patches where tokens are dropped."""
        dropper = self.evaluator.token_dropper
        return dropper.patches if fill == TOKENS and dropper else self.pixels

    def _levels(self, target: MapTarget) -> LevelCounts:
        """Levels of all presets that score maps of a target."""
        levels: dict[tuple[RemovalOrder, str], set[int]] = {}
        for curve in (c for p in self.evaluator.presets if target in p.explains for c in p.curves):
            levels.setdefault((curve.order, curve.fill), set()).update(curve.removed(self.units(curve.fill)))
        return {key: tuple(sorted(counts)) for key, counts in levels.items()}

    def run(
        self, maps: MapsByMethod, label_maps: MapsByMethod, class_agnostic: frozenset[str], ids: tuple[str, ...]
    ) -> PerturbationRecords:
        """Evaluate all methods; class-agnostic ones have one map for both targets."""
        every = torch.arange(len(self.images), device=self.images.device)
        jobs = [self._method_maps(name, "predicted", values, every) for name, values in maps.items()]
        needs_label_maps = bool(self.levels["label"])
        separate_maps = {name: m for name, m in label_maps.items() if name not in class_agnostic and needs_label_maps}
        # nonzero() is the only synchronisation of host and device: it decides which label maps to evaluate.
        differing = (self.predicted != self.labels).nonzero()[:, 0] if separate_maps else every[:0]
        for name, values in separate_maps.items():
            rows = differing if name in maps else every
            if len(rows):
                jobs.append(self._method_maps(name, "label", values.to(rows.device)[rows], rows))
        for levels, jobs_of_levels in self._by_levels(jobs):
            self._evaluate(levels, jobs_of_levels)
        by_key = {(job.method, job.target): job for job in jobs}
        curves: dict[CurveKey, RecordedCurve] = {}
        for name in maps:
            curves |= self._recorded_curves(ids, by_key[name, "predicted"], None, "predicted")
        for name in label_maps if needs_label_maps else ():
            base, other = by_key.get((name, "predicted")), by_key.get((name, "label"))
            base, other = (base, other) if base is not None else (other, None)
            assert base is not None
            curves |= self._recorded_curves(ids, base, other, "label")
        return PerturbationRecords(_to_cpu(curves), self.forwards, self.evaluator.settings)

    def _method_maps(self, method: str, target: MapTarget, maps: Tensor, owners: Tensor) -> MethodMaps:
        maps = maps.to(self.images.device).view(len(maps), *self.images.shape[2:])
        return MethodMaps(method, target, maps, owners, {}, owners, owners)

    def _by_levels(self, jobs: Sequence[MethodMaps]) -> Iterator[tuple[LevelCounts, list[MethodMaps]]]:
        """Jobs that are evaluated at the same levels, together: all of them, unless presets differ in their targets."""
        if self.levels["predicted"] == self.levels["label"]:
            yield self.levels["predicted"], list(jobs)
            return
        for target, levels in self.levels.items():
            yield levels, [job for job in jobs if job.target == target]

    def _evaluate(self, levels: LevelCounts, jobs: list[MethodMaps]) -> None:
        """Rank the maps once, then evaluate every removal order, fill and level of those that differ in their ranks."""
        if not jobs:
            return
        ties, seed = self.evaluator.ties, self.evaluator.seed
        owners = torch.cat([job.owners for job in jobs])
        ranks = torch.empty(len(owners), self.pixels, dtype=torch.int32, device=owners.device)
        starts = [0]
        for job in jobs:
            ranked = rank(job.maps, ties, seed)
            starts.append(starts[-1] + len(job.owners))
            ranks[starts[-2] : starts[-1]], job.nan, job.constant = ranked.ranks, ranked.nan, ranked.constant
        dropper = self.evaluator.token_dropper
        drops_tokens = any(fill == TOKENS for _, fill in levels)
        # Where tokens are dropped, patches are ordered by their means, which equal ranks of pixels do not fix.
        distinct, again = (None, None) if drops_tokens else distinct_rows(ranks, owners)
        if distinct is not None:
            ranks, owners = ranks[distinct], owners[distinct]
        outputs: dict[tuple[RemovalOrder, str], Tensor] = {}
        for fill in dict.fromkeys(fill for _, fill in levels):
            units = self.units(fill)
            inner = [(o, k) for (o, f), counts in levels.items() if f == fill for k in counts if 0 < k < units]
            index = {level: i for i, level in enumerate(inner)}
            if fill == TOKENS:
                assert dropper is not None
                means = torch.cat([patch_means(job.maps, (dropper.grid[0], dropper.grid[1])) for job in jobs])
                perturbed = self._drop_tokens(rank(means, ties, seed).ranks, owners, inner)
            else:
                perturbed = self._fill_pixels(ranks, owners, inner, fill)
            for (order, name), counts in levels.items():
                if name == fill:
                    empty = self._empty(fill) if units in counts else self.unperturbed
                    ends = {0: self.unperturbed, units: empty}
                    columns = [ends[k][owners] if k in ends else perturbed[:, index[order, k]] for k in counts]
                    joined = torch.stack(columns, 1)
                    outputs[order, fill] = joined if again is None else joined[again]
        for job, start, stop in zip(jobs, starts, starts[1:], strict=False):
            job.outputs = {key: values[start:stop] for key, values in outputs.items()}

    def _fill_pixels(self, ranks: Tensor, owners: Tensor, levels: list[tuple[RemovalOrder, int]], fill: str) -> Tensor:
        """Outputs for every map at every level with removed pixels filled, shape (N, levels, 5)."""
        device, each, size = ranks.device, len(levels), self.images.shape[2:]
        ranges = [removed_ranks(k, self.pixels, order) for order, k in levels]
        edges = torch.tensor(ranges, dtype=torch.int32).to(device)
        fill_image, shared = self._fill_image(fill), find_fill(fill).shared
        outputs = self.unperturbed.new_empty(len(ranks) * each, self.unperturbed.shape[1])
        for start in range(0, len(outputs), self.evaluator.batch):
            stop = min(start + self.evaluator.batch, len(outputs))
            index = torch.arange(start, stop, device=device)
            row = index // each
            owner, edge = owners[row], edges[index - row * each]
            row_ranks = ranks[row]
            removed = (row_ranks >= edge[:, :1]) & (row_ranks < edge[:, 1:])
            replacement = fill_image if shared else fill_image[owner]
            perturbed = torch.where(removed.view(-1, 1, *size), replacement, self.images[owner])
            log_probs = self.evaluator.log_probs(perturbed)
            outputs[start:stop] = self._summarise(log_probs, owner)
        self.forwards += ForwardCounts(perturbed=len(outputs))
        return outputs.view(len(ranks), each, outputs.shape[1])

    def _drop_tokens(self, ranks: Tensor, owners: Tensor, levels: list[tuple[RemovalOrder, int]]) -> Tensor:
        """Outputs with patches dropped; images of one level have equally many tokens and form one batch."""
        outputs = self.unperturbed.new_empty(len(ranks), len(levels), self.unperturbed.shape[1])
        for index, (order, count) in enumerate(levels):
            for start in range(0, len(ranks), self.evaluator.batch):
                rows = slice(start, start + self.evaluator.batch)
                owner = owners[rows]
                log_probs = self.evaluator.log_probs(self.images[owner], kept_patches(ranks[rows], count, order))
                outputs[rows, index] = self._summarise(log_probs, owner)
        self.forwards += ForwardCounts(perturbed=len(ranks) * len(levels))
        return outputs

    def _summarise(self, log_probs: Tensor, owner: Tensor) -> Tensor:
        return summarise_outputs(log_probs, self.predicted[owner], self.labels[owner], self.groups)

    def _fill_image(self, fill: str) -> Tensor:
        if fill not in self.fill_images:
            image = find_fill(fill).fill_image(self.images, self.evaluator.normalisation, self.evaluator.seed)
            self.fill_images[fill] = image
        return self.fill_images[fill]

    def _empty(self, fill: str) -> Tensor:
        """Outputs for images with all pixels removed, shape (b, 5)."""
        if fill not in self.empty_outputs:
            if fill != TOKENS and not find_fill(fill).shared:
                log_probs = self.evaluator.log_probs(self._fill_image(fill))
                self.forwards += ForwardCounts(empty=len(log_probs))
            else:
                log_probs = self._empty_shared(fill).expand(len(self.images), -1)
            self.empty_outputs[fill] = summarise_outputs(log_probs, self.predicted, self.labels, self.groups)
        return self.empty_outputs[fill]

    def _empty_shared(self, fill: str) -> Tensor:
        """Log-probabilities of the empty image, cached for the whole data set."""
        cache, image = self.evaluator.empty_log_probs, self.images[:1]
        key = (fill, tuple(image.shape), image.device)
        if key not in cache:
            if fill == TOKENS:
                no_patches = torch.empty(1, 0, dtype=torch.long, device=image.device)
                cache[key] = self.evaluator.log_probs(image, no_patches)
            else:
                cache[key] = self.evaluator.log_probs(self._fill_image(fill).expand_as(image))
            self.forwards += ForwardCounts(empty_shared=1)
        return cache[key]

    def _recorded_curves(
        self, ids: tuple[str, ...], base: MethodMaps, other: MethodMaps | None, target: MapTarget
    ) -> dict[CurveKey, RecordedCurve]:
        """Curves of one method and target: those of ``base``, with the rows of ``other`` replaced."""
        curves, levels = {}, self.levels[base.target]

        def merged(values: Tensor, replacement: Tensor | None) -> Tensor:
            if other is not None and replacement is not None:
                values = values.clone()
                values[other.owners] = replacement
            return values

        nan = merged(base.nan, None if other is None else other.nan)
        constant = merged(base.constant, None if other is None else other.constant)
        groups = {self.classes + i: group for i, group in enumerate(self.groups)}
        for (order, fill), counts in self.levels[target].items():
            index = {k: i for i, k in enumerate(levels[order, fill])}
            at_levels = base.outputs[order, fill][:, [index[k] for k in counts]]
            outputs = merged(at_levels, None if other is None else other.outputs[order, fill])
            key = CurveKey(base.method, target, order, fill)
            curves[key] = RecordedCurve(
                ids, self.units(fill), counts, self.predicted, self.labels, outputs, nan, constant, groups
            )
        return curves


def _to_cpu(curves: Mapping[CurveKey, RecordedCurve]) -> dict[CurveKey, RecordedCurve]:
    """Copy all curves from the device with one synchronisation."""
    names = ("predicted", "labels", "outputs", "nan", "constant")
    tensors = {id(tensor): tensor for curve in curves.values() for tensor in (getattr(curve, n) for n in names)}
    copies = {key: tensor.to("cpu", non_blocking=True) for key, tensor in tensors.items()}
    device = next(iter(tensors.values())).device if tensors else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
    elif device.type != "cpu":  # other devices: copies that are waited for one by one
        copies = {key: tensor.cpu() for key, tensor in tensors.items()}
    return {
        key: replace(curve, **{name: copies[id(getattr(curve, name))] for name in names})
        for key, curve in curves.items()
    }
