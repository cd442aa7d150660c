"""From a dict, a tuple or a dataclass of tensors to the arguments of a model's forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import SPECIAL_TOKENS, TOKEN_UNITS, ModelInputs
from vitrail.errors import InputError

#: Arguments that hold keys and values, or a state, of words before those of the call.
_CACHES = ("past_key_values", "past_key_value", "cache_params")
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def is_record(inputs: Any) -> bool:
    """Whether inputs are a dataclass, or a tuple of tensors that are arguments and not single images.

    Example:
        >>> import torch
        >>> is_record((torch.zeros(1, 3, 8, 8), torch.zeros(1, 5))), is_record((torch.zeros(3, 8, 8),))
        (True, False)
    """
    if is_dataclass(inputs) and not isinstance(inputs, type):
        return True
    if not isinstance(inputs, tuple) or not inputs or not all(isinstance(i, Tensor) for i in inputs):
        return False
    return hasattr(inputs, "_fields") or any(i.dim() != 3 for i in inputs)


def call_arguments(inputs: Any, model: nn.Module) -> ModelInputs:
    """The arguments of one call.

    A dict holds keyword arguments. It is passed whole where forward takes one argument and none of its keys is a
    parameter. The same holds for a tuple, by position. A dataclass is passed whole. Keyword arguments are put into the
    order of forward's parameters, so that their order in the dict does not matter; others follow by name.

    Example:
        >>> class Pair(nn.Module):
        ...     def forward(self, first, second):
        ...         return first + second
        >>> import torch
        >>> list(call_arguments({"second": torch.zeros(1), "first": torch.ones(1)}, Pair()).kwargs)
        ['first', 'second']
    """
    takes = _signature(model)
    if isinstance(inputs, Mapping):
        given = dict(inputs)
        refuse_cache(given)
        _refuse_unclear_positions(given, model)
        special = given.pop(SPECIAL_TOKENS, None)
        special = special.bool() if isinstance(special, Tensor) else None
        units = given.pop(TOKEN_UNITS, None)
        if takes is not None and not _binds(takes, (), given) and _takes_whole(takes, given):
            return ModelInputs((inputs,), special=special, token_units=units)
        order = {name: i for i, name in enumerate(takes.parameters)} if takes is not None else {}
        names = sorted(given, key=lambda name: (order.get(name, len(order)), str(name)))
        return ModelInputs((), {name: given[name] for name in names}, special=special, token_units=units)
    if isinstance(inputs, tuple) and (takes is None or _binds(takes, inputs, {})) and not hasattr(inputs, "_fields"):
        return ModelInputs(inputs) if takes is None else _by_name(takes, inputs)
    return ModelInputs((inputs,))


def refuse_cache(given: Mapping[str, Any]) -> None:
    """Refuse the cache of an earlier call: every pass adds to it, and what it holds would have no relevance."""
    for name in _CACHES:
        if given.get(name) is not None:
            raise InputError(
                f"{name} holds words that an earlier call has read, which would have no relevance, and every pass adds "
                f"to it: leave {name} out and pass the whole text"
            )


def _refuse_unclear_positions(given: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse positions that begin anew, of which transformers keeps texts apart only in a pass without a cache."""
    positions, module = given.get("position_ids"), unwrap(model)
    stated = getattr(getattr(module, "config", None), "use_cache", None) is True and "use_cache" not in given
    if not stated or not isinstance(positions, Tensor) or positions.dim() != 2 or "attention_mask" in given:
        return
    if bool((positions.diff(dim=-1) != 1).any()):
        raise InputError(
            "position_ids do not count the tokens one by one. The model then takes them for several texts in one row, "
            "if use_cache is False, and for one text otherwise: add use_cache to the inputs, or an attention_mask"
        )


#: Signatures of forward methods, without ``self``.
_signatures: WeakKeyDictionary[Any, Signature] = WeakKeyDictionary()


def _signature(model: nn.Module) -> Signature | None:
    forward = unwrap(model).forward
    function = getattr(forward, "__func__", None)  # None where a forward was put into the module itself
    known = None if function is None else _signatures.get(function)
    if known is not None:
        return known
    try:
        found = signature(forward)
    except (TypeError, ValueError):
        return None
    if function is not None:
        _signatures[function] = found
    return found


def _binds(takes: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        takes.bind(*args, **{str(name): value for name, value in kwargs.items()})
    except TypeError:
        return False
    return True


def _takes_whole(takes: Signature, given: Mapping[str, Any]) -> bool:
    """Whether forward takes one argument, whose name is not among the names given."""
    if not _binds(takes, (given,), {}):
        return False
    first = next((p for p in takes.parameters.values() if p.kind in _NAMED), None)
    return first is not None and first.name not in given


def _by_name(takes: Signature, inputs: tuple[Any, ...]) -> ModelInputs:
    """Positional arguments by the names of their parameters, where these can be passed by name."""
    parameters = list(takes.parameters.values())[: len(inputs)]
    if len(parameters) < len(inputs) or any(p.kind != Parameter.POSITIONAL_OR_KEYWORD for p in parameters):
        return ModelInputs(inputs)
    return ModelInputs((), {p.name: value for p, value in zip(parameters, inputs, strict=True)})
