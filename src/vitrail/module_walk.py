"""Walk through the modules of a model faster than ``nn.Module.modules`` does, which builds a name for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from torch import Tensor, nn

P = ParamSpec("P")
R = TypeVar("R")


class _Walks(threading.local):
    """Modules of the models that were walked through during the call under way, by the model's id."""

    found: dict[int, list[nn.Module]] | None = None


_walks = _Walks()


def walks_once(call: Callable[P, R]) -> Callable[P, R]:
    """Let a function that replaces no modules walk through each model once. A call inside it walks again."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        before, _walks.found = _walks.found, {}
        try:
            return call(*args, **kwargs)
        finally:
            _walks.found = before

    return run


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules of a model, each once, in the order of ``model.modules()``.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
        >>> modules_of(model) == list(model.modules())
        True
    """
    known = _walks.found
    if known is None:
        return _walk(model)
    if id(model) not in known:
        known[id(model)] = _walk(model)
    return known[id(model)]


def _walk(model: nn.Module) -> list[nn.Module]:
    found: dict[int, nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            children = module._modules  # noqa: SLF001
            if children:
                waiting += [child for child in reversed(children.values()) if child is not None]
    return list(found.values())


def tensors_of(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Parameters and buffers that the modules hold themselves; shared ones come more than once."""
    for module in modules:
        for held in (module._parameters, module._buffers):  # noqa: SLF001
            for tensor in held.values():
                if tensor is not None:
                    yield tensor
