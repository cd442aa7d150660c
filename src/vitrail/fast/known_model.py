"""What is known of a model from earlier calls: one store for all of it.

Everything here only saves time. What is read from the store is a hypothesis, which the call that reads it confirms on
its own pass before it relies on it. Models are referred to weakly: what is known of a model goes with it. Each table
of a model holds a bounded number of entries; the oldest is dropped first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn


@dataclass(frozen=True)
class KnownTable:
    """A kind of fact about models.

    Attributes:
        what: What an entry holds, for documentation.
        entries: Most entries that are kept of one model.
    """

    what: str
    entries: int


#: All that is kept of a model, by name.
TABLES = {
    "structure": KnownTable("attention layers, tokens, patch order and readout, by shape and type of the inputs", 32),
    "outputs": KnownTable("kind and number of the outputs, by how they are read", 8),
    "adapters": KnownTable("effective weight and bias of a linear layer with adapters", 1),
    "adapted layers": KnownTable("which of its modules have adapters", 1),
    "window positions": KnownTable("where the rows of attention windows lie, by shape of the inputs", 8),
    "feature order": KnownTable("whether features lie on the image's grid, by structure and grid", 32),
    "unknown order": KnownTable("the call that warned of features whose order could not be measured, by grid", 32),
    "weights hash": KnownTable("SHA-256 of parameters and buffers", 1),
    "weights table": KnownTable("where parameters and buffers lie on a GPU", 1),
    "explainers": KnownTable("a trained Shapley explainer, and the hash of the weights it was trained for", 4),
    "recordings": KnownTable("recorded passes on a GPU, and the memory they compute in", 64),
    "calls": KnownTable("recent calls that recorded passes served", 64),
}
_Tables = dict[str, "OrderedDict[Hashable, Any]"]


@dataclass
class _Store:
    lock: threading.RLock = field(default_factory=threading.RLock)
    models: WeakKeyDictionary[nn.Module, _Tables] = field(default_factory=WeakKeyDictionary)
    #: Called with a model that is forgotten, to free what lies outside the store.
    listeners: list[Callable[[nn.Module], None]] = field(default_factory=list)


_store = _Store()


def recall(model: nn.Module, table: str, key: Hashable = None) -> Any:
    """What is known of a model under a key, or None.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> remember(layer, "outputs", ("scores", 2))
        ('scores', 2)
        >>> recall(layer, "outputs"), forget_module(layer), recall(layer, "outputs")
        (('scores', 2), None, None)
    """
    with _store.lock:
        entries = _store.models.get(model, {}).get(table)
        if entries is None or key not in entries:
            return None
        entries.move_to_end(key)
        return entries[key]


def remember(model: nn.Module, table: str, value: Any, key: Hashable = None) -> Any:
    """Keep a fact of a model, and return it; the oldest one of a full table is dropped."""
    most = TABLES[table].entries
    with _store.lock:
        entries = _store.models.setdefault(model, {}).setdefault(table, OrderedDict())
        entries[key] = value
        entries.move_to_end(key)
        while len(entries) > most:
            entries.popitem(last=False)
    return value


def drop(model: nn.Module, table: str) -> None:
    """Forget one table of a model."""
    with _store.lock:
        _store.models.get(model, {}).pop(table, None)


@contextmanager
def known_models() -> Iterator[WeakKeyDictionary[nn.Module, _Tables]]:
    """All tables of all models, held by one thread at a time."""
    with _store.lock:
        yield _store.models


def on_forget(listener: Callable[[nn.Module], None]) -> None:
    """Register a function that frees what is kept of a model elsewhere."""
    with _store.lock:
        _store.listeners.append(listener)


def forget_module(model: nn.Module) -> None:
    """Drop everything that is known of a module and of the modules in it, and return unused GPU memory."""
    with _store.lock:
        modules = list(model.modules())
        for module in modules:
            _store.models.pop(module, None)
        for listener in _store.listeners:
            listener(model)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def sizes(model: nn.Module | None = None) -> dict[str, int]:
    """Number of entries by table, of one model and its modules or of all models.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> _ = remember(layer, "outputs", ("scores", 2))
        >>> sizes(layer)
        {'outputs': 1}
    """
    with _store.lock:
        kept = None if model is None else set(map(id, model.modules()))
        found: dict[str, int] = {}
        for module, tables in list(_store.models.items()):
            if kept is None or id(module) in kept:
                for name, entries in tables.items():
                    found[name] = found.get(name, 0) + len(entries)
        return {name: count for name, count in found.items() if count}
