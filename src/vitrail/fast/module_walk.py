"""Walk through the modules of a model faster than ``nn.Module.modules`` does, which builds a name for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import wraps
from operator import attrgetter, itemgetter
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from vitrail.fast.unchanged import promised_state

#: The version of a tensor, for which torch has no public name.
_get_version = attrgetter("_version")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class _Found(threading.local):
    """What was found of models during the call under way, by what it is and the model's id; with the model."""

    values: dict[tuple[str, int], tuple[nn.Module, Any]] | None = None


_found = _Found()


def cached_per_call(call: Callable[P, R]) -> Callable[P, R]:
    """Let a function that changes no module look at each model once, see `call_cache`. A call inside it looks again."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        before, _found.values = _found.values, {}
        try:
            return call(*args, **kwargs)
        finally:
            _found.values = before

    return run


def call_cache(what: str, model: nn.Module, find: Callable[[nn.Module], T]) -> T:
    """What ``find`` says of a model; asked once in a call of a function that `cached_per_call`.

    Where the model is promised not to change, it is asked once while the promise is kept.
    """
    known = _found.values
    if known is None:
        return find(model)
    key = (what, id(model))
    if key not in known:
        promised = promised_state(model)
        if promised is None:
            known[key] = (model, find(model))
        else:
            if what not in promised.found:
                promised.found[what] = find(model)
            known[key] = (model, promised.found[what])
    value: T = known[key][1]
    return value


def modules_of(model: nn.Module) -> list[nn.Module]:
    """All modules of a model, each once, in the order of ``model.modules()``.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
        >>> modules_of(model) == list(model.modules())
        True
    """
    return call_cache("modules", model, _walk)[0]


def weights_of(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers of a model, by module; shared ones come more than once.

    Example:
        >>> [tuple(t.shape) for t in weights_of(nn.Sequential(nn.Linear(2, 3)))]
        [(3, 2), (3,)]
    """
    return call_cache("modules", model, _walk)[1]


def float_parameter(model: nn.Module) -> nn.Parameter | None:
    """The first parameter of a model that holds real numbers, in the order of ``model.parameters()``; None for none.

    Example:
        >>> float_parameter(nn.Sequential(nn.ReLU(), nn.Linear(2, 3))).shape
        torch.Size([3, 2])
    """
    return call_cache("float parameter", model, _float_parameter)


def _float_parameter(model: nn.Module) -> nn.Parameter | None:
    held = (one for module in modules_of(model) for one in module.__dict__["_parameters"].values())
    return next((one for one in held if one is not None and one.is_floating_point()), None)


def weights_state(model: nn.Module) -> tuple[int, ...]:
    """Identity, version and place of each tensor, which change when weights are trained, loaded or swapped."""
    return call_cache("weights", model, _weights_state)


def _weights_state(model: nn.Module) -> tuple[int, ...]:
    tensors = weights_of(model)
    try:
        versions = list(map(_get_version, tensors))
    except RuntimeError:  # tensors of inference mode have none
        versions = [0 if t.is_inference() else _get_version(t) for t in tensors]
    return (*map(id, tensors), *versions, *addresses(tensors))


def addresses(tensors: Iterable[Tensor]) -> list[int]:
    """Where tensors lie in memory."""
    return [t.data_ptr() for t in tensors]


def _walk(model: nn.Module) -> tuple[list[nn.Module], list[Tensor]]:
    found: dict[int, nn.Module] = {}
    tensors: list[Tensor | None] = []
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            held = module.__dict__
            if held["_parameters"]:
                tensors += held["_parameters"].values()
            if held["_buffers"]:
                tensors += held["_buffers"].values()
            if held["_modules"]:
                waiting += [child for child in reversed(held["_modules"].values()) if child is not None]
    return list(found.values()), [tensor for tensor in tensors if tensor is not None]


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_hooks_of = itemgetter(*_HOOKS)
_HOOKS_OF_ALL_MODULES = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


def has_hooks(model: nn.Module) -> bool:
    """Whether hooks run inside a model's calls.

    Example:
        >>> model = nn.Sequential(nn.ReLU())
        >>> has_hooks(model)
        False
        >>> handle = model[0].register_forward_hook(lambda *_: None)
        >>> has_hooks(model)
        True
    """
    return call_cache("hooks", model, _has_hooks)


def _has_hooks(model: nn.Module) -> bool:
    if any(getattr(module_hooks, name, None) for name in _HOOKS_OF_ALL_MODULES):
        return True
    return any(any(_hooks_of(module.__dict__)) for module in modules_of(model))
