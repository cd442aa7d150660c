"""What ``multi_head_attention_forward`` is asked, with the projections it was handed in one piece laid apart."""
# ruff: noqa: ARG001 - the arguments are torch's, read or not

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.fused import merge_masks
from vitrail.errors import ModelError


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
