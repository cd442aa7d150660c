"""Images of the next chunk, read, decoded and joined to batches by threads while the present one is computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")
Batch = TypeVar("Batch")
#: Most threads that read images.
MOST_THREADS = 16


class ReadAhead(Generic[T, Batch]):
    """Reads the items of a chunk ahead; at most the current chunk and the next one are held.

    Args:
        join: Joins the items of a batch. It runs in a thread of its own.
        threads: Number of threads that read. Default: one less than the machine's cores. They start with the first
            chunk.

    Attributes:
        waited: Seconds spent waiting for batches that were not ready.

    Example:
        >>> ahead = ReadAhead(sum, threads=2)
        >>> ahead.start("next", abs, [-1, -2, -3], 2)
        >>> list(ahead.batches("next", abs, [-1, -2, -3], 2)), list(ahead.batches("other", abs, [-3], 2))
        ([3, 3], [3])
    """

    def __init__(self, join: Callable[[list[T]], Batch], threads: int | None = None) -> None:
        self.threads = threads or max(2, min(MOST_THREADS, (os.cpu_count() or 2) - 1))
        self.join = join
        self.waiting: dict[str, tuple[list[Future[T]], list[Future[Batch]]]] = {}
        self.waited = 0.0
        self._open_pools()
        _OPENED.add(self)

    def _open_pools(self) -> None:
        self.readers = ThreadPoolExecutor(self.threads, thread_name_prefix="vitrail-read")
        self.joiner = ThreadPoolExecutor(1, thread_name_prefix="vitrail-join")

    def start(self, name: str, read: Callable[[int], T], indices: Sequence[int], size: int) -> None:
        """Begin to read a chunk in batches of some size, if it does not wait already; the oldest of three is dropped.

        Args:
            name: Name of the chunk.
            read: Reads an item by its index.
            indices: The items.
            size: Items in a batch.
        """
        if name in self.waiting:
            return
        items = [self.readers.submit(read, index) for index in indices]
        batches = [self.joiner.submit(self._join, items[k : k + size]) for k in range(0, len(items), size)]
        self.waiting[name] = items, batches
        while len(self.waiting) > 2:
            dropped_items, dropped = self.waiting.pop(next(iter(self.waiting)))
            for batch in dropped:
                batch.cancel()
            for item in dropped_items:
                item.cancel()

    def _join(self, items: list[Future[T]]) -> Batch:
        return self.join([item.result() for item in items])

    def batches(self, name: str, read: Callable[[int], T], indices: Sequence[int], size: int) -> Iterator[Batch]:
        """Yield the batches of a chunk in order, those that were read ahead or read now."""
        self.start(name, read, indices, size)
        _, batches = self.waiting.pop(name)
        batches.reverse()
        while batches:
            started = perf_counter()
            batch = batches.pop().result()  # the list forgets it, so that its memory is free once it is used
            self.waited += perf_counter() - started
            yield batch

    def cancel(self) -> None:
        """Read nothing of what was started; items that are being read now are the last."""
        readers, joiner = self.readers, self.joiner
        self.waiting.clear()
        self._open_pools()
        for pool in (joiner, readers):
            pool.shutdown(wait=False, cancel_futures=True)


#: All readers, which the end of the process waits for.
_OPENED: WeakSet[ReadAhead[Any, Any]] = WeakSet()


def cancel_reading() -> None:
    """Cancel what threads of this process read ahead, so that a program that is interrupted ends."""
    for ahead in list(_OPENED):
        ahead.cancel()
