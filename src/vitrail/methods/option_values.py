"""Values of method options: their types, and reading them from text."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import numpy as np
from torch import Tensor

#: Types an option may have, and what messages call them.
OPTION_TYPES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    list: "a list",
    NoneType: "none",
}


def annotated_types(hint: Any) -> tuple[type, ...]:
    """The types that an annotation names."""
    return tuple(get_origin(t) or t for t in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))


def has_type(value: Any, types: tuple[type, ...]) -> bool:
    """Whether a value has one of some types; tensors and numpy values are accepted."""
    if isinstance(value, bool) or value is None:
        return type(value) in types
    if isinstance(value, int):
        return not {int, float, str}.isdisjoint(types)  # names may be numbers, such as GradToken's variants
    if isinstance(value, float):
        return float in types
    if isinstance(value, list | tuple):
        return list in types
    return str in types if isinstance(value, str) else isinstance(value, Tensor | np.ndarray | np.generic)


def parse_value(text: str) -> Any:
    """A value from text: true, false, none, a number, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
