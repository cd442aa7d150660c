"""What Python decides in a model besides its weights: attributes, forward functions and hooks of all its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from vitrail.fast.module_walk import modules_of, once

_SCALARS = frozenset((bool, int, float, str, type(None)))
#: Attributes that every module has for its parameters, buffers, modules and hooks.
_REGISTRIES = frozenset(name for name, value in vars(nn.Module()).items() if isinstance(value, dict | set))
_FUNCTIONS = frozenset((FunctionType, BuiltinFunctionType, type))
#: Of longer lists and dicts only the length counts: they are tables of names.
_MOST_ENTRIES = 256
#: Lists of attribute names that are remembered.
_MOST_KINDS = 1024
_own_values: dict[tuple[str, ...], Callable[[dict[str, Any]], tuple[Any, ...]]] = {}
_EVERYWHERE = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


@dataclass(frozen=True)
class ModuleState:
    """What was found of a model's modules.

    Attributes:
        key: A number that changes when modules, their attributes or their functions do.
        hooked: Whether anything of the user's runs inside the model's calls.
        tensors: Tensors that are attributes, and no parameters or buffers.
    """

    key: int
    hooked: bool
    tensors: tuple[Tensor, ...]


def module_state(model: nn.Module) -> ModuleState:
    """The state of a model's modules; looked at once in a call, see `vitrail.fast.module_walk.once`.

    Numbers and texts in attributes count, also in tuples and lists, and in objects such as a configuration.

    Example:
        >>> model = nn.Sequential(nn.Dropout(0.1))
        >>> before = module_state(model)
        >>> model[0].p = 0.2
        >>> before.key != module_state(model).key, before.hooked
        (True, False)
    """
    return once("state", model, _read_modules)


def _read_modules(model: nn.Module) -> ModuleState:
    parts: list[Any] = []
    tensors: list[Tensor] = []
    objects: dict[int, Any] = {}
    hooked = any(getattr(module_hooks, name, None) for name in _EVERYWHERE)
    for module in modules_of(model):
        held = module.__dict__
        names = tuple(held)
        parts += (id(module), getattr(type(module), "forward", None))
        for value in (_own_values.get(names) or _find_own(names))(held):
            kind = type(value)
            if kind in _SCALARS or (kind is tuple and _SCALARS.issuperset(map(type, value))):
                parts.append(value)
            elif kind not in _FUNCTIONS:
                objects[id(value)] = value
        if held["_forward_hooks"] or held["_forward_pre_hooks"]:
            hooked = True
        if held["_backward_hooks"] or held["_backward_pre_hooks"]:
            hooked = True
        if "forward" in held:
            parts.append(id(held["forward"]))
    for value in objects.values():
        parts += _entries(value, tensors)
    return ModuleState(hash(tuple(parts)), hooked, tuple(tensors))


def _find_own(names: tuple[str, ...]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """From a module's attributes, by their names, to those that are no registries; remembered, as few names occur."""
    if len(_own_values) >= _MOST_KINDS:
        _own_values.clear()
    own = [name for name in names if name not in _REGISTRIES]
    _own_values[names] = itemgetter(*own) if len(own) > 1 else lambda held: tuple(held[name] for name in own)
    return _own_values[names]


def _entries(value: Any, tensors: list[Tensor]) -> Iterator[Any]:
    """Numbers and texts in an attribute, and where its tensors lie; these are added to ``tensors``."""
    if isinstance(value, Tensor):
        tensors.append(value)
        yield id(value)
        yield 0 if value.is_inference() else value._version  # noqa: SLF001 - torch has no public version counter
        yield value.data_ptr()
        return
    if isinstance(value, nn.Module | type):
        return
    held = value.values() if isinstance(value, dict) else value
    if not isinstance(value, list | tuple | dict):
        held = getattr(value, "__dict__", {}).values()
    yield len(held)
    if len(held) <= _MOST_ENTRIES:
        for one in held:
            if type(one) in _SCALARS:
                yield one
            elif isinstance(one, Tensor | list | tuple | dict):
                yield from _entries(one, tensors)
