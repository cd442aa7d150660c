"""Handlers of products: linear maps, products of two things that depend on the input, scales and gates."""
# ruff: noqa: A002 - handlers take what torch's functions take

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail import fast
from vitrail.capture.quantised_weights import dense_weight
from vitrail.errors import NotApplicableError
from vitrail.lrp.operands import depends, numbers_fixed, plain
from vitrail.lrp.ops import HALF, Linear, Product, matmul
from vitrail.lrp.relevance_state import RelevanceState

Two = Callable[[Tensor, Tensor], Tensor]


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
        left, right = _gates_fixed(state, *numbers_fixed(left, right), matrix=False)
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
