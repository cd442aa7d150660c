"""Images of the next chunk, read and decoded by threads while the present one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Reads items of a chunk before they are asked for; the present chunk and the next one wait, no others.

    Args:
        threads: Number of threads. They start with the first chunk.

    Example:
        >>> ahead = ReadAhead(threads=2)
        >>> ahead.start("next", abs, [-1, -2])
        >>> list(ahead.items("next", abs, [-1, -2])), list(ahead.items("other", abs, [-3]))
        ([1, 2], [3])
    """

    def __init__(self, threads: int = 8) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="vitrail-read")
        self.waiting: dict[str, list[Future[T]]] = {}

    def start(self, name: str, read: Callable[[int], T], indices: Sequence[int]) -> None:
        """Begin to read the items of a chunk, if it does not wait already; the oldest of three is dropped."""
        if name in self.waiting:
            return
        self.waiting[name] = [self.pool.submit(read, index) for index in indices]
        while len(self.waiting) > 2:
            for future in self.waiting.pop(next(iter(self.waiting))):
                future.cancel()

    def items(self, name: str, read: Callable[[int], T], indices: Sequence[int]) -> Iterator[T]:
        """Yield the items of a chunk in order, those that were read ahead or read now."""
        self.start(name, read, indices)
        for future in self.waiting.pop(name):
            yield future.result()
