"""Handlers for everything but attention: from a torch function to an operation that rules know.

Each takes the state and the arguments of the torch function, and runs only where one of them depends on the input.
"""
# ruff: noqa: A002, ARG001 - handlers take what torch's functions take

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail import fast
from vitrail.capture.operators import ADD, MUL
from vitrail.capture.quantised_weights import dense_weight
from vitrail.errors import NotApplicableError
from vitrail.lrp.convolution import convolve
from vitrail.lrp.ops import HALF, Linear, Mean, Norm, Plain, Product, Sum, matmul, standard_deviation
from vitrail.lrp.relevance_state import RelevanceState
from vitrail.lrp.rule_sets import RuleSet

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

Two = Callable[[Tensor, Tensor], Tensor]


def depends(value: Any) -> bool:
    """Whether something depends on the input: the parameters are frozen, so only that needs a gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def _wide(state: RelevanceState, x: Tensor | None) -> Tensor | None:
    """A tensor in single precision, where others are in half."""
    return x.float() if state.mixed_precision and x is not None else x


def _numbers_fixed(left: Any, right: Any) -> tuple[Any, Any]:
    """Two operands, of which a single number beside a tensor of any axes is a constant, whatever it depends on.

    A learnable scale or shift that is no parameter of the model, or a statistic of the whole batch.
    """
    if not (depends(left) and depends(right)) or left.dim() == right.dim() == 0:
        return left, right
    return tuple(t.detach() if t.dim() == 0 else t for t in (left, right))


def _gates_fixed(state: RelevanceState, left: Tensor, right: Tensor, matrix: bool) -> tuple[Tensor, Tensor]:
    """Two factors, of which one that is a gate is a constant; two gates stay as they are."""
    if not (state.gates or state.tanhs) or not (left.requires_grad and right.requires_grad):
        return left, right
    gates = state.is_gate(left, matrix), state.is_gate(right, matrix)
    if gates[0] == gates[1] or state.rule("sigmoid") is None:
        return left, right
    return (left.detach(), right) if gates[0] else (left, right.detach())


def _is_written_activation(state: RelevanceState, left: Tensor, right: Tensor) -> bool:
    """Whether a product is an activation that a model writes out, such as x·sigmoid(x), whose derivative is wanted."""
    gates = state.is_gate(left), state.is_gate(right)
    if gates[0] == gates[1] or state.rule("activation") is not None:
        return False
    return state.is_activation(left, right) if gates[0] else state.is_activation(right, left)


# -- products --------------------------------------------------------------------------------------------------------


def multiply(
    state: RelevanceState,
    left: Tensor,
    right: Tensor,
    run: Two = matmul,
    to_left: Two = lambda s, v: matmul(s, v.mT),
    to_right: Two = lambda s, u: u.mT @ s,
    both: str = "matmul",
    one: str = "linear",
    positive: bool = False,
) -> Tensor:
    """A product: of two things that depend on the input (``both`` is its name), or of one that does (``one``).

    ``positive`` says that the left factor is never negative.
    """
    if state.mixed_precision and left.dtype != right.dtype:
        low = left.dtype if left.dtype in HALF else right.dtype
        left, right = left.to(low), right.to(low)
    left, right = _gates_fixed(state, left, right, both == "matmul")
    rule = state.rule(both if left.requires_grad and right.requires_grad else one)
    if rule is None or not (left.requires_grad or right.requires_grad):
        return run(left, right)
    shape_l, shape_r = left.shape, right.shape
    if left.requires_grad and right.requires_grad:
        matrices = run is matmul and left.dim() > 1 and right.dim() > 1
        return rule(Product(
            run, lambda s, v: _summed(to_left(s, v), shape_l, matrices),
            lambda s, u: _summed(to_right(s, u), shape_r, matrices), state.samples, matrices, positive,
        ), left, right)  # fmt: skip
    if left.requires_grad:
        return rule(Linear(
            lambda x: run(x, right), run, lambda s, w: to_left(s, w).sum_to_size(shape_l), right, None, state.samples
        ), left)  # fmt: skip
    return rule(Linear(
        lambda x: run(left, x), lambda x, w: run(w, x), lambda s, w: to_right(s, w).sum_to_size(shape_r), left,
        None, state.samples,
    ), right)  # fmt: skip


def _summed(t: Tensor, shape: torch.Size, matrices: bool) -> Tensor:
    """A tensor summed over the axes along which a factor of this shape was repeated, those of matrices aside."""
    return t.sum_to_size((*shape[:-2], *t.shape[-2:]) if matrices else shape)


def linear(state: RelevanceState, func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map; two of them on one vector each may be heads that are averaged."""
    rule = state.rule("inner" if state.packed else "linear")
    weight = dense_weight(weight)
    x = state.operand(input, weight)
    if rule is None or weight.requires_grad:
        return func(x, weight, bias)  # type: ignore[no-any-return]
    run = lambda x: F.linear(x, weight, bias)  # noqa: E731
    # Gradients bear the rounding of split products. Sums that cancel, which relevance is divided by, do not.
    apply = fast.product if state.rules.gradient else F.linear
    out = rule(Linear(run, apply, _adjoint, weight, bias, state.samples, rows=True), x)
    if out.dim() == 2:
        state.scores[id(out)] = out
    return out


