"""Operands of the operations that rules know: which depend on the input, and which are constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from vitrail.lrp.ops import Plain
from vitrail.lrp.relevance_state import RelevanceState


def depends(value: Any) -> bool:
    """Whether something depends on the input: the parameters are frozen, so only that needs a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def widened(state: RelevanceState, x: Tensor | None) -> Tensor | None:
    """A tensor in single precision, where others are in half."""
    return x.float() if state.mixed_precision and x is not None else x


def numbers_fixed(left: Any, right: Any) -> tuple[Any, Any]:
    """Two operands, of which a single number beside a tensor of any axes is a constant, whatever it depends on.

    A learnable scale or shift that is no parameter of the model, or a statistic of the whole batch.
    """
    if not (depends(left) and depends(right)) or left.dim() == right.dim() == 0:
        return left, right
    return tuple(t.detach() if t.dim() == 0 else t for t in (left, right))


def plain(state: RelevanceState, name: str, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An operation of one input, by the rule of that name if there is one."""
    rule = state.rule(name)
    return run(x) if rule is None else rule(Plain(run), x)
