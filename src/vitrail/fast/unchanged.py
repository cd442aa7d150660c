"""Promises that a model does not change, and what is known to hold while one is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_lock = threading.Lock()


class State:
    """Identity of a model's state: as long as it is the same object, the model has not changed.

    Attributes:
        found: What was found of the model in this state, by name; used for promises only.
    """

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}


class _Promise:
    """One promise, from the outermost `unchanged` of a model to its end: how many blocks are open, and the state."""

    def __init__(self) -> None:
        self.depth = 0
        self.state = State()


_promises: WeakKeyDictionary[nn.Module, _Promise] = WeakKeyDictionary()


class _Call(threading.local):
    """State of models in the call that this thread is in, or None."""

    state: State | None = None


_call = _Call()


@contextmanager
def one_call() -> Iterator[None]:
    """Count a block in this thread as one call, in which no model changes but in calls inside it."""
    outer = _call.state
    _call.state = State()
    try:
        yield
    finally:
        _call.state = outer


def current_call() -> State | None:
    """An object that stands for the call that this thread is in, or None outside of one."""
    return _call.state


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
        promise = _promises.setdefault(module, _Promise())
        promise.depth += 1
    try:
        yield
    finally:
        with _lock:
            promise.depth -= 1
            if promise.depth == 0 and _promises.get(module) is promise:
                del _promises[module]


def changed(model: nn.Module) -> None:
    """State that a model was changed inside a promise, as by a test that randomises weights."""
    with _lock:
        promise = _promises.get(_innermost(model))
        if promise is not None:
            promise.state = State()
    if _call.state is not None:
        _call.state = State()


def promised_state(model: nn.Module) -> State | None:
    """State of a model for which a promise was given: the module that calls are made with, not a part of it."""
    if not _promises:  # as in most calls
        return None
    with _lock:
        promise = _promises.get(model)
    return None if promise is None else promise.state


def state_of(model: nn.Module) -> State | None:
    """State of a model for which a promise was given or a call is under way; None without either."""
    with _lock:
        promise = _promises.get(_innermost(model))
    return _call.state if promise is None else promise.state


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
