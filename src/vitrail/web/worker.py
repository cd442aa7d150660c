"""Which thread of a queue runs."""

from __future__ import annotations

import threading

_thread = threading.local()


def worker_index() -> int:
    """The index of the calling thread among those of its queue; 0 in any other thread.

    Example:
        >>> worker_index()
        0
    """
    return getattr(_thread, "index", 0)


def set_worker_index(index: int) -> None:
    """Set the index of the calling thread."""
    _thread.index = index
