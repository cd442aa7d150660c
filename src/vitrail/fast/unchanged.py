"""Promises that a model does not change, and what is known to hold while one is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

_lock = threading.Lock()


class Promise:
    """One promise: from the outermost `unchanged` of a model to its end."""

    def __init__(self) -> None:
        self.depth = 0


_promises: WeakKeyDictionary[nn.Module, Promise] = WeakKeyDictionary()


class _Calls(threading.local):
    """Promise of the call that this thread is in, or None."""

    promise: Promise | None = None


_calls = _Calls()


@contextmanager
def one_call() -> Iterator[None]:
    """Count a block in this thread as one call, in which no model changes; a block inside it belongs to it."""
    outer = _calls.promise
    _calls.promise = outer or Promise()
    try:
        yield
    finally:
        _calls.promise = outer


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Promise that a model does not change in a block, so that a recorded pass is confirmed once in it.

    On a GPU, `vitrail.explain` replays recorded passes. Outside such a block, each call also runs the model as it is
    and compares the outputs, which takes one forward pass. Inside, this is done when a recording is first replayed.
    The promise holds for all threads. A model that is changed inside the block can get maps of its former state.

    Args:
        model: The model: what is passed to `vitrail.explain`.

    Example:
        >>> import torch, vitrail
        >>> from vitrail.testing import tiny_vit
        >>> model, images = tiny_vit(), torch.randn(2, 3, 32, 32)
        >>> with vitrail.unchanged(model):
        ...     maps = [vitrail.explain(model, image[None], "rollout").maps for image in images]
    """
    module = _innermost(model)
    with _lock:
        promise = _promises.setdefault(module, Promise())
        promise.depth += 1
    try:
        yield
    finally:
        with _lock:
            promise.depth -= 1
            if promise.depth == 0 and _promises.get(module) is promise:
                del _promises[module]


def promise_of(model: nn.Module) -> Promise | None:
    """The promise that is kept for a model: one that was given, or that of the call under way; None without either."""
    with _lock:
        given = _promises.get(_innermost(model))
    return given or _calls.promise


def _innermost(model: nn.Module) -> nn.Module:
    """The module inside wrappers: what `vitrail.load` returned, ``torch.compile`` and ``DataParallel``."""
    for name in ("module", "_orig_mod"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module) and (
            name == "_orig_mod"
            or not isinstance(model, nn.Module)
            or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
        ):
            return _innermost(inner)
    return model
