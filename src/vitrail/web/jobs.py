"""Jobs: what was requested, its state, and the items it consists of."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from time import monotonic
from typing import Any

from vitrail.pipeline.explanation import Explanation
from vitrail.web.encoding import replace_non_finite
from vitrail.web.page_targets import PageTarget, RequestedTarget, target_json, target_name
from vitrail.web.served_model import ServedModel

FINISHED = ("done", "failed", "cancelled")


@dataclass
class JobItem:
    """The result of one method in a job: a map for one class, or curves.

    Attributes:
        key: Its name within the job.
        method: The method with its options, as given.
        target: The class, prompt, box or region; None until the predicted class is known.
        state: "queued", "running" or one of ``FINISHED``.
        progress: From 0 to 1.
        seconds: Time the method took.
        error: What went wrong and how to fix it, if it failed.
        result: The fields that depend on the kind of job.
    """

    key: str
    method: str
    target: RequestedTarget | None = None
    state: str = "queued"
    progress: float = 0.0
    seconds: float | None = None
    error: dict[str, str] | None = None
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Job:
    """A request for maps or curves, and its results.

    Attributes:
        kind: "explain", "check" or "curves".
        served: The model.
        raw_input: The image's pixels at the model's input size, shape (height, width, 3), or the text.
        image_id: The id of the image, or None for a text.
        methods: For each method as given, its further options.
        targets: Classes, prompts, boxes or regions; None until the predicted class is known.
        seed: Seed of methods that draw random numbers.
        owners: Identities of the client that may cancel it.
        steps: Number of steps of curves.
        contrast: For the difference of two targets, the one that is subtracted.
        among: For curves of a prompt, the other prompts among which it has its share.
        request_key: Equal for jobs that ask for the same.
    """

    kind: str
    served: ServedModel
    raw_input: Any = field(repr=False)
    image_id: str | None
    methods: Mapping[str, Mapping[str, Any]]
    targets: list[RequestedTarget] | None
    seed: int
    owners: frozenset[str]
    steps: int = 0
    contrast: RequestedTarget | None = None
    among: tuple[RequestedTarget, ...] = ()
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: str = "queued"
    items: list[JobItem] = field(default_factory=list)
    explanations: dict[str, Explanation] = field(default_factory=dict, repr=False)
    cancelled: Event = field(default_factory=Event, repr=False)
    followers: int = 0
    followed_at: float = field(default_factory=monotonic)
    request_key: tuple[object, ...] = field(default=(), init=False, repr=False)
    _watchers: set[JobWatcher] = field(default_factory=set, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        text = self.raw_input if self.image_id is None else ""
        methods = tuple((name, repr(sorted(options.items()))) for name, options in self.methods.items())
        self.request_key = (
            self.kind, self.served.id, self.image_id, text, methods, tuple(self.targets or ()), self.seed, self.steps,
            self.contrast, self.among,
        )  # fmt: skip

    @property
    def finished(self) -> bool:
        """Whether the job is done, failed or cancelled."""
        return self.state in FINISHED

    @property
    def target_name(self) -> str:
        """The explained class, or "A against B" for the difference of two."""
        first = target_name((self.targets or [0])[0], self.served)
        return first if self.contrast is None else f"{first} against {target_name(self.contrast, self.served)}"

    @property
    def has_named_targets(self) -> bool:
        """Whether the targets are prompts, boxes or regions."""
        return any(isinstance(target, PageTarget) for target in self.targets or ())

    def shown_name(self, target: RequestedTarget | None) -> str | None:
        """The name of a target: that of an explanation, which knows the label of a box or region, if there is one."""
        if target is None or self.contrast is not None or not self.has_named_targets:
            return None if target is None else target_name(target, self.served)
        k = (self.targets or []).index(target)
        explained = next((e for e in self.explanations.values() if e.named_targets is not None), None)
        return target_name(target, self.served) if explained is None else explained.target_name(0, k)

    @property
    def size(self) -> int:
        """Approximate memory in bytes: tensors, and encoded maps."""
        kept = (t for e in self.explanations.values() for t in (e.maps, e.grid, e.images, e.logits) if t is not None)
        tensors = {t.data_ptr(): t for t in kept}.values()
        encoded = sum(len(m["data"]) for m in (i.result.get("map") for i in self.items) if m)
        return sum(t.numel() * t.element_size() for t in tensors) + encoded + 4096 * (1 + len(self.items))

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Count a follower, an event stream or a waiting request; called from the event loop."""
        self.followers += 1
        try:
            yield
        finally:
            self.followers -= 1
            self.followed_at = monotonic()

    def is_abandoned(self, grace: float) -> bool:
        """Whether nobody has followed the unfinished job for some seconds."""
        return not self.finished and not self.followers and monotonic() - self.followed_at > grace

    def notify(self, *items: JobItem) -> None:
        """Notify all watchers of changed items; without items, that the job is finished."""
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.notify([item.key for item in items])

    def finish(self, state: str) -> None:
        """Set the final state of the job and of its unfinished items."""
        unfinished = [item for item in self.items if item.state not in FINISHED]
        for item in unfinished:
            item.state = "cancelled" if state == "cancelled" else "failed"
            if state != "cancelled" and item.error is None:
                item.error = {"what": "the job ended before this result was computed", "fix": "Start it again."}
        self.state = state
        if unfinished:
            self.notify(*unfinished)
        self.notify()

    def watch(self) -> JobWatcher:
        """Add a watcher; remove it with `unwatch`."""
        watcher = JobWatcher(self)
        with self._lock:
            self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: JobWatcher) -> None:
        """Remove a watcher."""
        with self._lock:
            self._watchers.discard(watcher)

    def item(self, key: str) -> JobItem:
        """Return an item by its key."""
        return next(item for item in self.items if item.key == key)

    def to_json(self, ahead: int = 0) -> dict[str, Any]:
        """Convert the job to JSON; ``ahead`` is the number of jobs that run before it."""
        targets = self.targets or []
        return {
            "id": self.id, "kind": self.kind, "model": self.served.id, "picture": self.image_id,
            "text": self.raw_input if self.image_id is None else None,
            "targets": [target_json(t) for t in targets], "target_names": [self.shown_name(t) for t in targets],
            "state": self.state, "ahead": ahead,
            "contrast": target_json(self.contrast),
            "seed": self.seed, "items": [self.item_json(item) for item in self.items], "url": f"/r/{self.id}",
        }  # fmt: skip

    def item_json(self, item: JobItem) -> dict[str, Any]:
        """Convert an item to JSON."""
        empty: dict[str, Any]
        if self.kind == "explain":
            empty = {"flat": False, "map": None, "words": None}
        elif self.kind == "check":
            empty = {"check": None}
        else:
            empty = {"fractions": [], "deletion": [], "insertion": [], "deletion_auc": None, "insertion_auc": None}
        values = {
            "key": item.key, "method": item.method, "target": target_json(item.target),
            "contrast": target_json(self.contrast), "target_name": self.shown_name(item.target), "state": item.state,
            "progress": item.progress, "seconds": item.seconds, "error": item.error, **empty, **item.result,
        }  # fmt: skip
        return replace_non_finite(values)  # type: ignore[no-any-return]


class JobWatcher:
    """Receives changes of a job in an event loop; several changes of one item are reported once."""

    def __init__(self, job: Job) -> None:
        self.job, self.loop = job, asyncio.get_running_loop()
        self._keys: dict[str, None] = {}
        self._event = asyncio.Event()

    def notify(self, keys: list[str]) -> None:
        """Report changed items, from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._add, keys)
        except RuntimeError:  # the loop is closed
            self.job.unwatch(self)

    def _add(self, keys: list[str]) -> None:
        self._keys.update(dict.fromkeys(keys))
        self._event.set()

    async def wait(self, timeout: float) -> list[str]:
        """Wait for changed items and return their keys; empty after the timeout or when the job is finished."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout)
        except TimeoutError:
            return []
        return self.pending()

    def pending(self) -> list[str]:
        """Keys of items that changed since the last call."""
        self._event.clear()
        keys, self._keys = list(self._keys), {}
        return keys
