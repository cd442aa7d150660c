"""Handlers of sums, differences and changes of sign."""
# ruff: noqa: A002, ARG001 - handlers take what torch's functions take

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitrail.lrp.operands import depends, numbers_fixed, plain
from vitrail.lrp.ops import Sum
from vitrail.lrp.products import mul
from vitrail.lrp.relevance_state import RelevanceState


def add(state: RelevanceState, func: Any, left: Any, right: Any, *, alpha: float = 1) -> Tensor:
    """A sum."""
    left, right = numbers_fixed(left, right)
    if alpha != 1:
        right = mul(state, torch.mul, right, alpha) if depends(right) else right * alpha
    return _sum(state, torch.add, left, right)


def sub(state: RelevanceState, func: Any, left: Any, right: Any, *, alpha: float = 1) -> Tensor:
    """A difference: of a constant or a mean it is a shift."""
    if alpha != 1:
        return func(left, right, alpha=alpha)  # type: ignore[no-any-return]
    left, right = numbers_fixed(left, right)
    if depends(left) and depends(right) and left.shape[-1:] != (1,) == right.shape[-1:]:
        right = right.detach()  # a mean, as in a norm written out
    if not (depends(left) and depends(right)):
        if depends(left):
            return plain(state, "shift", lambda x: x - right, left)
        return plain(state, "shift", lambda x: left - x, right)
    return _sum(state, torch.add, left, neg(state, torch.neg, right))


def neg(state: RelevanceState, func: Any, input: Tensor) -> Tensor:
    """A change of sign: a scale."""
    out = plain(state, "scale", func, input)
    if id(input) in state.rotations:
        state.rotations[id(out)] = out
    return out


def _sum(state: RelevanceState, run: Callable[..., Tensor], left: Any, right: Any) -> Tensor:
    if depends(left) and depends(right):
        name = "add"
        if id(left) in state.rotations and id(right) in state.rotations:
            name = "turn"
        elif id(left) in state.scores and id(right) in state.scores:
            name = "heads"
        rule = state.rule(name)
        assert rule is not None
        return rule(Sum(run, state.samples), left, right)
    x, other = (left, right) if depends(left) else (right, left)
    if not isinstance(other, Tensor) or other.dim() < 2 or other.shape[-2:] == (1, 1):  # a bias, not a position
        return plain(state, "shift", lambda x: run(x, other), x)
    rule = state.rule("position")
    assert rule is not None
    return rule(Sum(run, state.samples, constant=True), x, other)
