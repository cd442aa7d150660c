"""Ignore warnings in several threads at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

_lock, _holders, _stack = Lock(), list[None](), ExitStack()


@contextmanager
def ignored_warnings() -> Iterator[None]:
    """Ignore warnings until the last of all threads inside has left.

    Python has one list of filters for all threads: if two threads changed and restored it in turns, as
    `warnings.catch_warnings` does, the filters of one would stay.

    Example:
        >>> with ignored_warnings():
        ...     warnings.warn("not shown", stacklevel=1)
    """
    with _lock:
        if not _holders:
            _stack.enter_context(warnings.catch_warnings(action="ignore"))
        _holders.append(None)
    try:
        yield
    finally:
        with _lock:
            _holders.pop()
            if not _holders:
                _stack.close()
