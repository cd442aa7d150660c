"""Caches in memory: a bounded least-recently-used store, and maps and their checks for each class."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vitrail.pipeline.explanation import Explanation
from vitrail.trust.map_check import MapCheck
from vitrail.web.jobs import Job
from vitrail.web.page_targets import RequestedTarget
from vitrail.web.validation import RequestedMethod

T = TypeVar("T")
#: About the size of a check: its sentences, and the key, which may contain a text.
_CHECK_BYTES = 8192
_BY_TARGET = ("maps", "grid", "constant", "targets")


class BoundedStore(Generic[T]):
    """A thread-safe mapping, bounded in number and bytes.

    The owner with the most bytes loses its least recently used value first, so that one client cannot displace the
    values of the others.

    Example:
        >>> store = BoundedStore(count=2, size=100)
        >>> for name in "abc":
        ...     store.put(name, name.upper(), 10)
        >>> store.get("a"), store.get("b"), len(store), store.bytes
        (None, 'B', 2, 20)
        >>> store.put("d", "D", 95)
        >>> store.get("b"), store.get("d")
        (None, 'D')
        >>> store = BoundedStore(count=3, size=100)
        >>> for owner, name in ("me", "mine"), ("you", "first"), ("you", "second"), ("you", "third"):
        ...     store.put(name, name, 10, owner)
        >>> store.get("mine"), store.get("first")
        ('mine', None)
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.bytes = 0
        self._values: OrderedDict[str, tuple[T, int, str]] = OrderedDict()
        self._bytes_by_owner: Counter[str] = Counter()
        self._lock = Lock()

    def put(self, key: str, value: T, size: int, owner: str = "") -> None:
        """Store a value and drop old ones if necessary; a value larger than the whole store is not stored."""
        with self._lock:
            self._drop(key)
            if size > self.size or self.count < 1:
                return
            self._values[key] = (value, size, owner)
            self.bytes += size
            self._bytes_by_owner[owner] += size
            while self.bytes > self.size or len(self._values) > self.count:
                most = max(self._bytes_by_owner.values())
                self._drop(next(k for k, entry in self._values.items() if self._bytes_by_owner[entry[2]] == most))

    def get(self, key: str) -> T | None:
        """Return a value and mark it as recently used; None if it is not stored."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def usage(self) -> dict[str, int]:
        """Number and bytes of the values, and their maxima."""
        return {"count": len(self), "max_count": self.count, "bytes": self.bytes, "max_bytes": self.size}

    def __len__(self) -> int:
        return len(self._values)

    def _drop(self, key: str) -> None:
        if key in self._values:
            _, size, owner = self._values.pop(key)
            self.bytes -= size
            self._bytes_by_owner[owner] -= size
            if not self._bytes_by_owner[owner]:
                del self._bytes_by_owner[owner]


class MapCache:
    """Computed explanations, one entry for each class: a further class or a request for curves reuses them."""

    def __init__(self, count: int, size: int) -> None:
        self.store: BoundedStore[Explanation] = BoundedStore(count, size)

    def put(
        self, job: Job, method: RequestedMethod, targets: Sequence[RequestedTarget], explanation: Explanation
    ) -> None:
        """Store the explanation of some classes of a job's input by one method."""
        for k, target in enumerate(targets):
            entry = _select_target(explanation, k)
            size = sum(getattr(entry, name).nbytes for name in _BY_TARGET if getattr(entry, name) is not None)
            self.store.put(_key(job, method, target), entry, size + 4096)

    def get(self, job: Job, method: RequestedMethod, targets: Sequence[RequestedTarget]) -> Explanation | None:
        """Return the explanation of some classes of a job's input by one method, or None if a class is missing."""
        entries = [self.store.get(_key(job, method, target)) for target in targets]
        found = [entry for entry in entries if entry is not None]
        return _concatenate(found) if found and len(found) == len(entries) else None


