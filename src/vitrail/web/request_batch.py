"""Maps and predictions of several requests in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import thread_time
from typing import Any, cast

import torch
from torch import Tensor

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.outputs import class_logits
from vitrail.capture.score_function import class_probabilities
from vitrail.errors import VitrailError
from vitrail.inputs.targets import Target
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.text.result import WordRelevance
from vitrail.web.cache import BoundedStore, MapCache
from vitrail.web.explained_calls import explained_call
from vitrail.web.ignored_warnings import ignored_warnings
from vitrail.web.jobs import Job
from vitrail.web.limits import BATCH_SECONDS, MAX_BATCH, MEGABYTE
from vitrail.web.page_targets import RequestedTarget
from vitrail.web.queue import StepGroup
from vitrail.web.served_model import ServedModel
from vitrail.web.validation import RequestedMethod


@dataclass(frozen=True, eq=False)
class MapRequest:
    """The methods of a job that are computed in one step.

    Attributes:
        job: The job.
        methods: Some of its methods.
    """

    job: Job
    methods: tuple[RequestedMethod, ...]


def explain_inputs(
    served: ServedModel, raw_inputs: Sequence[Any], methods: Iterable[RequestedMethod], target: Target,
    advance: Callable[[int], None] = lambda _: None, targets: Sequence[RequestedTarget] | None = None,
) -> Explanations:  # fmt: skip
    """Explain inputs of a model by the same methods."""
    inputs, keywords = explained_call(served, raw_inputs, targets)
    with ignored_warnings():  # the items report constant maps
        found = explain(
            served.loaded, inputs, methods={m.label: dict(m.extra_options) for m in methods},
            target=target, advance=advance, batch_size=served.batch_size, **keywords,
        )  # fmt: skip
        if served.target_kind != "prompt":
            return found
        return Explanations({label: replace(e, text=_prompt_words(e)) for label, e in found.items()})


def _prompt_words(explanation: Explanation) -> tuple[WordRelevance, ...] | None:
    """The words of the prompts, or None where the method does not apply to texts."""
    try:
        return tuple(explanation.text or ()) or None
    except VitrailError:
        return None


class Predictions:
    """Class probabilities of inputs, computed in batches and kept for later requests."""

    def __init__(self, count: int = 1000) -> None:
        self.store: BoundedStore[Tensor] = BoundedStore(count, 64 * MEGABYTE)

    def get(self, served: ServedModel, image_id: str | None, raw_input: Any) -> Tensor | None:
        """The probabilities if they are known, shape (C,)."""
        return self.store.get(_key(served, image_id, raw_input))

    def compute(self, served: ServedModel, image_id: str | None, raw_input: Any) -> Tensor:
        """The probabilities, shape (C,); called from the thread that runs the models."""
        known = self.get(served, image_id, raw_input)
        return self._put(served, image_id, raw_input, served.logits(raw_input)) if known is None else known

    def group(self, served: ServedModel, image_id: str | None, raw_input: Any) -> StepGroup | None:
        """Which predictions are computed together: those of images, by one model."""
        if served.reading is not None:
            return None
        return StepGroup(("prediction", served.id), image_id, (served, image_id, raw_input), self.prepare, MAX_BATCH)

    def prepare(self, requests: Sequence[tuple[ServedModel, str | None, Any]]) -> None:
        """Compute the predictions of several images of one model."""
        missing = {_key(*request): request for request in requests if self.get(*request) is None}
        if len(missing) < 2:
            return
        served = requests[0][0]
        model, raw_inputs = unwrap(served.loaded.module), [raw_input for _, _, raw_input in missing.values()]
        inputs = [served.model_inputs(raw_input).args[0] for raw_input in raw_inputs]
        with frozen(model), torch.inference_mode():
            logits = class_logits(model, ModelInputs((torch.cat(inputs),)).into(model))
        assert logits is not None
        for request, row in zip(missing.values(), logits.float().clone(), strict=True):
            self._put(*request, row)

    def _put(self, served: ServedModel, image_id: str | None, raw_input: Any, logits: Tensor) -> Tensor:
        found = class_probabilities(served.loaded.module, logits[None], served.loaded.scores)[0].cpu()
        key = _key(served, image_id, raw_input)
        self.store.put(key, found, found.numel() * 4 + len(key))
        return found


class MapBatches:
    """Computes the maps of several jobs together and puts them into the cache, where the jobs find them.

    Jobs for one input and the same classes share a pass, whatever their methods; jobs with the same methods and several
    images share a batch.
    """

    def __init__(self, cache: MapCache, predictions: Predictions) -> None:
        self.cache, self.predictions = cache, predictions
        self._row_seconds: dict[str, float] = {}

    def group(self, job: Job, methods: Sequence[RequestedMethod]) -> StepGroup | None:
        """Which steps are computed together: short ones, for images, of one model.

        A batch takes less than a second: on a large model each job is answered as soon as it is computed.
        """
        is_single = job.served.reading is not None or job.contrast is not None or job.served.target_kind != "class"
        if is_single or not all(method.can_interleave for method in methods):
            return None
        seconds = self._row_seconds.get(job.served.id)
        most = 1 if seconds is None else max(1, min(MAX_BATCH, int(BATCH_SECONDS / seconds)))
        row = (job.image_id, tuple(job.targets or ()))
        return StepGroup(("maps", job.served.id), row, MapRequest(job, tuple(methods)), self.prepare, most)

    def prepare(self, requests: Sequence[MapRequest]) -> None:
        """Compute what is missing in the cache for several jobs of one model."""
        requests = [request for request in requests if not request.job.cancelled.is_set()]
        unknown = [(job.served, job.image_id, job.raw_input) for job in (r.job for r in requests) if not job.targets]
        self.predictions.prepare(unknown)
        rows: dict[Any, dict[str, RequestedMethod]] = {}
        jobs: dict[Any, Job] = {}
        for request in requests:
            job, targets = request.job, self.targets(request.job)
            missing = {m.label: m for m in request.methods if self.cache.get(job, m, targets) is None}
            if missing:
                row = (job.image_id, tuple(targets), job.seed)
                rows.setdefault(row, {}).update(missing)
                jobs[row] = job
        batches: dict[Any, list[Any]] = {}
        for row, methods in rows.items():
            # Random numbers depend on the position in a batch.
            own = row if any(_draws(m) for m in methods.values()) else len(row[1])
            batches.setdefault((frozenset(methods), own), []).append(row)
        for batch in batches.values():
            # If a batch fails, its jobs compute their maps alone, and those that fail say why.
            with suppress(Exception):
                self._compute([jobs[row] for row in batch], list(rows[batch[0]].values()))

    def targets(self, job: Job) -> list[RequestedTarget]:
        """The targets of a job: those given, or the predicted class."""
        if job.targets:
            return job.targets
        return [int(self.predictions.compute(job.served, job.image_id, job.raw_input).argmax())]

    def observe(self, served: ServedModel, rows: int, seconds: float) -> None:
        """Note the processor time of a step, for the size of later batches; it does not depend on other processes."""
        before = self._row_seconds.get(served.id, seconds / rows)
        self._row_seconds[served.id] = 0.7 * before + 0.3 * seconds / rows

    def _compute(self, jobs: Sequence[Job], methods: Sequence[RequestedMethod]) -> None:
        served, targets, start = jobs[0].served, [self.targets(job) for job in jobs], thread_time()
        found = explain_inputs(served, [job.raw_input for job in jobs], methods, cast("Target", targets))
        self.observe(served, len(jobs), thread_time() - start)
        for row, (job, own) in enumerate(zip(jobs, targets, strict=True)):
            for method in methods:
                self.cache.put(job, method, own, _select_row(found[method.label], row))


def _select_row(explanation: Explanation, row: int) -> Explanation:
    """The explanation of one input of a batch; its time is the mean over the batch."""
    count = len(explanation.maps)
    names = ("maps", "grid", "constant", "targets", "logits", "images", "signal")
    changed: dict[str, Any] = {
        name: value[row : row + 1] for name in names if (value := getattr(explanation, name)) is not None
    }
    if explanation.provenance is not None:
        changed["provenance"] = replace(explanation.provenance, inputs=explanation.provenance.inputs[:1])
    return replace(explanation, seconds=explanation.seconds / count, **changed)


def _draws(method: RequestedMethod) -> bool:
    """Whether a method draws random numbers, or is derived from one that may."""
    return "seed" in method.method.options or bool(method.method.derive)


def _key(served: ServedModel, image_id: str | None, raw_input: Any) -> str:
    return f"{served.id}|{image_id}|{raw_input if image_id is None else ''}"
