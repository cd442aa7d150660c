"""The fused attention functions of torch, written out step by step."""
# ruff: noqa: ARG001 - the arguments are torch's, read or not

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ModelError


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
    """Softmax over keys, in float32 at least; a query without any visible key gets zeros, as the fused kernel does."""
    A = torch.softmax(O, -1, dtype=torch.promote_types(O.dtype, torch.float32))
    if mask is None:
        return A
    return A.masked_fill(O.isneginf().all(-1, keepdim=True), 0.0)


def causal_mask(Q: Tensor, K: Tensor) -> Tensor:
    """Which keys each query may see under causal attention, shape (m, n)."""
    return torch.ones(Q.shape[-2], K.shape[-2], dtype=torch.bool, device=Q.device).tril()


def merge_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, batch: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """The two masks of ``multi_head_attention_forward`` as one additive mask that broadcasts to (b, H, m, n).

    There a boolean True means "masked", the opposite of the fused kernel's convention.
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


def flex_logits(
    Q: Tensor,
    K: Tensor,
    score_mod: Callable[..., Tensor] | None,
    block_mask: tuple[Any, ...] | None,
    scale: float | None,
    kernel_options: Any = None,
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Logits of ``flex_attention``, shape (b, H, m, n), and its mask; its two functions work entry by entry.

    Example:
        >>> causal = lambda b, h, q, k: q >= k
        >>> flex_logits(torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), None, (causal,), None)[0]
        tensor([[[[2., -inf],
                  [2., 2.]]]])
    """
    O = attention_logits(Q, K, None, scale)  # noqa: E741
    b, h, q, k = (
        torch.arange(size, device=Q.device).view([-1 if axis == i else 1 for i in range(4)])
        for axis, size in enumerate(O.shape)
    )
    if score_mod is not None:
        O = score_mod(O, b, h, q, k, *score_mod_other_buffers)  # noqa: E741
    mask_mod = block_mask[-1] if block_mask else None
    if not callable(mask_mod):
        return O, None
    mask = torch.as_tensor(mask_mod(b, h, q, k, *mask_mod_other_buffers)).expand_as(O)
    return O.masked_fill(~mask, -torch.inf), mask


@dataclass(frozen=True)
class Packed:
    """A call of the function behind ``nn.MultiheadAttention``.

    Attributes:
        inputs: Query, key and value, each of shape (tokens, batch, width).
        weights: The matrices of the three projections.
        biases: Their biases, or None.
        whole: The three projections in one piece, where one input is handed to all of them.
        heads: Number of heads.
        masks: The mask of the logits and that of the keys.
        out: Matrix and bias of the projection behind the heads.
        batched: Whether the inputs had a batch.
        wanted: Whether attention is to be returned, and whether as the mean over the heads.
    """

    inputs: tuple[Tensor, Tensor, Tensor]
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    whole: tuple[Tensor, Tensor | None] | None
    heads: int
    masks: tuple[Tensor | None, Tensor | None]
    out: tuple[Tensor, Tensor | None]
    batched: bool
    wanted: tuple[bool, bool]

    def mask(self, Q: Tensor) -> Tensor | None:
        """Both masks as one that broadcasts to the logits; Q has shape (b, H, n, dh)."""
        return merge_masks(*self.masks, Q.shape[0], self.heads, Q.dtype)

    def project(self, Z: Tensor) -> Tensor:
        """Outputs of the heads, shape (b, H, n, dh), to what the function returns: (n, b, width), or without batch.

        The product is made batch first, as rules of relevance that sum over a sample take it.
        """
        out = F.linear(Z.transpose(1, 2).flatten(2), *self.out)
        return out.transpose(0, 1) if self.batched else out.squeeze(0)

    def returned(self, A: Tensor | None) -> Tensor | None:
        """Attention, shape (b, H, n, n), as the caller wants it."""
        needed, averaged = self.wanted
        if not needed or A is None:
            return None
        A = (A.mean(1) if averaged else A).to(self.inputs[0].dtype)
        return A if self.batched else A.squeeze(0)


def unpack(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Packed:
    """The arguments of ``torch.nn.functional.multi_head_attention_forward``, under torch's names and in its order.

    Raises:
        ModelError: Keys are added that belong to no token.
    """
    if any(t is not None for t in (bias_k, bias_v, static_k, static_v)) or add_zero_attn:
        raise ModelError(
            "nn.MultiheadAttention with add_bias_kv, add_zero_attn or static keys is not read: "
            "these add keys that belong to no token"
        )
    whole = None
    if use_separate_proj_weight or in_proj_weight is None:
        assert q_proj_weight is not None and k_proj_weight is not None and v_proj_weight is not None  # noqa: PT018
        weights: tuple[Tensor, ...] = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        weights = in_proj_weight.chunk(3)
        whole = (in_proj_weight, in_proj_bias) if query is key is value else None
    batched = query.dim() == 3
    if not batched:
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
    return Packed(
        inputs=(query, key, value),
        weights=weights,
        biases=(None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3),
        whole=whole,
        heads=num_heads,
        masks=(attn_mask, key_padding_mask),
        out=(out_proj_weight, out_proj_bias),
        batched=batched,
        wanted=(need_weights, average_attn_weights),
    )
