"""Attention written out."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_logits(Q: Tensor, K: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """QKᵀ·scale + mask, shape (b, H, m, n).

    The scale goes onto Q first: m·dh products instead of m·n.

    Example:
        >>> attention_logits(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 2, 4), None, None)
        tensor([[[[2., 2.]]]])
    """
    O = (Q * (Q.shape[-1] ** -0.5 if scale is None else scale)) @ K.transpose(-2, -1)  # noqa: E741
    if mask is None:
        return O
    return O.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else O + mask


def attention_weights(O: Tensor, mask: Tensor | None) -> Tensor:  # noqa: E741
    """Softmax over keys, in float32 at least; a query that may look nowhere gets zeros, as the fused kernel does."""
    A = torch.softmax(O, -1, dtype=torch.promote_types(O.dtype, torch.float32))
    if mask is None:
        return A
    return A.masked_fill(O.isneginf().all(-1, keepdim=True), 0.0)


def causal_mask(Q: Tensor, K: Tensor) -> Tensor:
    """Which keys each query may see when none may look ahead, shape (m, n)."""
    return torch.ones(Q.shape[-2], K.shape[-2], dtype=torch.bool, device=Q.device).tril()


def merge_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, batch: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """The two masks of ``multi_head_attention_forward`` as one additive mask that broadcasts to (b, H, m, n).

    There a boolean True means "do not look", the opposite of the fused kernel's convention.
    """
    total: Tensor | None = None
    if attn_mask is not None:
        total = _additive(attn_mask, dtype)
        if total.dim() == 3:
            total = total.view(batch, heads, *total.shape[-2:])
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, dtype)[:, None, None, :]
        total = padding if total is None else total + padding
    return total


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
