"""Attention, unfolded into operations that rules know."""
# ruff: noqa: A002, ARG001 - the doors take what torch's functions take

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.attention import MATMUL, SOFTMAX
from vitrail.capture.fused import attention_weights, causal_mask
from vitrail.capture.packed import unpack
from vitrail.capture.trace import Block
from vitrail.lrp.handlers import depends, multiply, plain

if TYPE_CHECKING:
    from vitrail.lrp.mode import RelevanceMode


def attend(mode: RelevanceMode, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Attention step by step; the scale goes onto the finished product, which is what the rules divide by."""
    O = (Q @ K.transpose(-2, -1)) * (Q.shape[-1] ** -0.5 if scale is None else scale)  # noqa: E741
    if mask is not None:
        O = O.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else O + mask  # noqa: E741
    A = attention_weights(O, mask).to(V.dtype)
    assert mode.pending is not None
    mode.pending = (mode.pending[0], A)
    return A @ V


def fused(
    mode: RelevanceMode,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The fused kernel, step by step."""
    if not any(map(depends, (query, key, value))):  # a tower that reads something else
        mode.attention.append(query)
        options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return func(query, key, value, **options)  # type: ignore[no-any-return]
    with mode:
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(repeats, -3) for t in (key, value))
        return attend(mode, query, key, value, causal_mask(query, key) if is_causal else attn_mask, scale)


def multi_head(mode: RelevanceMode, func: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """The function behind ``nn.MultiheadAttention``, step by step and batch first."""
    mode.packed = True
    with mode:
        packed = unpack(*args, **kwargs)
        inputs = [t.transpose(0, 1) for t in packed.inputs]
        if packed.whole is not None:
            parts = F.linear(inputs[0], *packed.whole).chunk(3, -1)
        else:
            parts = tuple(F.linear(*each) for each in zip(inputs, packed.weights, packed.biases, strict=True))
        Q, K, V = (t.reshape(*t.shape[:2], packed.heads, -1).transpose(1, 2) for t in parts)
        out = packed.project(attend(mode, Q, K, V, packed.mask(Q), None))
    mode.packed = False
    return out, packed.returned(mode.attention[-1].detach() if packed.wanted[0] else None)


def softmax(mode: RelevanceMode, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A softmax, which is attention if its result meets values."""
    dim = kwargs.get("dim", args[0] if args else None)
    attends = input.dim() >= 3 and dim in (-1, input.dim() - 1)
    if depends(input) and (attends or not mode.rules.gradient):
        A = plain(mode, "softmax", lambda x: func(x, *args, **kwargs), input)
    else:
        A = func(input, *args, **kwargs)
    if attends:
        mode.pending, mode.transposed = (A, A), None
    return A


def matmul(mode: RelevanceMode, func: Any, left: Tensor, right: Tensor, **kwargs: Any) -> Tensor:
    """A matrix product: of queries and keys, of attention and values, or with a matrix of weights."""
    pending = mode.pending
    if right.dim() == 1:
        return multiply(mode, left, right[:, None]).squeeze(-1)
    if pending is not None and right is mode.transposed:
        Z = matmul(mode, func, pending[1], left.transpose(-2, -1), **kwargs).transpose(-2, -1)
        mode.stream.branch_from(Z)
        return Z
    attends = pending is not None and left is pending[1]
    Z = multiply(mode, left, right, one="inner" if attends else "linear")
    if pending is not None and attends:
        mode.pending = None
        mode.turned.clear()
        mode.stream.attended(len(mode.attention), Block(), right)
        mode.stream.branch_from(Z)
        mode.attention.append(pending[0])
    return Z


def einsum(mode: RelevanceMode, func: Any, equation: Any, *operands: Any) -> Tensor:
    """Any product of two tensors; one whose first axes agree is the matmul it stands for."""
    pair = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    inner, _, outer = equation.replace(" ", "").partition("->") if isinstance(equation, str) else ("", "", "")
    left, _, right = inner.partition(",")
    alone = (set(left) ^ set(right)) - set(outer)
    if len(pair) != 2 or not outer or "." in inner or alone:
        return func(equation, *operands)  # type: ignore[no-any-return]
    if len(left) == len(right) == len(outer) and left[:-2] == right[:-2] == outer[:-2] and left[-2] == outer[-2]:
        if left[-1] == right[-2]:
            return matmul(mode, torch.matmul, *pair)
        if left[-1] == right[-1]:
            turned = pair[1].transpose(-2, -1)
            if mode.pending is not None and pair[1] is mode.pending[1]:
                mode.transposed = turned
            return matmul(mode, torch.matmul, pair[0], turned)
    return multiply(
        mode, pair[0], pair[1], lambda u, v: torch.einsum(equation, u, v),
        lambda s, v: torch.einsum(f"{outer},{right}->{left}", s, v),
        lambda s, u: torch.einsum(f"{left},{outer}->{right}", u, s),
    )  # fmt: skip


#: Doors whose parts come back through the mode one by one.
WHOLES: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: fused,
    F.multi_head_attention_forward: multi_head,
}
#: Doors that are always taken: attention is counted whatever it reads.
DOORS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys(SOFTMAX, softmax),
    **dict.fromkeys(MATMUL, matmul),
    torch.einsum: einsum,
}
