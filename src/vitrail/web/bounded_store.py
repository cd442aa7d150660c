"""Things kept for a while: bounded in number and bytes, the one nobody asked for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedStore(Generic[T]):
    """A mapping that forgets; safe to use from several threads.

    Args:
        count: Most things.
        size: Most bytes of all of them together.

    Example:
        >>> store = BoundedStore(count=2, size=100)
        >>> for name in "abc":
        ...     store.put(name, name.upper(), 10)
        >>> store.get("a"), store.get("b"), len(store), store.bytes
        (None, 'B', 2, 20)
        >>> store.put("d", "D", 95)
        >>> store.get("b"), store.get("d")
        (None, 'D')
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.bytes = 0
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._lock = Lock()

    def put(self, key: str, thing: T, size: int) -> None:
        """Keep something; others may have to go, and what is larger than all room is not kept at all."""
        with self._lock:
            self._drop(key)
            if size > self.size or self.count < 1:
                return
            self._kept[key] = (thing, size)
            self.bytes += size
            while self.bytes > self.size or len(self._kept) > self.count:
                self._drop(next(iter(self._kept)))

    def get(self, key: str) -> T | None:
        """Something kept, which is now the last to go; None if it is not here."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self, key: str) -> None:
        if key in self._kept:
            self.bytes -= self._kept.pop(key)[1]
