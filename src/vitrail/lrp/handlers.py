"""Handlers for everything but attention: from a torch function to an operation that rules know.

Each takes the state and the arguments of the torch function, and runs only where one of them depends on the input.
"""
# ruff: noqa: A002, ARG001 - handlers take what torch's functions take

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.operators import ADD, MUL
from vitrail.lrp.convolution import convolve
from vitrail.lrp.norms import layer_norm, mean, normalise, rms_norm
from vitrail.lrp.operands import plain
from vitrail.lrp.products import addmm, div, grouped_linear, index_add, linear, mul
from vitrail.lrp.relevance_state import RelevanceState
from vitrail.lrp.rule_sets import RuleSet
from vitrail.lrp.sums import add, neg, sub

SUB = {torch.sub, Tensor.sub, Tensor.__sub__}
DIV = {torch.div, Tensor.div, torch.true_divide, Tensor.true_divide, Tensor.__truediv__}
TANH = {torch.tanh, Tensor.tanh, F.tanh}
ACTIVATION = {
    F.gelu, F.relu, torch.relu, Tensor.relu, F.silu, F.mish, F.elu, F.leaky_relu, F.hardswish, F.softplus, F.relu6,
    *TANH,
}  # fmt: skip
IN_PLACE = {
    Tensor.add_: Tensor.add, Tensor.__iadd__: Tensor.add, Tensor.mul_: Tensor.mul, Tensor.__imul__: Tensor.mul,
    Tensor.div_: Tensor.div, Tensor.__itruediv__: Tensor.div, Tensor.sub_: Tensor.sub, Tensor.__isub__: Tensor.sub,
    Tensor.relu_: torch.relu, torch.relu_: torch.relu, Tensor.tanh_: torch.tanh, torch.tanh_: torch.tanh,
    Tensor.sigmoid_: torch.sigmoid,
}  # fmt: skip

#: Linear maps of several experts at once, by the names of torch's releases.
GROUPED_LINEAR = {f for f in (getattr(F, "grouped_mm", None), getattr(torch, "_grouped_mm", None)) if f is not None}


def activate(state: RelevanceState, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """An activation, in place or not."""
    if not kwargs.pop("inplace", False):
        out = plain(state, "activation", lambda x: func(x, *args, **kwargs), input)
        if func in TANH and out.grad_fn is not None:
            state.tanhs.add(out.grad_fn)
        return out
    return input.copy_(activate(state, func, input.clone(), *args, **kwargs))


def sigmoid(state: RelevanceState, func: Any, input: Tensor) -> Tensor:
    """A sigmoid: its relevance is that of its input, and in a product it is a gate, as in x·sigmoid(x)."""
    out = plain(state, "sigmoid", func, input)
    if out.grad_fn is not None:
        state.gates.add(out.grad_fn)
    return out


class _Unbound(torch.autograd.Function):
    """A tensor cut along an axis, whose gradient is laid out as it is itself: in the order of heads and tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        ctx.layout, ctx.dim = (x.shape, x.stride()), dim
        return x.unbind(dim)

    @staticmethod
    def backward(ctx: Any, *R: Tensor) -> Any:
        whole = torch.empty_strided(*ctx.layout, dtype=R[0].dtype, device=R[0].device)
        for part, given in zip(whole.unbind(ctx.dim), R, strict=True):
            part.copy_(given)
        return whole, None


def unbind(state: RelevanceState, func: Any, input: Tensor, dim: int = 0) -> Any:
    """Queries, keys and values that one linear map computed; their gradients are copied once, not twice."""
    if not torch.ops.aten.is_non_overlapping_and_dense(input):  # a part of a larger tensor, or repeated entries
        return func(input, dim)
    return _Unbound.apply(input, dim)


#: Handlers that run only where an argument depends on the input.
HANDLERS: dict[Any, Callable[..., Any]] = {
    F.linear: linear, torch.addmm: addmm, F.conv2d: convolve, torch.conv2d: convolve, F.layer_norm: layer_norm,
    torch.layer_norm: layer_norm, F.rms_norm: rms_norm, torch.rms_norm: rms_norm, F.normalize: normalise,
    torch.mean: mean, Tensor.mean: mean, torch.unbind: unbind, Tensor.unbind: unbind, torch.sigmoid: sigmoid,
    Tensor.sigmoid: sigmoid, F.sigmoid: sigmoid,
    torch.index_add: index_add, Tensor.index_add: index_add, Tensor.index_add_: index_add,
    **dict.fromkeys(GROUPED_LINEAR, grouped_linear),
    **dict.fromkeys((torch.neg, torch.negative, Tensor.neg, Tensor.negative, Tensor.__neg__), neg),
    **dict.fromkeys(ADD, add), **dict.fromkeys(SUB, sub), **dict.fromkeys(MUL, mul), **dict.fromkeys(DIV, div),
    **dict.fromkeys(ACTIVATION, activate),
}  # fmt: skip
#: Handlers that need a rule; without any of the names, the functions keep their ordinary gradient.
_NEEDED_RULES = {add: ("add",), sub: ("add",), neg: ("add", "scale"), mean: ("mean",)}


@cache
def handlers_of(rules: RuleSet) -> Mapping[Any, tuple[Callable[..., Any], int]]:
    """The handlers that a rule set needs, each with the least number of arguments that must depend on the input.

    Example:
        >>> from vitrail.lrp.rule_sets import OURS, attnlrp
        >>> torch.add in handlers_of(OURS), torch.add in handlers_of(attnlrp())
        (True, False)
        >>> handlers_of(OURS)[torch.mul][1], handlers_of(attnlrp())[torch.mul][1]
        (1, 2)
    """
    needed = {handler for handler, names in _NEEDED_RULES.items() if any(name in rules.rules for name in names)}
    handlers = {func: one for func, one in HANDLERS.items() if one not in _NEEDED_RULES or one in needed}
    # Without these rules, a product with a constant keeps its ordinary gradient, and no sum asks what it is made of.
    pairs = {mul} if not {"scale", "add"} & set(rules.rules) else set()
    return {func: (one, 2 if one in pairs else 1) for func, one in handlers.items()}
