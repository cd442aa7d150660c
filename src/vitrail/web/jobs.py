"""What was asked for and how far it is: jobs, and the items each is made of."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

from vitrail.explanation import Explanation
from vitrail.web.encoding import finite
from vitrail.web.model import ServedModel

OVER = ("done", "failed", "cancelled")


@dataclass
class Item:
    """One method's part of a job: a map for a class, or its curves.

    Attributes:
        key: Its name within the job.
        method: The method as it was asked for.
        target: The class, or None while it is not known.
        state: "queued", "running" or one of ``OVER``.
        progress: From 0 to 1.
        seconds: Time the method took.
        error: What went wrong and what to do, if it failed.
        more: What came out, in the form of the item's kind.
    """

    key: str
    method: str
    target: int | None = None
    state: str = "queued"
    progress: float = 0.0
    seconds: float | None = None
    error: dict[str, str] | None = None
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Job:
    """Something asked for.

    Attributes:
        kind: "explain" or "curves".
        served: The model.
        source: The picture's bytes as the model sees it, shape (height, width, 3), or the text.
        picture: The picture's id, or None for a text.
        methods: Options of each method beyond its spec, by spec.
        targets: Classes, or None until the predicted one is known.
        seed: Of methods that draw numbers.
        owners: Who may cancel it.
        steps: Of curves, how many levels.
    """

    kind: str
    served: ServedModel
    source: Any = field(repr=False)
    picture: str | None
    methods: Mapping[str, Mapping[str, Any]]
    targets: list[int] | None
    seed: int
    owners: frozenset[str]
    steps: int = 0
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    state: str = "queued"
    items: list[Item] = field(default_factory=list)
    found: dict[str, Explanation] = field(default_factory=dict, repr=False)
    cancelled: Event = field(default_factory=Event, repr=False)
    streams: int = 0
    _watchers: set[Watcher] = field(default_factory=set, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self.state in OVER

    @property
    def size(self) -> int:
        """Bytes it keeps, roughly: tensors, and items as they are sent."""
        kept = (t for e in self.found.values() for t in (e.maps, e.grid, e.images, e.logits) if t is not None)
        tensors = {t.data_ptr(): t for t in kept}.values()
        sent = sum(len(m["data"]) for m in (i.more.get("map") for i in self.items) if m)
        return sum(t.numel() * t.element_size() for t in tensors) + sent + 4096 * (1 + len(self.items))

    def changed(self, *items: Item) -> None:
        """Tell everybody who watches; with no items, that the job is over."""
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.tell([item.key for item in items])

    def end(self, state: str) -> None:
        """Nothing more will come."""
        left = [item for item in self.items if item.state not in OVER]
        for item in left:
            item.state = "cancelled" if state == "cancelled" else "failed"
            if state != "cancelled" and item.error is None:
                item.error = {"what": "the job ended before this was made", "fix": "Start it again."}
        self.state = state
        if left:
            self.changed(*left)
        self.changed()

    def watch(self) -> Watcher:
        """Be told of changes from now on; to be closed afterwards."""
        watcher = Watcher(self)
        with self._lock:
            self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Be told no more."""
        with self._lock:
            self._watchers.discard(watcher)

    def item(self, key: str) -> Item:
        """An item by its key."""
        return next(item for item in self.items if item.key == key)

    def show(self, ahead: int = 0) -> dict[str, Any]:
        """The job as JSON."""
        targets = self.targets or []
        return {
            "id": self.id, "kind": self.kind, "model": self.served.id, "picture": self.picture,
            "text": self.source if self.picture is None else None, "targets": targets,
            "target_names": [self.served.name_of(t) for t in targets], "state": self.state, "ahead": ahead,
            "seed": self.seed, "items": [self.show_item(item) for item in self.items], "url": f"/r/{self.id}",
        }  # fmt: skip

    def show_item(self, item: Item) -> dict[str, Any]:
        """One of its items as JSON."""
        blank: dict[str, Any]
        if self.kind == "explain":
            blank = {"flat": False, "map": None, "words": None}
        else:
            blank = {"fractions": [], "deletion": [], "insertion": [], "deletion_auc": None, "insertion_auc": None}
        shown = {
            "key": item.key, "method": item.method, "target": item.target,
            "target_name": None if item.target is None else self.served.name_of(item.target), "state": item.state,
            "progress": item.progress, "seconds": item.seconds, "error": item.error, **blank, **item.more,
        }  # fmt: skip
        return finite(shown)  # type: ignore[no-any-return]


class Watcher:
    """Somebody who waits for news of a job, in an event loop; news of one item overtake older ones."""

    def __init__(self, job: Job) -> None:
        self.job, self.loop = job, asyncio.get_running_loop()
        self._news: dict[str, None] = {}
        self._event = asyncio.Event()

    def tell(self, keys: list[str]) -> None:
        """News, from any thread."""
        try:
            self.loop.call_soon_threadsafe(self._note, keys)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self.job.unwatch(self)

    def _note(self, keys: list[str]) -> None:
        self._news.update(dict.fromkeys(keys))
        self._event.set()

    async def news(self, patience: float) -> list[str]:
        """Keys of items that changed; an empty list after a while without any, or when the job is over."""
        try:
            await asyncio.wait_for(self._event.wait(), patience)
        except TimeoutError:
            return []
        return self.rest()

    def rest(self) -> list[str]:
        """News that have come and were not asked for."""
        self._event.clear()
        keys, self._news = list(self._news), {}
        return keys