class CheckCache:
    """Results of checks, one for each map: the same map is not checked twice."""

    def __init__(self, count: int) -> None:
        self.store: BoundedStore[MapCheck] = BoundedStore(count, count * _CHECK_BYTES)

    def put(self, job: Job, method: RequestedMethod, target: RequestedTarget, check: MapCheck) -> None:
        """Store the check of one map of a job's input."""
        self.store.put(f"{_key(job, method, target)}|{job.seed}", check, _CHECK_BYTES)

    def get(self, job: Job, method: RequestedMethod, target: RequestedTarget) -> MapCheck | None:
        """Return the check of one map of a job's input, or None if it is not known."""
        return self.store.get(f"{_key(job, method, target)}|{job.seed}")

    def of_job(self, job: Job) -> dict[str, dict[int, MapCheck]]:
        """The known checks of a job's maps: for each method as given, by position of the target."""
        found: dict[str, dict[int, MapCheck]] = {}
        for label, options in job.methods.items():
            keys = [f"{_label_key(job, label, options, target)}|{job.seed}" for target in job.targets or ()]
            checks = {k: self.store.get(key) for k, key in enumerate(keys)}
            found[label] = {k: check for k, check in checks.items() if check is not None}
        return found


def _key(job: Job, method: RequestedMethod, target: RequestedTarget) -> str:
    return _label_key(job, method.label, method.extra_options, target)


def _label_key(job: Job, label: str, options: Mapping[str, Any], target: RequestedTarget) -> str:
    text = job.raw_input if job.image_id is None else ""
    given = sorted(options.items())
    return f"{job.served.id}|{job.image_id}|{text}|{label}|{given}|{target}|{job.contrast}"


def _select_target(explanation: Explanation, k: int) -> Explanation:
    """The explanation of one class without its input; tensors are copied so that the other classes can be freed."""

    def select(tensor: Tensor) -> Tensor:
        return tensor[:, k : k + 1].cpu().clone()

    changed: dict[str, Any] = {
        name: select(value) for name in _BY_TARGET if (value := getattr(explanation, name)) is not None
    }
    changed["source"] = None
    changed["images"], changed["logits"] = None, None if explanation.logits is None else explanation.logits.cpu()
    changed["signal"] = None
    if explanation.named_targets is not None:
        changed["named_targets"] = tuple(row[k : k + 1] for row in explanation.named_targets)
    if explanation.text is not None and len(explanation.text) > 1:  # prompts have a text for each target
        changed["text"] = tuple(explanation.text[k : k + 1])
    elif explanation.text is not None:
        rows = slice(k, k + 1)
        changed["text"] = tuple(
            replace(t, scores=t.scores[rows], normalised=t.normalised[rows], token_scores=t.token_scores[rows])
            for t in explanation.text
        )
    return replace(explanation, **changed)


def to_cpu(explanation: Explanation) -> Explanation:
    """Copy the tensors of an explanation to the CPU."""
    names = (*_BY_TARGET, "logits", "images", "signal")
    return replace(explanation, **{n: t.cpu() for n in names if (t := getattr(explanation, n)) is not None})


def _concatenate(entries: Sequence[Explanation]) -> Explanation:
    """Join explanations of one class each, by the same method for the same input."""
    first = entries[0]
    changed: dict[str, Any] = {
        name: torch.cat([getattr(entry, name) for entry in entries], 1)
        for name in _BY_TARGET
        if getattr(first, name) is not None
    }
    if first.named_targets is not None:
        changed["named_targets"] = (tuple(e.named_targets[0][0] for e in entries if e.named_targets is not None),)
    texts = [entry.text[0] for entry in entries if entry.text is not None]
    if len({text.words for text in texts}) > 1:  # prompts have a text for each target
        changed["text"] = tuple(texts)
    elif texts:
        scores, normalised = torch.cat([t.scores for t in texts]), torch.cat([t.normalised for t in texts])
        tokens = torch.cat([t.token_scores for t in texts])
        changed["text"] = (replace(texts[0], scores=scores, normalised=normalised, token_scores=tokens),)
    return replace(first, **changed)
