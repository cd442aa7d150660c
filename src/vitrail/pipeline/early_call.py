"""Recognise a call of `vitrail.explain` that is like an earlier one, so that its recorded pass is replayed at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import nn

from vitrail.capture.early_replay import EarlyReplay
from vitrail.capture.inputs import ModelInputs
from vitrail.inputs.targets import Target
from vitrail.models import LoadedModel

_SCALARS = (bool, int, float, str, type(None))
#: Targets with more entries are not compared.
_MOST_TARGETS = 64


def early_replay(
    model: nn.Module | LoadedModel,
    requested: Mapping[str, Mapping[str, Any]],
    target: Target,
    given: ModelInputs | None,
) -> EarlyReplay | None:
    """Replay the recorded pass of a call like this one, if there was one; None where calls cannot be compared.

    Args:
        model: The model as it was passed.
        requested: Names of the methods, with the options that were given.
        target: What to explain.
        given: The inputs, or None if they are not tensors yet.
    """
    module = model.module if isinstance(model, LoadedModel) else model
    comparable = all(type(v) in _SCALARS for options in requested.values() for v in options.values())
    if given is None or not comparable or not isinstance(module, nn.Module):
        return None
    index = target if type(target) is int else None
    aimed = _target_key(target) if index is None else None
    if aimed is None and index is None and target is not None:
        return None
    methods = tuple((name, tuple(options.items())) for name, options in requested.items())
    return EarlyReplay(module, (methods, aimed), given, index)


def _target_key(target: Target) -> Hashable:
    """A target that is made of numbers and names, as tuples; None for others."""
    if isinstance(target, int | str):
        return (type(target), target)
    if not isinstance(target, list | tuple) or not 0 < len(target) <= _MOST_TARGETS:
        return None
    entries = tuple(_target_key(one) for one in target)
    return None if None in entries else entries
