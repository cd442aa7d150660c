"""Tensors inside nested arguments and results: mappings, tuples, lists and dataclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

#: Deeper nests are left as they are; a structure that holds itself would have no end.
MAX_DEPTH = 6


def named_tensors(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a nested value with its name, in order: keys and fields after a dot, indices in brackets.

    Example:
        >>> import torch
        >>> nested = {"image": torch.zeros(1), "text": (torch.zeros(2), 3)}
        >>> [(name, len(tensor)) for name, tensor in named_tensors(nested)]
        [('image', 1), ('text[0]', 2)]
    """
    if isinstance(value, Tensor):
        yield name, value
    elif depth < MAX_DEPTH:
        for part, item in _items(value):
            yield from named_tensors(item, part if not name else name + _joined(part), depth + 1)


def map_tensors(value: Any, change: Callable[[Tensor], Any], depth: int = 0) -> Any:
    """The same nested value with every tensor changed; values without tensors stay the same objects.

    Example:
        >>> import torch
        >>> map_tensors({"a": [torch.ones(2)], "b": "text"}, torch.sum)
        {'a': [tensor(2.)], 'b': 'text'}
    """
    if isinstance(value, Tensor):
        return change(value)
    if depth >= MAX_DEPTH:
        return value
    items = list(_items(value))
    changed = [map_tensors(item, change, depth + 1) for _, item in items]
    if all(new is old for new, (_, old) in zip(changed, items, strict=True)):
        return value
    if isinstance(value, Mapping):
        return _changed_mapping(value, changed)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*changed)
    if isinstance(value, tuple | list):
        return type(value)(changed)
    new = copy(value)
    for (name, _), item in zip(items, changed, strict=True):
        object.__setattr__(new, name, item)  # also where the dataclass is frozen
    return new


def without_inference(tensor: Tensor) -> Tensor:
    """A tensor that a graph can keep: one that was made under ``torch.inference_mode()`` is copied.

    Example:
        >>> import torch
        >>> with torch.inference_mode():
        ...     made = torch.ones(2)
        >>> made.is_inference(), without_inference(made).is_inference()
        (True, False)
    """
    return tensor.clone() if tensor.is_inference() else tensor


def _changed_mapping(value: Mapping[Any, Any], changed: list[Any]) -> Any:
    pairs = dict(zip(value, changed, strict=True))
    if type(value) is dict:
        return pairs
    try:
        new: Any = copy(value)
        for key, item in pairs.items():
            new[key] = item
    except (TypeError, AttributeError):  # a mapping that cannot be written
        return pairs
    else:
        return new


def _items(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, tuple | list):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(one.name, getattr(value, one.name, None)) for one in fields(value)]
    return []


def _joined(part: str) -> str:
    return part if part.startswith("[") else f".{part}"
