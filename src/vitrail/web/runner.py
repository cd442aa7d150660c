"""Jobs done: every map by `vitrail.explain`, every curve by `vitrail.scores`; nothing is computed here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import torch

from vitrail.errors import VitrailError
from vitrail.explain import explain
from vitrail.explanation import Explanation, Explanations
from vitrail.scores.curves import deletion_area, insertion_area
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.presets import Curve, LevelGrid, Preset
from vitrail.web.cache import MapCache, at_home
from vitrail.web.encoding import map_of, words_of
from vitrail.web.errors import told
from vitrail.web.jobs import Item, Job
from vitrail.web.limits import Limits
from vitrail.web.queue import CancelledWork, Queue, Step, log
from vitrail.web.validation import Asked

#: News of progress come no more often than this, in seconds.
OFTEN = 0.15
#: Levels of a curve that are looked at before they are shown.
LEVELS = 5
FILLS = {"deletion": "mean", "insertion": "blur"}


class JobRunner:
    """A job's steps.

    Args:
        job: The job; its items are made here.
        asked: Its methods.
        queue: Where short steps of others are let in from.
        limits: How much time a method, and all of them together, may take.
        made: Maps that were made before.
    """

    def __init__(self, job: Job, asked: Sequence[Asked], queue: Queue, limits: Limits, made: MapCache) -> None:
        self.job, self.asked, self.queue, self.limits, self.made = job, list(asked), queue, limits, made
        self._spent = 0.0
        self._name_items()

    @property
    def steps(self) -> list[Step]:
        """What is to be done, cheap methods first."""
        cheap = [one for one in self.asked if one.cheap]
        rest = sorted((one for one in self.asked if not one.cheap), key=lambda one: one.looks)
        first = [Step(lambda: self._make(cheap), short=True)] if cheap else []
        made = [*first, *(Step(lambda one=one: self._make([one]), one.short) for one in rest)]  # type: ignore[misc]
        if self.job.kind == "explain":
            return made
        return [*made, *(Step(lambda one=one: self._curve(one), short=False) for one in self.asked)]  # type: ignore[misc]

    # -- items ---------------------------------------------------------------------------------------------------

    def _name_items(self) -> None:
        """Items as far as they are known: while the predicted class is not, one for each method."""
        job = self.job
        if job.kind == "curves":
            target = job.targets[0] if job.targets else None
            job.items = [Item(one.label, one.label, target) for one in self.asked]
            return
        targets: Sequence[int | None] = job.targets or [None]
        job.items = [
            Item(f"{one.label}|{'' if target is None else target}", one.label, target)
            for one in self.asked
            for target in targets
        ]

    def _items(self, asked: Sequence[Asked]) -> list[Item]:
        labels = {one.label for one in asked}
        return [item for item in self.job.items if item.method in labels]

    def _aim(self) -> None:
        """Find out the predicted class, if that is what was asked for."""
        if self.job.targets is None:
            self.job.targets = [int(self.job.served.logits(self.job.source).argmax())]
            self._name_items()
        self.job.state = "running"

    # -- maps ----------------------------------------------------------------------------------------------------

    def _make(self, asked: Sequence[Asked]) -> None:
        """Maps of some methods in one pass; where that fails, one by one, so that one failure spoils no other map."""
        self._check()
        self._aim()
        items = self._items(asked)
        for item in items:
            item.state = "running"
        self.job.changed(*items)
        known = {one.label: e for one in asked if (e := self.made.find(self.job, one)) is not None}
        missing = [one for one in asked if one.label not in known]
        try:
            made = self._explain(missing, self._looked(items, missing)) if missing else {}
        except CancelledWork:
            raise
        except Exception as error:  # noqa: BLE001 - any failure is the item's, and is told
            if len(asked) > 1:
                for one in asked:
                    self._make([one])
                return
            self._failed(items, error)
            return
        for one in missing:
            self.made.keep(self.job, one, made[one.label])
        self._take(known | {label: at_home(e) for label, e in made.items()})
        for item in items:
            explanation = self.job.found[item.method]
            item.seconds = explanation.seconds
            if self.job.kind == "explain":
                self._fill(item, explanation)
                item.progress, item.state = 1.0, "done"
            else:  # its curves are still to come
                item.progress = 0.0
        self.job.changed(*items)

    def _take(self, found: dict[str, Explanation]) -> None:
        """Add to what the job has; all its explanations share one picture, and none is kept where the model is."""
        images = next((e.images for e in self.job.found.values()), None)
        if images is None and self.job.served.reading is None:
            images = self.job.served.model_inputs(self.job.source).image
        images = None if images is None else images.cpu()
        self.job.found |= {label: replace(e, images=images) for label, e in found.items()}

    def _explain(self, asked: Sequence[Asked], advance: Callable[[int], None]) -> Explanations:
        job, served = self.job, self.job.served
        methods = {one.label: dict(one.extra) for one in asked}
        more: dict[str, Any] = {"preprocess": served.as_it_is} if served.reading is None else {}
        source = job.source
        if served.reading is None:
            from PIL import Image

            source = Image.fromarray(job.source)
        else:
            more["tokenizer"] = served.reading
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the item says that its map is flat
            return explain(
                served.about, source, methods=methods, target=[job.targets], advance=advance,
                batch_size=served.batch, **more,
            )  # fmt: skip

    def _fill(self, item: Item, explanation: Explanation) -> None:
        assert self.job.targets is not None
        assert item.target is not None
        k = self.job.targets.index(item.target)
        item.more = {"flat": bool(explanation.flat[0, k]), "map": map_of(explanation, k),
                     "words": words_of(explanation, k)}  # fmt: skip

    def _failed(self, items: Sequence[Item], error: Exception) -> None:
        if isinstance(error, VitrailError):
            said = told(error)
        else:
            log.exception("a method failed", exc_info=error)
            said = {"what": f"{items[0].method} could not be made ({type(error).__name__})",
                    "fix": "Check its options; the server's log says more."}  # fmt: skip
        for item in items:
            item.state, item.error = "failed", said
        self.job.changed(*items)

    # -- how far it is -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.job.cancelled.is_set():
            raise CancelledWork

    def _looked(self, items: Sequence[Item], asked: Sequence[Asked]) -> Callable[[int], None]:
        """What is called after each look at the model: progress, an end to what nobody wants, and a turn for others."""
        total, long = max(1, sum(one.looks for one in asked)), not all(one.short for one in asked)
        return self._clock(items, total, long)

    def _clock(self, items: Sequence[Item], total: int, long: bool) -> Callable[[int], None]:
        done, last, own, before = 0, 0.0, 0.0, monotonic()

        def looked(pictures: int) -> None:
            nonlocal done, last, own, before
            self._check()
            done += pictures
            now = monotonic()
            own, self._spent = own + now - before, self._spent + now - before
            self._in_time(items[0].method, own)
            if now - last > OFTEN:
                last = now
                for item in items:
                    item.progress = min(0.99, done / total)
                self.job.changed(*items)
            if long:
                self.queue.let_in()
                self._check()
            before = monotonic()  # the time that others took is not counted

        return looked

    def _in_time(self, method: str, own: float) -> None:
        most = self.limits.seconds
        if own > most:
            raise VitrailError(f"{method} took more than {most:.0f} s: ask for fewer masks, samples or steps")
        if self._spent > self.limits.altogether * most:
            raise VitrailError(
                f"all methods together took more than {self.limits.altogether * most:.0f} s: ask for fewer at a time"
            )

    # -- curves --------------------------------------------------------------------------------------------------

    def _curve(self, one: Asked) -> None:
        """Deletion and insertion of one method, a few levels at a time."""
        self._check()
        job = self.job
        (item,) = self._items([one])
        if item.state == "failed":
            return
        assert job.targets is not None
        e = job.found[one.label]
        assert e.images is not None
        steps, began = job.steps, monotonic()
        percents = [round(100 * i / steps) for i in range(steps + 1)]
        item.more = {"fractions": [], "deletion": [], "insertion": []}
        clock = self._clock([item], 2 * len(percents), long=True)
        try:
            for start in range(0, len(percents), LEVELS):
                some = tuple(percents[start : start + LEVELS])
                preset = _preset(some)
                evaluate = Evaluator(job.served.about, preset, batch=job.served.batch, seed=job.seed, advance=clock)
                records = evaluate(e.images, {one.label: e.maps[:, 0]}, predicted=torch.tensor(job.targets[:1]))
                item.more["fractions"] += [p / 100 for p in some]
                for curve in preset.curves:
                    _, values = records.curve(curve, one.label, "predicted", preset.quantity)
                    item.more[curve.name] += values[0].tolist()
                job.changed(item)
        except CancelledWork:
            raise
        except Exception as error:  # noqa: BLE001 - as for maps
            self._failed([item], error)
            return
        areas = {"deletion": deletion_area, "insertion": insertion_area}
        for name, area in areas.items():
            item.more[f"{name}_auc"] = float(area(torch.tensor(item.more[name], dtype=torch.float64)))
        item.state, item.progress = "done", 1.0
        item.seconds = (item.seconds or 0.0) + monotonic() - began
        job.changed(item)


def _preset(percents: tuple[int, ...]) -> Preset:
    grid = LevelGrid(percents)
    curves = (Curve("deletion", "morf", FILLS["deletion"], grid), Curve("insertion", "lerf", FILLS["insertion"], grid))
    return Preset("page", "the page's curves", curves, "predicted", "unit")
