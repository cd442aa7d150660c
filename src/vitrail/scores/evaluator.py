"""Perturbation tests of many methods at once, each picture shown to the model only once.

What is shared, exactly: one forward of the untouched picture serves all methods, orders, classes and scores; a picture
with nothing left under a fill that is the same everywhere is one forward for the whole data set, and under a blur one
for each picture; levels that several presets ask for are run once (the 10 % grid lies inside the 5 % grid, deletion
under a constant fill is MoRF, insertion into it LeRF); and where the label is the predicted class, or a method gives
the same map for both, its maps are run once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.inputs import ModelInputs, fields_of
from vitrail.capture.outputs import class_logits
from vitrail.errors import InputError, OptionError, TargetError
from vitrail.models.loaded import LoadedModel, describe
from vitrail.models.preprocess import Preprocess
from vitrail.scores.fills import TOKENS, Normal, find_fill
from vitrail.scores.perturbation import Forwards, Key, Records, Strip, note
from vitrail.scores.presets import Mode, Preset, find_presets
from vitrail.scores.ranks import Order, Ties, rank, window
from vitrail.scores.tokens import TokenDrop, kept, patch_means

#: For each order and fill, how many pixels (or patches) to remove.
Wanted = dict[tuple[Order, str], tuple[int, ...]]
Maps = Mapping[str, Tensor]


@dataclass
class _Job:
    """Maps of one method to run, and which pictures they belong to."""

    method: str
    mode: Mode
    maps: Tensor
    owners: Tensor
    notes: dict[tuple[Order, str], Tensor]
    nan: Tensor
    flat: Tensor


class Evaluator:
    """Runs presets on a model; call it with pictures and maps, as often as there are batches.

    Args:
        model: Any model that gives class scores for a batch of images, or what ``load`` returned. It is held in
            evaluation mode for the time of a call and otherwise left alone; its weights must not change between calls,
            since the answer to an empty picture is remembered.
        presets: Names or presets; ``chefer21-mean`` is chefer21 with another fill.
        batch: Most pictures in one forward pass; memory grows with it and with nothing else.
        precision: Run the model in this precision by autocast instead of its own. Softmax and log are in float32.
        ties: How tied pixels are ordered; see `vitrail.scores.ranks`.
        seed: Of the order of ties and of the noise fill.
        preprocess: How the images were normalised, where the model does not say.
        advance: Called with a number of pictures whenever the model has seen that many more, for progress.

    Example:
        >>> from vitrail.models.preprocess import Preprocess
        >>> from vitrail.testing import tiny_vit
        >>> seen = Preprocess((32, 32), (0.5,) * 3, (0.5,) * 3)
        >>> evaluate = Evaluator(tiny_vit(), "chefer21", preprocess=seen)
        >>> images, maps = torch.randn(4, 3, 32, 32), {"random": torch.rand(4, 32, 32)}
        >>> records = evaluate(images, maps, labels=torch.tensor([0, 1, 2, 3]))
        >>> records.forwards.total, len(records.strips)
        (76, 2)
    """

    def __init__(
        self,
        model: nn.Module | LoadedModel,
        presets: str | Preset | Iterable[str | Preset] = "chefer21",
        *,
        batch: int = 256,
        precision: torch.dtype | None = None,
        ties: Ties = "random",
        seed: int = 0,
        preprocess: Preprocess | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        if batch < 1:
            raise OptionError(f"batch={batch} must be at least 1")
        about = describe(model)
        given = preprocess or (about.preprocess if isinstance(about.preprocess, Preprocess) else None)
        self.model, self.presets, self.batch = about.module, find_presets(presets), batch
        self.precision, self.ties, self.seed = precision, ties, seed
        self.normal = Normal() if given is None else Normal(given.mean, given.std)
        self.advance = advance
        self.settings = {
            "model": about.name, "precision": str(precision), "ties": ties, "seed": seed,
            "mean": self.normal.mean, "std": self.normal.std,
        }  # fmt: skip
        self.emptied: dict[Any, Tensor] = {}
        self.drop: TokenDrop | None = None

    # -- the way in ------------------------------------------------------------------------------------------------

    def __call__(
        self,
        images: Tensor,
        maps: Maps,
        *,
        labels: Tensor | None = None,
        label_maps: Maps | None = None,
        ids: Sequence[str] | None = None,
        predicted: Tensor | None = None,
    ) -> Records:
        """Perturb, look, note.

        Args:
            images: Normalised as the model takes them, shape (b, channels, height, width).
            maps: By method, maps of the predicted class, shape (b, height, width) or (b, 1, height, width).
            labels: True classes, shape (b,); without them there is no accuracy.
            label_maps: By method, maps of the true class. Where that is the predicted class, the map of ``maps`` is
                used for both; a method that is blind to classes gives the same tensor object in both places.
            ids: Names of the images, by which records are kept; "0", "1", … by default.
            predicted: The class that ``maps`` explain, shape (b,), if it is not simply the model's answer here: in half
                precision the answer to a near tie may be another.

        Returns:
            Records on the CPU, and how many forwards they took.
        """
        label_maps = label_maps or {}
        names = tuple(map(str, range(len(images)))) if ids is None else tuple(ids)
        self._check(images, maps, label_maps, labels, names)
        images = ModelInputs((images,)).onto(self.model).args[0]
        if any(TOKENS in preset.fills for preset in self.presets) and self.drop is None:
            self.drop = TokenDrop(self.model, images)
        true = torch.full((len(images),), -1) if labels is None else labels
        blind = frozenset(name for name, values in label_maps.items() if maps.get(name) is values)
        parts = []
        for start in range(0, len(images), self.batch):
            rows = slice(start, start + self.batch)
            cut, label_cut = ({name: values[rows] for name, values in g.items()} for g in (maps, label_maps))
            asked = None if predicted is None else predicted[rows].to(images.device)
            with _evaluating(self.model), torch.inference_mode():
                part = _Part(self, images[rows], true[rows].to(images.device), asked)
                parts.append(part.run(cut, label_cut, blind, names[rows]))
        return Records.join(parts)

    def _check(self, images: Tensor, maps: Maps, label_maps: Maps, labels: Tensor | None, ids: Sequence[str]) -> None:
        if images.dim() != 4 or not len(images):
            raise InputError(f"images have shape (b, channels, height, width), not {tuple(images.shape)}")
        if not maps and not label_maps:
            raise InputError("no maps to score: give maps={'method': tensor}")
        if label_maps and labels is None:
            raise InputError("maps of the true class need labels=")
        if not maps and not any("label" in preset.explains for preset in self.presets):
            raise InputError("these presets score maps of the predicted class: give maps=")
        if len(ids) != len(images) or (labels is not None and len(labels) != len(images)):
            raise InputError(f"{len(images)} images need as many ids and labels")
        fits = ((len(images), *images.shape[2:]), (len(images), 1, *images.shape[2:]))
        for name, values in (*maps.items(), *label_maps.items()):
            if tuple(values.shape) not in fits:
                raise InputError(f"maps of {name} have shape {tuple(values.shape)}, images {tuple(images.shape)}")

    # -- one forward -----------------------------------------------------------------------------------------------

    def log_probs(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """What the model says, float32, shape (N, C); with ``keep``, of some patches only."""
        cast: AbstractContextManager[Any]
        cast = nullcontext() if self.precision is None else torch.autocast(images.device.type, self.precision)
        with cast:
            output = self.model(images) if keep is None or self.drop is None else self.drop(images, keep)
        logits = class_logits(self.model, output)
        if logits is None:
            raise TargetError(f"perturbation tests need class scores, and the model returned {fields_of(output)}")
        self.advance(len(images))
        return logits.float().log_softmax(1)


class _Part:
    """As many pictures as fit into a batch, and all that is asked of them."""

    def __init__(self, run: Evaluator, images: Tensor, labels: Tensor, predicted: Tensor | None) -> None:
        self.on, self.images, self.labels = run, images, labels
        self.pixels = int(images.shape[2] * images.shape[3])
        untouched = run.log_probs(images)
        self.predicted = untouched.argmax(1) if predicted is None else predicted
        self.untouched = note(untouched, self.predicted, labels)
        self.forwards = Forwards(unperturbed=len(images))
        self.wanted: dict[Mode, Wanted] = {mode: self._wanted(mode) for mode in ("predicted", "label")}
        self.canvases: dict[str, Tensor] = {}
        self.emptied: dict[str, Tensor] = {}

    def units(self, fill: str) -> int:
        """How many things there are to remove."""
        return self.on.drop.patches if fill == TOKENS and self.on.drop else self.pixels

    def _wanted(self, mode: Mode) -> Wanted:
        found: dict[tuple[Order, str], set[int]] = {}
        for curve in (c for p in self.on.presets if mode in p.explains for c in p.curves):
            found.setdefault((curve.order, curve.fill), set()).update(curve.removed(self.units(curve.fill)))
        return {key: tuple(sorted(counts)) for key, counts in found.items()}

    def run(self, maps: Maps, label_maps: Maps, blind: frozenset[str], ids: tuple[str, ...]) -> Records:
        """All methods; those blind to classes have one map for both."""
        every = torch.arange(len(self.images), device=self.images.device)
        jobs = [self._job(name, "predicted", values, every) for name, values in maps.items()]
        own = {name: values for name, values in label_maps.items() if name not in blind and self.wanted["label"]}
        # The only time the host waits for the device: which maps are to be run is decided here.
        apart = (self.predicted != self.labels).nonzero()[:, 0] if own else every[:0]
        for name, values in own.items():
            rows = apart if name in maps else every
            if len(rows):
                jobs.append(self._job(name, "label", values.to(rows.device)[rows], rows))
        for group in self._groups(jobs):
            self._look(group)
        by = {(job.method, job.mode): job for job in jobs}
        strips: dict[Key, Strip] = {}
        for name in maps:
            strips |= self._strips(ids, by[name, "predicted"], None, "predicted")
        for name in label_maps if self.wanted["label"] else ():
            base, other = by.get((name, "predicted")), by.get((name, "label"))
            base, other = (base, other) if base is not None else (other, None)
            assert base is not None
            strips |= self._strips(ids, base, other, "label")
        return Records(strips, self.forwards, self.on.settings)

    def _job(self, method: str, mode: Mode, maps: Tensor, owners: Tensor) -> _Job:
        maps = maps.to(self.images.device).view(len(maps), *self.images.shape[2:])
        return _Job(method, mode, maps, owners, {}, owners, owners)

    def _groups(self, jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
        """Jobs that ask for the same, together as long as their ranks take no more room than a batch."""
        group: list[_Job] = []
        for job in sorted(jobs, key=lambda job: job.mode, reverse=True):
            full = sum(len(j.owners) for j in group) + len(job.owners) > self.on.batch
            if group and (full or group[0].mode != job.mode):
                yield group
                group = []
            group.append(job)
        if group:
            yield group

    def _look(self, jobs: list[_Job]) -> None:
        """Rank the maps of some jobs once, then run every order, fill and level."""
        wanted, owners = self.wanted[jobs[0].mode], torch.cat([job.owners for job in jobs])
        found: dict[tuple[Order, str], Tensor] = {}
        ranked = [rank(job.maps, self.on.ties, self.on.seed) for job in jobs]
        ranks = torch.cat([r.ranks for r in ranked])
        for fill in dict.fromkeys(fill for _, fill in wanted):
            units = self.units(fill)
            levels = [(o, k) for (o, f), counts in wanted.items() if f == fill for k in counts if 0 < k < units]
            at = {level: i for i, level in enumerate(levels)}
            if fill == TOKENS:
                assert self.on.drop is not None
                means = torch.cat([patch_means(job.maps, self.on.drop.grid) for job in jobs])
                notes = self._without_tokens(rank(means, self.on.ties, self.on.seed).ranks, owners, levels)
            else:
                notes = self._without_pixels(ranks, owners, levels, fill)
            for (order, name), counts in wanted.items():
                if name == fill:
                    ends = {0: self.untouched, units: self._emptied(fill) if units in counts else self.untouched}
                    columns = [ends[k][owners] if k in ends else notes[:, at[order, k]] for k in counts]
                    found[order, fill] = torch.stack(columns, 1)
        start = 0
        for job, r in zip(jobs, ranked, strict=True):
            rows = slice(start, start + len(job.owners))
            job.notes = {key: values[rows] for key, values in found.items()}
            job.nan, job.flat, start = r.nan, r.flat, rows.stop

    # -- pictures with less in them --------------------------------------------------------------------------------

    def _without_pixels(self, ranks: Tensor, owners: Tensor, levels: list[tuple[Order, int]], fill: str) -> Tensor:
        """Notes of every map at every level, shape (N, levels, 5)."""
        device, each, size = ranks.device, len(levels), self.images.shape[2:]
        edges = torch.tensor([window(k, self.pixels, order) for order, k in levels], dtype=torch.int32).to(device)
        canvas, shared = self._canvas(fill), find_fill(fill).shared
        notes = self.untouched.new_empty(len(ranks) * each, self.untouched.shape[1])
        for start in range(0, len(notes), self.on.batch):
            stop = min(start + self.on.batch, len(notes))
            which = torch.arange(start, stop, device=device)
            row = which // each
            owner, edge = owners[row], edges[which - row * each]
            here = ranks[row]
            gone = (here >= edge[:, :1]) & (here < edge[:, 1:])
            seen = torch.where(gone.view(-1, 1, *size), canvas if shared else canvas[owner], self.images[owner])
            notes[start:stop] = note(self.on.log_probs(seen), self.predicted[owner], self.labels[owner])
        self.forwards += Forwards(perturbed=len(notes))
        return notes.view(len(ranks), each, notes.shape[1])

    def _without_tokens(self, ranks: Tensor, owners: Tensor, levels: list[tuple[Order, int]]) -> Tensor:
        """The same with patches left out; pictures of one level have the same number of tokens, so they go together."""
        notes = self.untouched.new_empty(len(ranks), len(levels), self.untouched.shape[1])
        for index, (order, count) in enumerate(levels):
            for start in range(0, len(ranks), self.on.batch):
                rows = slice(start, start + self.on.batch)
                owner = owners[rows]
                said = self.on.log_probs(self.images[owner], kept(ranks[rows], count, order))
                notes[rows, index] = note(said, self.predicted[owner], self.labels[owner])
        self.forwards += Forwards(perturbed=len(ranks) * len(levels))
        return notes

    def _canvas(self, fill: str) -> Tensor:
        if fill not in self.canvases:
            one = find_fill(fill)
            self.canvases[fill] = one.paint(self.images, self.on.normal, self.on.seed)
        return self.canvases[fill]

    def _emptied(self, fill: str) -> Tensor:
        """Notes of pictures with nothing left, shape (b, 5)."""
        if fill not in self.emptied:
            if fill != TOKENS and not find_fill(fill).shared:
                said = self.on.log_probs(self._canvas(fill))
                self.forwards += Forwards(canvas=len(said))
            else:
                said = self._emptied_once(fill).expand(len(self.images), -1)
            self.emptied[fill] = note(said, self.predicted, self.labels)
        return self.emptied[fill]

    def _emptied_once(self, fill: str) -> Tensor:
        known, one = self.on.emptied, self.images[:1]
        key = (fill, tuple(one.shape), one.device)
        if key not in known:
            none = torch.empty(1, 0, dtype=torch.long, device=one.device) if fill == TOKENS else None
            known[key] = self.on.log_probs(one if none is not None else self._canvas(fill).expand_as(one), none)
            self.forwards += Forwards(shared=1)
        return known[key]

    # -- what is handed out ----------------------------------------------------------------------------------------

    def _strips(self, ids: tuple[str, ...], base: _Job, other: _Job | None, mode: Mode) -> dict[Key, Strip]:
        """The strips of one method and class: those of ``base``, with the rows of ``other`` in their places."""
        found, levels = {}, self.wanted[base.mode]

        def mixed(first: Tensor, second: Tensor | None) -> Tensor:
            if other is not None and second is not None:
                first = first.clone()
                first[other.owners] = second
            return first.cpu()

        nan = mixed(base.nan, None if other is None else other.nan)
        flat = mixed(base.flat, None if other is None else other.flat)
        predicted, labels = self.predicted.cpu(), self.labels.cpu()
        for (order, fill), counts in self.wanted[mode].items():
            at = {k: i for i, k in enumerate(levels[order, fill])}
            columns = [at[k] for k in counts]
            notes = mixed(base.notes[order, fill][:, columns], None if other is None else other.notes[order, fill])
            key = Key(base.method, mode, order, fill)
            found[key] = Strip(ids, self.units(fill), counts, predicted, labels, notes, nan, flat)
        return found


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Hold a model in evaluation mode; unlike ``still``, compiled code stays compiled and fused kernels fused."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True
