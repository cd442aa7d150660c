"""All a server has: its models, the pictures and jobs it keeps, and who may use them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import BoundedSemaphore, Lock
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from vitrail.web import validation as plan
from vitrail.web.bounded_store import BoundedStore
from vitrail.web.cache import MapCache
from vitrail.web.errors import ApiError, missing
from vitrail.web.jobs import Job
from vitrail.web.limits import Limits
from vitrail.web.model import ServedModel
from vitrail.web.queue import CancelledWork, Queue, QueuedTask, log
from vitrail.web.runner import JobRunner
from vitrail.web.samples import pixels_of
from vitrail.web.uploads import Upload, read_upload

T = TypeVar("T")

#: Pieces of work beside the models' (decoding, drawing) that may wait.
CHORES = 32
HANDS = 2


@dataclass(frozen=True)
class Client:
    """Who asks.

    Attributes:
        key: By what clients take turns: the cookie, or the address of who has none.
        names: Under what the client will be known again.
    """

    key: str
    names: frozenset[str]


@dataclass(frozen=True, eq=False)
class StoredImage:
    """A picture as each model sees it; what was uploaded is not kept.

    Attributes:
        id: Its name.
        width: Of what was uploaded, upright.
        height: The same.
        notes: What was done to it.
        seen: By model, bytes of shape (height, width, 3).
    """

    id: str
    width: int
    height: int
    notes: tuple[str, ...]
    seen: Mapping[str, np.ndarray[Any, Any]]


class ServerState:
    """Models, pictures, jobs.

    Args:
        models: What clients may use.
        limits: How much.
    """

    def __init__(self, models: Sequence[ServedModel], limits: Limits | None = None) -> None:
        self.models = {served.id: served for served in models}
        self.limits = limits or Limits()
        self.queue = Queue(self.limits)
        self.pictures: BoundedStore[StoredImage] = BoundedStore(self.limits.pictures, self.limits.picture_bytes)
        self.finished: BoundedStore[Job] = BoundedStore(self.limits.kept, self.limits.kept_bytes)
        self.made = MapCache(4 * self.limits.kept, self.limits.kept_bytes // 2)
        self._said: BoundedStore[torch.Tensor] = BoundedStore(1000, 64 << 20)
        self._active: dict[str, tuple[Job, QueuedTask]] = {}
        self._lock, self._drawing = Lock(), Lock()
        self._secret = secrets.token_bytes(32)
        self._hands = ThreadPoolExecutor(HANDS, "vitrail-chores")
        self._chores = BoundedSemaphore(CHORES)

    # -- what there is ---------------------------------------------------------------------------------------------

    def model(self, name: str) -> ServedModel:
        """A model by id."""
        if name not in self.models:
            raise missing(f"model {name[:60]!r}", f"Choose one of {', '.join(self.models)}.")
        return self.models[name]

    def picture(self, name: str) -> StoredImage:
        """A picture by id."""
        found = self.pictures.get(name)
        if found is None:
            raise missing("such picture", "It may have been dropped to make room: send it again.")
        return found

    def source(self, served: ServedModel, picture: str | None, text: str | None) -> Any:
        """What a request is about: a picture's bytes as the model sees it, or a text."""
        if served.kind == "text":
            if text is None or picture is not None:
                raise ApiError(422, f"{served.title} reads texts", "Send a text instead of a picture.")
            return plan.text(text, self.limits)
        if picture is None or text is not None:
            raise ApiError(422, f"{served.title} looks at pictures", "Send a picture's id instead of a text.")
        return self.picture(picture).seen[served.id]

    # -- pictures --------------------------------------------------------------------------------------------------

    def chore(self, work: Callable[[], T]) -> Any:
        """Do something beside the models, in a thread; bounded, so that nobody can pile work up."""
        if not self._chores.acquire(blocking=False):
            raise ApiError(503, "too many files are being read or drawn", "Try again.", {"Retry-After": "2"})

        def run() -> T:
            try:
                return work()
            finally:
                self._chores.release()

        try:
            return self._hands.submit(run)
        except RuntimeError as error:  # the server is shutting down
            self._chores.release()
            raise ApiError(503, "the server is shutting down", "Try again later.", {"Retry-After": "30"}) from error

    def add_upload(self, data: bytes) -> StoredImage:
        """A file from a client."""
        name = self._name(data)
        known = self.pictures.get(name)
        return known or self._add(name, read_upload(data, self.limits))

    def add_sample(self, served: ServedModel, sample: str) -> StoredImage:
        """An embedded scene."""
        pixels = pixels_of(sample, served)
        if pixels is None:
            raise missing(f"sample {sample[:60]!r}", f"See /api/samples?model={served.id}.")
        name = self._name(pixels.tobytes())
        return self.pictures.get(name) or self._add(name, Upload(Image.fromarray(pixels), ()))

    def _name(self, data: bytes) -> str:
        """The same for the same file, and not to be guessed by who has not the file."""
        return hmac.new(self._secret, data, hashlib.sha256).hexdigest()[:24]

    def _add(self, name: str, upload: Upload) -> StoredImage:
        seen = {served.id: served.seen(upload.image) for served in self.models.values() if served.kind == "image"}
        width, height = upload.image.size
        picture = StoredImage(name, width, height, upload.notes, seen)
        self.pictures.put(name, picture, sum(a.nbytes for a in seen.values()) + 1024)
        return picture

    # -- what the model says ---------------------------------------------------------------------------------------

    def predicted(self, served: ServedModel, picture: str | None, source: Any) -> list[int] | None:
        """The predicted class, if the model was asked before; None if it has to be found out."""
        known = self._said.get(_question(served, picture, source))
        return None if known is None else [int(known.argmax())]

    def say(self, served: ServedModel, picture: str | None, source: Any) -> torch.Tensor:
        """Probabilities of the classes, shape (C,); to be called by the thread that uses the models."""
        from vitrail.targets import class_scores

        key = _question(served, picture, source)
        known = self._said.get(key)
        if known is None:
            known = class_scores(served.logits(source)[None], "prob")[0].cpu()
            self._said.put(key, known, known.numel() * 4 + len(key))
        return known

    # -- jobs ------------------------------------------------------------------------------------------------------

    def job(self, name: str) -> Job:
        """A job by id, at work or kept."""
        with self._lock:
            active = self._active.get(name)
        found = active[0] if active else self.finished.get(name)
        if found is None:
            raise missing("such job")
        return found

    def show(self, job: Job) -> dict[str, Any]:
        """A job as JSON."""
        with self._lock:
            active = self._active.get(job.id)
        return job.show(self.queue.ahead(active[1]) if active else 0)

    def start(self, job: Job, asked: Sequence[plan.Asked], client: Client) -> Job:
        """Queue a job.

        Raises:
            Refusal: 503, the queue is full.
        """
        work = JobRunner(job, asked, self.queue, self.limits, self.made)
        task = QueuedTask(client.key, deque(work.steps), lambda problem: self._ended(job, problem))
        with self._lock:
            self._active[job.id] = (job, task)
        try:
            self.queue.put(task)
        except ApiError:
            with self._lock:
                del self._active[job.id]
            raise
        return job

    def cancel(self, job: Job) -> None:
        """Stop a job: at once if it waits, else after its next look at the model."""
        job.cancelled.set()
        with self._lock:
            active = self._active.get(job.id)
        if active and self.queue.withdraw(active[1]):
            self._ended(job, CancelledWork())

    def _ended(self, job: Job, problem: BaseException | None) -> None:
        if isinstance(problem, CancelledWork) or (problem is None and job.cancelled.is_set() and not _whole(job)):
            state = "cancelled"
        elif problem is not None:
            log.error("a job failed", exc_info=problem)
            state = "failed"
        else:
            state = "failed" if all(item.state == "failed" for item in job.items) else "done"
        job.end(state)
        self.finished.put(job.id, job, job.size)
        with self._lock:
            self._active.pop(job.id, None)

    @property
    def busy(self) -> int:
        """How many jobs wait or run."""
        return len(self._active)

    def drawn(self, work: Callable[[], T]) -> T:
        """Draw something; one at a time, since matplotlib is not made for several threads."""
        with self._drawing:
            return work()

    def open(self) -> None:
        """Take work again after having been closed."""
        if self.queue.closed:
            self.queue = Queue(self.limits)
            self._hands = ThreadPoolExecutor(HANDS, "vitrail-chores")

    def close(self) -> None:
        """Stop everything."""
        with self._lock:
            active = [job for job, _ in self._active.values()]
        for job in active:
            job.cancelled.set()
        self.queue.close()
        for job in active:
            if not job.over:
                self._ended(job, CancelledWork())
        self._hands.shutdown(wait=False, cancel_futures=True)


def _question(served: ServedModel, picture: str | None, source: Any) -> str:
    return f"{served.id}|{picture}|{source if picture is None else ''}"


def _whole(job: Job) -> bool:
    return all(item.state in ("done", "failed") for item in job.items)
