"""Runs jobs: maps with `vitrail.explain`, checks with `vitrail.trust`, curves with `vitrail.scores`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic, thread_time
from typing import Any

import torch

from vitrail.data.tones import HERTZ_PER_BIN, SECONDS_PER_FRAME
from vitrail.errors import VitrailError
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.scores.curves import deletion_area, insertion_area
from vitrail.scores.evaluator import Evaluator
from vitrail.trust.map_check import MapCheck
from vitrail.web.api_errors import split_message
from vitrail.web.cache import CheckCache, to_cpu
from vitrail.web.curve_levels import curve_preset, level_passes, merge_levels
from vitrail.web.encoding import map_json, words_json
from vitrail.web.jobs import Job, JobItem
from vitrail.web.limits import MIN_PARALLEL_PARAMETERS, Limits
from vitrail.web.map_checks import check_evaluations, check_json, check_map, target_of
from vitrail.web.page_targets import RequestedTarget
from vitrail.web.patch_removal import removal_curves
from vitrail.web.queue import JobCancelled, Queue, Step, log
from vitrail.web.request_batch import MapBatches, explain_inputs
from vitrail.web.validation import RequestedMethod

#: Minimum time between two progress updates, in seconds.
PROGRESS_INTERVAL = 0.15
#: Share of the images after which the time left is reported.
MIN_SHARE = 0.1
#: Levels of a curve that are computed before an update.
LEVELS_PER_UPDATE = 5


class JobRunner:
    """Creates the items of a job and the steps that compute them."""

    def __init__(
        self, job: Job, methods: Sequence[RequestedMethod], queue: Queue, limits: Limits, batches: MapBatches,
        checks: CheckCache,
    ) -> None:  # fmt: skip
        self.job, self.methods, self.queue, self.limits, self.batches = job, list(methods), queue, limits, batches
        self.cache, self.checks = batches.cache, checks
        self._total_seconds = 0.0
        self._create_items()
        self._known_checks = self._find_checks() if job.kind == "check" else {}

    @property
    def steps(self) -> list[Step]:
        """The steps: methods that share a pass first, then the others by increasing cost, then checks or curves."""
        needed = [method for method in self.methods if not self._is_checked(method)]
        shared = [method for method in needed if method.shares_pass]
        others = sorted((m for m in needed if not m.shares_pass), key=lambda m: m.evaluations)
        steps = [self._map_step(methods) for methods in ([shared] if shared else []) + [[m] for m in others]]
        if self.job.kind == "check":
            steps += [self._long_step(lambda m=m: self._check_maps(m)) for m in self.methods]  # type: ignore[misc]
        if self.job.kind == "curves":
            for levels in level_passes(self.job.steps):
                steps += [
                    self._long_step(lambda m=m, levels=levels: self._compute_curves(m, levels))  # type: ignore[misc]
                    for m in self.methods
                ]
        return steps

    @property
    def is_cached(self) -> bool:
        """Whether all that is asked for is known, so that no model has to run."""
        job, targets = self.job, self.job.targets
        if job.kind == "check":
            return all(self._is_checked(method) for method in self.methods)
        if job.kind != "explain" or targets is None:
            return False
        return all(self.cache.get(job, method, targets) is not None for method in self.methods)

    def _find_checks(self) -> dict[tuple[str, RequestedTarget], MapCheck]:
        """The known checks by method and target; kept, since others may displace them before the job runs."""
        pairs = [(method, target) for method in self.methods for target in self.job.targets or ()]
        found = ((m.label, target, self.checks.get(self.job, m, target)) for m, target in pairs)
        return {(label, target): check for label, target, check in found if check is not None}

    def _is_checked(self, method: RequestedMethod) -> bool:
        """Whether all maps of a method are already checked."""
        targets = self.job.targets
        return bool(targets) and all((method.label, target) in self._known_checks for target in targets or ())

    def _map_step(self, methods: list[RequestedMethod]) -> Step:
        short = all(method.can_interleave for method in methods)
        group = self.batches.group(self.job, methods)
        return Step(lambda: self._compute_maps(methods), short, self._is_parallel, group)

    def _long_step(self, run: Callable[[], None]) -> Step:
        return Step(run, can_interleave=False, is_parallel=self._is_parallel)

    @property
    def _is_parallel(self) -> bool:
        return self.job.served.parameters >= MIN_PARALLEL_PARAMETERS

    # -- items ---------------------------------------------------------------------------------------------------

    def _create_items(self) -> None:
        """Create the items: one per method and class, or one per method until the predicted class is known."""
        job = self.job
        if job.kind == "curves":
            target = job.targets[0] if job.targets else None
            job.items = [JobItem(method.label, method.label, target) for method in self.methods]
            return
        targets: Sequence[RequestedTarget | None] = job.targets or [None]
        job.items = [
            JobItem(f"{method.label}|{'' if target is None else target}", method.label, target)
            for method in self.methods
            for target in targets
        ]

    def _items(self, methods: Sequence[RequestedMethod]) -> list[JobItem]:
        labels = {method.label for method in methods}
        return [item for item in self.job.items if item.method in labels]

    def _resolve_targets(self) -> None:
        """Set the targets to the predicted class if none were given."""
        if self.job.targets is None:
            self.job.targets = self.batches.targets(self.job)
            self._create_items()
        self.job.state = "running"

    # -- maps ----------------------------------------------------------------------------------------------------

    def _compute_maps(self, methods: Sequence[RequestedMethod]) -> None:
        """Compute the maps of some methods in one pass; if that fails, one by one, so that only one method fails."""
        self._check_cancelled()
        self._resolve_targets()
        items = self._items(methods)
        for item in items:
            item.state = "running"
        self.job.notify(*items)
        targets = self.job.targets or []
        cached = {m.label: e for m in methods if (e := self.cache.get(self.job, m, targets)) is not None}
        missing = [method for method in methods if method.label not in cached]
        start, cpu_start = monotonic(), thread_time()
        try:
            computed = self._explain(missing, self._map_progress(items, missing)) if missing else {}
        except JobCancelled:
            raise
        except Exception as error:  # noqa: BLE001 - any failure is reported by the item
            if len(methods) > 1:
                for method in methods:
                    self._compute_maps([method])
                return
            self._fail(items, error)
            return
        seconds = monotonic() - start
        if missing and all(method.can_interleave for method in missing):
            self.batches.observe(self.job.served, 1, thread_time() - cpu_start)
        for method in missing:
            self.cache.put(self.job, method, targets, computed[method.label])
        self._add_explanations(cached | {label: to_cpu(e) for label, e in computed.items()})
        shares = {method.label for method in methods if method.shares_pass}
        for item in items:
            explanation = self.job.explanations[item.method]
            item.seconds, shared = explanation.seconds, None
            if item.method in shares:  # the time of a shared pass is not the time of any one method
                item.seconds, shared = (None, None) if item.method in cached else (seconds, len(missing))
            if self.job.kind == "explain":
                self._set_map(item, explanation)
                item.result |= {"shared": shared, "seconds_left": None}
                item.progress, item.state = 1.0, "done"
            else:  # checks and curves are computed in later steps
                item.progress = 0.0
        self.job.notify(*items)

    def _check_maps(self, method: RequestedMethod) -> None:
        """Check the maps of one method, for each target."""
        self._check_cancelled()
        self.job.state = "running"
        for item in self._items([method]):
            assert item.target is not None
            if item.state == "failed":
                continue
            known = self._known_checks.get((item.method, item.target)) or self.checks.get(self.job, method, item.target)
            if known is not None:
                item.result, item.state, item.progress, item.seconds = {"check": check_json(known)}, "done", 1.0, None
                self.job.notify(item)
                continue
            advance = self._progress([item], check_evaluations(self.job), is_long=True)
            start = monotonic()
            try:
                k = (self.job.targets or []).index(item.target)
                check = check_map(self.job, self.job.explanations[item.method], k, advance)
                self.checks.put(self.job, method, item.target, check)
                item.result = {"check": check_json(check)}
            except JobCancelled:
                raise
            except Exception as error:  # noqa: BLE001 - as for maps
                self._fail([item], error)
                continue
            item.state, item.progress, item.seconds = "done", 1.0, monotonic() - start
            self.job.notify(item)

    def _add_explanations(self, explanations: dict[str, Explanation]) -> None:
        """Add explanations to the job; all share one image tensor, on the CPU."""
        images = next((e.images for e in self.job.explanations.values()), None)
        if images is None and self.job.served.reading is None:
            images = self.job.served.model_inputs(self.job.raw_input).image
        images = None if images is None else images.cpu()
        canvas = None if self.job.served.media == "image" else self.job.served.model_inputs(self.job.raw_input).canvas
        # Their source keeps the inputs of the model, which may be those of a batch.
        given: dict[str, Any] = {"images": images, "source": None}
        if canvas is not None:
            given["signal"] = canvas.cpu()
        if self.job.contrast is not None and not self.job.has_named_targets:
            given["target_labels"] = (self.job.target_name,)
        named = {label: replace(e, **given) for label, e in explanations.items()}
        if self.job.served.media == "sound":
            axes = {"time": SECONDS_PER_FRAME, "frequency": HERTZ_PER_BIN}
            named = {label: e.with_axes(**axes) for label, e in named.items()}
        self.job.explanations |= named

    def _explain(self, methods: Sequence[RequestedMethod], advance: Callable[[int], None]) -> Explanations:
        job = self.job
        return explain_inputs(job.served, [job.raw_input], methods, target_of(job), advance, job.targets)

    def _set_map(self, item: JobItem, explanation: Explanation) -> None:
        assert self.job.targets is not None
        assert item.target is not None
        k = self.job.targets.index(item.target)
        item.result = {"flat": bool(explanation.constant[0, k]), "map": map_json(explanation, k),
                       "words": words_json(explanation, k)}  # fmt: skip

    def _fail(self, items: Sequence[JobItem], error: Exception) -> None:
        if isinstance(error, VitrailError):
            message = split_message(error)
        else:
            log.exception("a method failed", exc_info=error)
            message = {"what": f"{items[0].method} failed ({type(error).__name__})",
                       "fix": "Check its options; see the server's log for details."}  # fmt: skip
        for item in items:
            item.state, item.error = "failed", message
        self.job.notify(*items)

    # -- progress, cancelling, time limits -----------------------------------------------------------------------

    def _check_cancelled(self) -> None:
        if self.job.cancelled.is_set():
            raise JobCancelled

    def _map_progress(self, items: Sequence[JobItem], methods: Sequence[RequestedMethod]) -> Callable[[int], None]:
        total = max(1, sum(method.evaluations for method in methods))
        return self._progress(items, total, is_long=not all(method.can_interleave for method in methods))

    def _progress(self, items: Sequence[JobItem], total: int, is_long: bool, done: int = 0) -> Callable[[int], None]:
        """Build the function called after each batch: it reports progress, and raises if the job must stop.

        In a long method it also lets other clients run; their time is not counted. The time left follows from the
        images evaluated since the first batch, which also pays for copies and recordings of the model. It is unknown
        until a tenth of the images is evaluated.
        """
        last_update, seconds, start = 0.0, 0.0, monotonic()
        first: tuple[int, float] | None = None

        def advance(images: int) -> None:
            nonlocal done, last_update, seconds, start, first
            self._check_cancelled()
            done += images
            now = monotonic()
            seconds, self._total_seconds = seconds + now - start, self._total_seconds + now - start
            self._check_time(items[0].method, seconds)
            if first is None:
                first = (done, seconds)
            evaluated = done - first[0]
            is_known = evaluated >= MIN_SHARE * total
            left = max(0.0, (seconds - first[1]) * (total - done) / evaluated) if is_known else None
            if now - last_update > PROGRESS_INTERVAL:
                last_update = now
                for item in items:
                    item.progress = min(0.99, done / total)
                    item.result["seconds_left"] = left
                self.job.notify(*items)
            if is_long:
                self.queue.between_batches(self.job.served.has_own_copies)
                self._check_cancelled()
            start = monotonic()

        return advance

    def _check_time(self, method: str, seconds: float) -> None:
        maximum = self.limits.seconds
        if seconds > maximum:
            raise VitrailError(f"{method} took more than {maximum:.0f} s: use fewer masks, samples or steps")
        maximum *= self.limits.request_factor
        if self._total_seconds > maximum:
            raise VitrailError(f"the methods together took more than {maximum:.0f} s: use fewer at a time")

    # -- curves --------------------------------------------------------------------------------------------------

    def _compute_curves(self, method: RequestedMethod, percents: Sequence[int]) -> None:
        """Compute some levels of the deletion and insertion curves of one method, a few at a time."""
        self._check_cancelled()
        job, label = self.job, method.label
        (item,) = self._items([method])
        if item.state == "failed":
            return
        assert job.targets is not None
        explanation = job.explanations[label]
        start = monotonic()
        total = 2 * (job.steps + 1)
        advance = self._progress([item], total, is_long=True, done=2 * len(item.result.get("fractions", ())))
        try:
            for first in range(0, len(percents), LEVELS_PER_UPDATE):
                levels = tuple(percents[first : first + LEVELS_PER_UPDATE])
                fractions = {"fractions": [p / 100 for p in levels]}
                if job.served.media != "image" or job.has_named_targets:
                    targets = [*job.targets[:1], *job.among]
                    curves = removal_curves(job.served, job.raw_input, targets, explanation, levels, advance)
                    item.result = merge_levels(item.result, {**fractions, **curves})
                    job.notify(item)
                    continue
                assert explanation.images is not None
                preset = curve_preset(levels)
                evaluate = Evaluator(
                    job.served.loaded, preset, batch=job.served.batch_size, seed=job.seed, advance=advance
                )
                maps, predicted = {label: explanation.maps[:, 0]}, torch.tensor([int(str(job.targets[0]))])
                records = evaluate(explanation.images, maps, predicted=predicted)
                values = {
                    curve.name: records.curve(curve, label, "predicted", preset.quantity)[1][0].tolist()
                    for curve in preset.curves
                }
                item.result = merge_levels(item.result, {**fractions, **values})
                job.notify(item)
        except JobCancelled:
            raise
        except Exception as error:  # noqa: BLE001 - as for maps
            self._fail([item], error)
            return
        item.seconds = (item.seconds or 0.0) + monotonic() - start
        if len(item.result["fractions"]) == job.steps + 1:
            for name, area in {"deletion": deletion_area, "insertion": insertion_area}.items():
                item.result[f"{name}_auc"] = float(area(torch.tensor(item.result[name], dtype=torch.float64)))
            item.state, item.progress = "done", 1.0
        job.notify(item)
