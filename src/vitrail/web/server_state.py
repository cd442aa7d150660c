"""The state of a server: its models, images, jobs and caches."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from vitrail.web.api_errors import ApiError, not_found
from vitrail.web.cache import BoundedStore, CheckCache, MapCache
from vitrail.web.jobs import Job
from vitrail.web.limits import Limits
from vitrail.web.model_kind import shown_pixels
from vitrail.web.originals import encode_original
from vitrail.web.page_targets import RequestedTarget
from vitrail.web.queue import JobCancelled, Queue, QueuedTask, log
from vitrail.web.request_batch import MapBatches, Predictions
from vitrail.web.runner import JobRunner
from vitrail.web.samples import sample_pixels
from vitrail.web.served_model import ServedModel
from vitrail.web.uploads import Upload, read_upload, read_video
from vitrail.web.validation import RequestedMethod, check_text

T = TypeVar("T")

BACKGROUND_THREADS = 2
#: Steps that run models at the same time, at most.
MAX_WORKERS = 4
#: Long steps that pause while those of other clients run, at most. Each has a thread and a copy of the model.
MAX_PAUSED = 6


@dataclass(frozen=True)
class Client:
    """The client of a request.

    Attributes:
        key: The key for taking turns: the cookie, or the address of a client without one.
        identities: The values by which the client is recognised later.
    """

    key: str
    identities: frozenset[str]


@dataclass(frozen=True, eq=False)
class StoredImage:
    """An image at the input size of each model, and reduced for display; the uploaded file is not kept.

    Attributes:
        id: Its id.
        width: Width of the uploaded image, after EXIF rotation.
        height: Height of the uploaded image.
        notes: Conversions that were applied.
        pixels: For each model id, bytes of shape (height, width, 3); for videos (frames, height, width, 3), for
            spectrograms (time, bins).
        original: The image as JPEG, see `vitrail.web.originals`.
    """

    id: str
    width: int
    height: int
    notes: tuple[str, ...]
    pixels: Mapping[str, np.ndarray[Any, Any]]
    original: bytes


class ServerState:
    """Models, images, jobs and caches of a server."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.cores = torch.get_num_threads()
        self.workers = self.limits.workers or min(MAX_WORKERS, self.cores)
        self.models = {served.id: served.for_workers(self.workers + MAX_PAUSED) for served in models}
        self._open_queues()
        self.images: BoundedStore[StoredImage] = BoundedStore(self.limits.images, self.limits.image_bytes)
        self.finished_jobs: BoundedStore[Job] = BoundedStore(self.limits.jobs, self.limits.job_bytes)
        self.map_cache = MapCache(4 * self.limits.jobs, self.limits.job_bytes // 2)
        self.check_cache = CheckCache(4 * self.limits.jobs)
        self.predictions = Predictions()
        self.batches = MapBatches(self.map_cache, self.predictions)
        self._active: dict[str, tuple[Job, QueuedTask]] = {}
        self._lock, self._draw_lock = Lock(), Lock()
        self.closing = False
        self._secret = secrets.token_bytes(32)

    def _open_queues(self) -> None:
        limits = self.limits
        self.queue = Queue(limits.queue, limits.queue_per_client, self.workers, cores=self.cores, paused=MAX_PAUSED)
        self._background = Queue(
            self.limits.files, self.limits.files_per_client, BACKGROUND_THREADS, "files being read or drawn"
        )

    # -- models and inputs -----------------------------------------------------------------------------------------

    def model(self, model_id: str) -> ServedModel:
        """Return a model by its id."""
        if model_id not in self.models:
            raise not_found(f"model {model_id[:60]!r}", f"Choose one of {', '.join(self.models)}.")
        return self.models[model_id]

    def image(self, image_id: str) -> StoredImage:
        """Return an image by its id."""
        found = self.images.get(image_id)
        if found is None:
            raise not_found("image", "It may have expired: upload it again.")
        return found

    def raw_input(self, served: ServedModel, image_id: str | None, text: str | None) -> Any:
        """The input of a request: the image's pixels at the model's input size, or the text."""
        if served.kind == "text":
            if text is None or image_id is not None:
                raise ApiError(422, f"{served.title} is a text model", "Send a text instead of an image.")
            return check_text(text, self.limits)
        if image_id is None or text is not None:
            raise ApiError(422, f"{served.title} is an image model", "Send the id of an image instead of a text.")
        return self.image_for(served, image_id)

    def image_for(self, served: ServedModel, image_id: str) -> np.ndarray[Any, Any]:
        """The pixels of an image, video or sound at the input size of a model."""
        pixels = self.image(image_id).pixels
        if served.id not in pixels:
            what = {"image": "images", "video": "videos", "sound": "sound"}[served.media]
            raise ApiError(
                422, f"{served.title} takes {what}, and this is something else", "Choose one of its samples."
            )
        return pixels[served.id]

    # -- images ----------------------------------------------------------------------------------------------------

    def run_in_background(self, client: Client, work: Callable[[], T]) -> Future[T]:
        """Run a function (decoding, drawing) in a background thread, in turns with other clients."""
        return self._background.submit(client.key, work)

    def add_upload(self, data: bytes, client: Client, served: ServedModel | None = None) -> StoredImage:
        """Decode and store an uploaded file: an image, or for a model of videos an animated one."""
        media = "image" if served is None else served.media
        image_id = self._image_id(media.encode() + data if media != "image" else data)
        if media != "image" and served is not None:
            known = self.images.get(image_id)
            return known or self._add_signal(image_id, read_video(data, served, self.limits), media, client.key)
        return self.images.get(image_id) or self._add_image(image_id, read_upload(data, self.limits), client.key)

    def add_sample(self, served: ServedModel, sample: str) -> StoredImage:
        """Store an embedded scene."""
        pixels = sample_pixels(sample, served)
        if pixels is None:
            raise not_found(f"sample {sample[:60]!r}", f"See /api/samples?model={served.id}.")
        image_id = self._image_id(pixels.tobytes())
        if served.media != "image":
            return self.images.get(image_id) or self._add_signal(image_id, pixels, served.media)
        return self.images.get(image_id) or self._add_image(image_id, Upload(Image.fromarray(pixels), ()))

    def _image_id(self, data: bytes) -> str:
        """An id that is equal for equal files and cannot be guessed without the file."""
        return hmac.new(self._secret, data, hashlib.sha256).hexdigest()[:24]

    def _add_signal(self, image_id: str, values: np.ndarray[Any, Any], media: str, owner: str = "") -> StoredImage:
        """Store a video or spectrogram for the models that take one of its shape."""
        fitting = [one for one in self.models.values() if one.media == media and one.input_shape == values.shape]
        shown = shown_pixels(values)
        height, width = shown.shape[:2]
        original = encode_original(Image.fromarray(shown))
        image = StoredImage(image_id, width, height, (), {one.id: values for one in fitting}, original)
        self.images.put(image_id, image, values.nbytes + len(original) + 1024, owner)
        return image

    def _add_image(self, image_id: str, upload: Upload, owner: str = "") -> StoredImage:
        fitting = [one for one in self.models.values() if one.kind == "image" and one.media == "image"]
        pixels = {served.id: served.pixels(upload.image) for served in fitting}
        width, height = upload.image.size
        image = StoredImage(image_id, width, height, upload.notes, pixels, encode_original(upload.image))
        self.images.put(image_id, image, sum(a.nbytes for a in pixels.values()) + len(image.original) + 1024, owner)
        return image

    # -- predictions -----------------------------------------------------------------------------------------------

    def cached_prediction(
        self, served: ServedModel, image_id: str | None, raw_input: Any
    ) -> list[RequestedTarget] | None:
        """The predicted class if it is already known, else None."""
        known = self.predictions.get(served, image_id, raw_input)
        return None if known is None or served.target_kind != "class" else [int(known.argmax())]

    def predict(
        self, client: Client, served: ServedModel, image_id: str | None, raw_input: Any
    ) -> Future[torch.Tensor]:
        """Class probabilities, shape (C,): those already known, or computed in turns with other clients."""
        known = self.predictions.get(served, image_id, raw_input)
        if known is None:
            group = self.predictions.group(served, image_id, raw_input)
            return self.queue.submit(client.key, lambda: self.predictions.compute(served, image_id, raw_input), group)
        future: Future[torch.Tensor] = Future()
        future.set_result(known)
        return future

    # -- jobs ------------------------------------------------------------------------------------------------------

    def job(self, job_id: str, client: Client | None = None) -> Job:
        """Return an active or finished job by its id; if its owner asks, that counts as following it."""
        with self._lock:
            active = self._active.get(job_id)
        found = active[0] if active else self.finished_jobs.get(job_id)
        if found is None:
            raise not_found("job")
        if client is not None and client.identities & found.owners:
            found.followed_at = monotonic()
        return found

    def job_json(self, job: Job) -> dict[str, Any]:
        """Convert a job to JSON, with its position in the queue."""
        with self._lock:
            active = self._active.get(job.id)
        return job.to_json(self.queue.ahead(active[1]) if active else 0)

    def start(self, job: Job, methods: Sequence[RequestedMethod], client: Client) -> Job:
        """Queue a job; if its results are known, it does not wait for those that run a model.

        Returns:
            The job, or an equal one of the same client that nobody follows at the moment: a page that was reloaded
            continues with the job that it has started.
        """
        if (same := self._abandoned(job)) is not None:
            same.followed_at = monotonic()
            return same
        runner = JobRunner(job, methods, self.queue, self.limits, self.batches, self.check_cache)
        task = QueuedTask(client.key, deque(runner.steps), lambda problem: self._finish(job, problem))
        with self._lock:
            self._active[job.id] = (job, task)
        try:
            (self._background if runner.is_cached else self.queue).put(task)
        except ApiError:
            with self._lock:
                del self._active[job.id]
            raise
        return job

    def _abandoned(self, job: Job) -> Job | None:
        """An unfinished job of the same client that asks for the same and that nobody follows."""
        with self._lock:
            active = [one for one, _ in self._active.values()]
        for one in active:
            is_free = not one.followers and not one.finished and not one.cancelled.is_set()
            if is_free and one.owners & job.owners and one.request_key == job.request_key:
                return one
        return None

    def cancel(self, job: Job) -> None:
        """Cancel a job: a queued one at once, a running one after the current batch."""
        job.cancelled.set()
        with self._lock:
            active = self._active.get(job.id)
        if active and self.queue.remove(active[1]):
            self._finish(job, JobCancelled())

    def cancel_abandoned(self) -> None:
        """Cancel the jobs that nobody follows."""
        with self._lock:
            jobs = [job for job, _ in self._active.values()]
        for job in jobs:
            if job.is_abandoned(self.limits.grace):
                self.cancel(job)

    def _finish(self, job: Job, problem: BaseException | None) -> None:
        if isinstance(problem, JobCancelled) or (problem is None and job.cancelled.is_set() and not _is_complete(job)):
            state = "cancelled"
        elif problem is not None:
            log.error("a job failed", exc_info=problem)
            state = "failed"
        else:
            state = "failed" if all(item.state == "failed" for item in job.items) else "done"
        job.finish(state)
        self.finished_jobs.put(job.id, job, job.size, min(job.owners, default=""))
        with self._lock:
            self._active.pop(job.id, None)

    @property
    def active_jobs(self) -> int:
        """Number of queued and running jobs."""
        return len(self._active)

    def usage(self) -> dict[str, dict[str, int]]:
        """Number and bytes of what is kept in memory, and their maxima."""
        stores: dict[str, BoundedStore[Any]] = {
            "images": self.images, "jobs": self.finished_jobs, "maps": self.map_cache.store,
            "checks": self.check_cache.store, "predictions": self.predictions.store,
        }  # fmt: skip
        return {name: store.usage() for name, store in stores.items()}

    def draw(self, work: Callable[[], T]) -> T:
        """Run a drawing function, one at a time: matplotlib is not thread-safe."""
        with self._draw_lock:
            return work()

    def open(self) -> None:
        """Accept work again after `close`."""
        self.closing = False
        if self.queue.closed:
            self._open_queues()

    def begin_close(self) -> None:
        """End all event streams and waiting requests, and cancel all jobs."""
        self.closing = True
        with self._lock:
            active = [job for job, _ in self._active.values()]
        for job in active:
            job.cancelled.set()
            job.notify()

    def close(self) -> None:
        """Cancel all jobs and stop all threads; a running step is not waited for longer than a moment."""
        self.begin_close()
        with self._lock:
            active = [job for job, _ in self._active.values()]
        self.queue.close()
        for job in active:
            if not job.finished:
                self._finish(job, JobCancelled())
        self._background.close()


def _is_complete(job: Job) -> bool:
    return all(item.state in ("done", "failed") for item in job.items)
