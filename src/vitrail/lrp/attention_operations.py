"""Attention as operations that relevance rules know."""
# ruff: noqa: A002, ARG001 - handlers take what torch's functions take

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.attention_products import attention_bytes
from vitrail.capture.explicit_attention import attention_weights, causal_mask, unpack
from vitrail.capture.recogniser import ADDED_MATMUL, MATMUL, SOFTMAX, einsum_pair, merge_heads, split_heads
from vitrail.capture.trace import Block
from vitrail.lrp.operands import depends, plain
from vitrail.lrp.products import multiply
from vitrail.lrp.relevance_state import RelevanceState

#: Bytes of the matrices of an attention call from which on the fused function is kept, in single precision.
FUSED_FROM = 2**24


def attend(state: RelevanceState, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Attention step by step; the scale is applied to the finished product, which is what the rules divide by."""
    O = (Q @ K.transpose(-2, -1)) * (Q.shape[-1] ** -0.5 if scale is None else scale)  # noqa: E741
    if mask is not None:
        O = O.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else O + mask  # noqa: E741
    A = attention_weights(O, mask).to(V.dtype)
    state.recogniser.alias(A)
    return A @ V


def fused(
    state: RelevanceState,
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
    if not any(map(depends, (query, key, value))):  # an encoder that reads something else
        state.attention.append(query)
        options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return func(query, key, value, **options)  # type: ignore[no-any-return]
    if _may_stay_fused(state, query, key, value):
        return _stay_fused(state, func, query, key, value, attn_mask, is_causal, scale, enable_gqa)
    with state.reentered():
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(repeats, -3) for t in (key, value))
        return attend(state, query, key, value, causal_mask(query, key) if is_causal else attn_mask, scale)


def _may_stay_fused(state: RelevanceState, Q: Tensor, K: Tensor, V: Tensor) -> bool:
    """Whether the fused function's own gradient is that of the rules, and it is used, so that no matrix is written.

    It is used in half precision, where the matrices are large, and where they are not asked for.
    """
    if state.rules.fused is None or not all(map(depends, (Q, K, V))):
        return False
    if state.fuses or state.mixed_precision:
        return True
    return attention_bytes(1, prod(Q.shape[:-2]), Q.shape[-2], K.shape[-2]) >= FUSED_FROM


def _stay_fused(
    state: RelevanceState,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> Tensor:
    """The fused function on queries, keys and values whose gradients are changed."""
    assert state.rules.fused is not None
    given = (query, key, value)
    Q, K, V = state.rules.fused(*(t.to(torch.bfloat16) for t in given) if state.mixed_precision else given)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(Q.dtype)
    Z: Tensor = func(Q, K, V, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)
    state.rotations.clear()
    call = len(state.attention)
    state.results[call], state.keys[call] = Z, K.shape[-2]
    state.stream.attended(call, Block(), V)
    state.stream.branch_from(Z)
    state.attention.append(Q.detach())
    return Z


def multi_head(state: RelevanceState, func: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    """The function behind ``nn.MultiheadAttention``, step by step and batch first."""
    state.packed = True
    with state.reentered():
        packed = unpack(*args, **kwargs)
        inputs = [t.transpose(0, 1) for t in packed.inputs]
        if packed.whole is not None:
            parts = F.linear(inputs[0], *packed.whole).chunk(3, -1)
        else:
            parts = tuple(F.linear(*each) for each in zip(inputs, packed.weights, packed.biases, strict=True))
        Q, K, V = (t.reshape(*t.shape[:2], packed.heads, -1).transpose(1, 2) for t in parts)
    mask = packed.mask(Q)
    fused = not packed.wanted[0] and _may_stay_fused(state, Q, K, V)
    Z = _stay_fused(state, F.scaled_dot_product_attention, Q, K, V, mask) if fused else None
    with state.reentered():
        out = packed.project(attend(state, Q, K, V, mask, None) if Z is None else Z)
    state.packed = False
    return out, packed.returned(state.attention[-1].detach() if packed.wanted[0] else None)


def softmax(state: RelevanceState, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A softmax, which is attention if its result is multiplied with values."""
    axis = kwargs.get("dim", args[0] if args else None)
    attends = input.dim() >= 3 and isinstance(axis, int)

    def run(x: Tensor) -> Tensor:
        return func(x.float() if state.mixed_precision else x, *args, **kwargs)  # type: ignore[no-any-return]

    ruled = depends(input) and (attends or not state.rules.gradient)
    A = plain(state, "softmax", run, input) if ruled else run(input)
    if attends:
        state.recogniser.softmax(input, int(axis or 0), A)
        state.weights[id(A)] = A
    return A


def written_softmax(state: RelevanceState, logits: Tensor, axis: int) -> Tensor:
    """A softmax that the model writes as ``exp`` divided by its sum, taken as the one operation it is."""
    A = plain(state, "softmax", lambda x: torch.softmax(x, axis), logits) if depends(logits) else logits.softmax(axis)
    state.recogniser.softmax(logits, axis, A)
    return A


def product(state: RelevanceState, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    """A matrix product or einsum: of queries and keys, of attention and values, or with a weight matrix."""
    met = state.recogniser.values(func, args, kwargs)
    if met is not None:
        A, V = (split_heads(t, state.samples.count, state.heads_first) for t in (met.A, met.V))
        # Heads that were split lie in pieces, which every product with them would collect again.
        Z = multiply(state, A, V.contiguous(), one="inner", positive=id(met.A) in state.weights)
        state.weights.clear()
        state.rotations.clear()
        call = len(state.attention)
        state.results[call], state.keys[call] = Z, A.shape[-1]
        if not call:
            state.first_values = V
        state.stream.attended(call, Block(), V)
        out = met.restore(merge_heads(Z, state.heads_first) if met.A.dim() == 3 else Z)
        state.stream.branch_from(out)
        state.attention.append(A)
        return out
    factors = state.recogniser.factors(func, args, kwargs)
    if factors is None:
        return _einsum(state, func, args) if func is torch.einsum else _matmul(state, *args)
    left, right = factors.left.contiguous(), factors.right.contiguous()
    result = factors.restore(multiply(state, left, right.mT, to_right=lambda s, u: (s.mT @ u).mT))
    state.recogniser.product(factors.left, factors.right, factors.order, result)
    return result


def _matmul(state: RelevanceState, left: Tensor, right: Tensor) -> Tensor:
    if right.dim() == 1:
        return multiply(state, left, right[:, None]).squeeze(-1)
    return multiply(state, left, right)


def _einsum(state: RelevanceState, func: Any, args: tuple[Any, ...]) -> Tensor:
    pair = einsum_pair(args)
    if pair is None:
        return func(*args)  # type: ignore[no-any-return]
    (one, two), (left, right), out = pair
    if (set(one) ^ set(two)) - set(out):  # an axis that is summed in one factor alone
        return func(*args)  # type: ignore[no-any-return]
    return multiply(
        state,
        left,
        right,
        lambda u, v: torch.einsum(f"{one},{two}->{out}", u, v),
        lambda s, v: torch.einsum(f"{out},{two}->{one}", s, v),
        lambda s, u: torch.einsum(f"{one},{out}->{two}", u, s),
    )


def added_product(
    state: RelevanceState,
    func: Any,
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """``baddbmm`` as a product, a scale and a sum."""
    with state.reentered():
        out: Tensor = torch.bmm(batch1, batch2) * alpha
        return out if beta == 0 else out + beta * input


#: Handlers whose steps come back through the mode one by one.
STEPWISE: dict[Any, Callable[..., Any]] = {
    F.scaled_dot_product_attention: fused,
    F.multi_head_attention_forward: multi_head,
    **dict.fromkeys(ADDED_MATMUL, added_product),
}
#: Handlers that always run: attention is counted whatever it reads.
ATTENTION: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys(SOFTMAX, softmax),
    **dict.fromkeys(MATMUL, product),
    torch.einsum: product,
}