def _adjoint(s: Tensor, weight: Tensor) -> Tensor:
    return fast.product(s, weight.T) if s.is_cuda and weight.dim() == 2 else s @ weight


def addmm(state: RelevanceState, func: Any, input: Tensor, mat1: Tensor, mat2: Tensor, **kwargs: Any) -> Tensor:
    """A linear map as some write it."""
    if kwargs or not mat1.requires_grad:
        return func(input, mat1, mat2, **kwargs)  # type: ignore[no-any-return]
    return linear(state, F.linear, mat1, mat2.T, input)


def grouped_linear(
    state: RelevanceState,
    func: Any,
    input: Tensor,
    mat2: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """Linear maps of several experts, each on its own rows of the input."""
    _refuse_experts(state)
    rule = state.rule("linear")
    x = state.operand(input, mat2)
    if rule is None or mat2.requires_grad or offs is None or bias is not None:
        return func(x, mat2, offs=offs, bias=bias, **kwargs)  # type: ignore[no-any-return]

    def apply(x: Tensor, weight: Tensor) -> Tensor:
        return func(x, weight, offs=offs, **kwargs)  # type: ignore[no-any-return]

    return rule(Linear(lambda x: apply(x, mat2), apply, lambda s, w: apply(s, w.mT), mat2, None, state.samples), x)


def index_add(state: RelevanceState, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Rows added to some rows of a tensor, as the outputs of experts are."""
    _refuse_experts(state)
    return func(input, *args, **kwargs)  # type: ignore[no-any-return]


def _refuse_experts(state: RelevanceState) -> None:
    if not state.rules.gradient:
        raise NotApplicableError(
            "this model is a mixture of experts, and these rules of relevance say nothing of sums of several experts; "
            "use attnlrp or conservative_lrp, where the router's weights are constants"
        )


def mul(state: RelevanceState, func: Any, left: Any, right: Any) -> Tensor:
    """A product entry by entry: with a constant a scale, with something that depends on the input a gate."""
    if depends(left) and depends(right):
        left, right = _gates_fixed(state, *_numbers_fixed(left, right), matrix=False)
        if left.requires_grad and right.requires_grad:
            widths = [t.shape[-1] if t.dim() else 1 for t in (left, right)]
            if widths[0] != widths[1] and 1 in widths:
                # One number a token, as in a norm written out, or one number in all: a scale.
                left, right = (t.detach() if width == 1 else t for t, width in zip((left, right), widths, strict=True))
            elif _is_written_activation(state, left, right):
                return torch.mul(left, right)
            else:
                return multiply(state, left, right, torch.mul, torch.mul, torch.mul, "gate")
    x, factor = (left, right) if depends(left) else (right, left)
    out = plain(state, "scale", lambda x: func(x, factor), x)
    if out.dim() == 4 and isinstance(factor, Tensor) and factor.dim() >= 2:
        state.rotations[id(out)] = out
    return out


def div(state: RelevanceState, func: Any, left: Any, right: Any, **kwargs: Any) -> Tensor:
    """A quotient: a scale, whatever the divisor depends on."""
    if not depends(left):
        return func(left, right, **kwargs)  # type: ignore[no-any-return]
    divisor = right.detach() if isinstance(right, Tensor) else right
    return plain(state, "scale", lambda x: func(x, divisor, **kwargs), left)


# -- sums ------------------------------------------------------------------------------------------------------------


def add(state: RelevanceState, func: Any, left: Any, right: Any, *, alpha: float = 1) -> Tensor:
    """A sum."""
    left, right = _numbers_fixed(left, right)
    if alpha != 1:
        right = mul(state, torch.mul, right, alpha) if depends(right) else right * alpha
    return _sum(state, torch.add, left, right)


def sub(state: RelevanceState, func: Any, left: Any, right: Any, *, alpha: float = 1) -> Tensor:
    """A difference: of a constant or a mean it is a shift."""
    if alpha != 1:
        return func(left, right, alpha=alpha)  # type: ignore[no-any-return]
    left, right = _numbers_fixed(left, right)
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


# -- one input -------------------------------------------------------------------------------------------------------


def plain(state: RelevanceState, name: str, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """An operation of one input, by the rule of that name if there is one."""
    rule = state.rule(name)
    return run(x) if rule is None else rule(Plain(run), x)


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


def layer_norm(
    state: RelevanceState,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """A layer norm."""
    dims = tuple(range(-len(normalized_shape), 0))
    weight, bias = _wide(state, weight), _wide(state, bias)
    return _norm(state, Norm(
        lambda x: F.layer_norm(x, normalized_shape, weight, bias, eps),
        lambda x: standard_deviation(x, dims, eps), weight, dims, True, state.samples,
    ), input)  # fmt: skip


def rms_norm(
    state: RelevanceState,
    func: Any,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """A norm by the root mean square."""
    dims = tuple(range(-len(normalized_shape), 0))
    small = torch.finfo(input.dtype).eps if eps is None else eps
    weight = _wide(state, weight)
    return _norm(state, Norm(
        lambda x: F.rms_norm(x, normalized_shape, weight, eps),
        lambda x: (x.pow(2).mean(dims, keepdim=True) + small).sqrt(), weight, dims, False, state.samples,
    ), input)  # fmt: skip


def normalise(
    state: RelevanceState, func: Any, input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> Tensor:
    """A vector brought to length 1."""
    return _norm(state, Norm(
        lambda x: F.normalize(x, p, dim, eps), lambda x: x.norm(p, dim, keepdim=True).clamp_min(eps), None, (dim,),
        False, state.samples,
    ), input)  # fmt: skip


def _norm(state: RelevanceState, op: Norm, x: Tensor) -> Tensor:
    rule = state.rule("norm")
    if not state.mixed_precision:
        return op.run(x) if rule is None else rule(op, x)
    return op.run(x.float()) if rule is None else rule(replace(op, mixed_precision=True), x.float())


def mean(
    state: RelevanceState, func: Any, input: Tensor, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Tensor:
    """A mean over anything but the width is one over tokens."""
    rule = state.rule("mean")
    if dim is None:
        dim = kwargs.pop("axis", None)  # numpy's name, which torch accepts
    dims = () if dim is None else tuple(d % input.dim() for d in (dim if isinstance(dim, tuple | list) else (dim,)))
    if rule is None or not dims or input.dim() - 1 in dims:
        return func(input, dim, keepdim, **kwargs) if dims else func(input, **kwargs)  # type: ignore[no-any-return]
    run = lambda x: func(x, dims, keepdim, **kwargs)  # noqa: E731
    return rule(Mean(run, dims, keepdim, state.samples), input)


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
