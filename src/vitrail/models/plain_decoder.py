"""PlainDecoder: a minimal causal language model with RMSNorm, rotary positions and gated MLPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROTARY_BASE = 10_000.0
"""Base of the wavelengths of rotary positions."""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and special tokens of a `PlainDecoder`, under the names that Hugging Face models use.

    Attributes:
        vocab_size: Number of words.
        max_position_embeddings: Maximum number of tokens in one forward pass.
        pad_token_id: Number of the padding word.
        bos_token_id: Number of the word that starts a text.
        eos_token_id: Number of the word that ends a text.
        model_type: Name of the architecture.
    """

    vocab_size: int
    max_position_embeddings: int
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int = 2
    model_type: str = "plain_decoder"


def rotate(values: Tensor, positions: Tensor) -> Tensor:
    """Apply rotary positions: the two halves of each vector are rotated by angles that grow with the position."""
    half = values.shape[-1] // 2
    frequency = ROTARY_BASE ** (-torch.arange(half, device=values.device) / half)
    angle = positions[:, None] * frequency
    cos, sin = (torch.cat([f, f], -1).to(values.dtype) for f in (angle.cos(), angle.sin()))
    first, second = values.chunk(2, -1)
    return values * cos + torch.cat([-second, first], -1) * sin


class GatedMLP(nn.Module):
    """A two-layer perceptron whose hidden units are multiplied by a gate, as in Llama."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(hidden, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens, shape (b, n, d), to tokens of the same shape."""
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class CausalBlock(nn.Module):
    """Pre-norm transformer block in which a token attends to itself and to earlier tokens."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = GatedMLP(width, hidden)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map tokens, shape (b, n, d), to the same shape; ``mask`` says what each attends to, shape (b, 1, n, n)."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        positions = torch.arange(x.shape[1], device=x.device)
        q, k = rotate(q, positions), rotate(k, positions)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class PlainDecoder(nn.Module):
    """A causal language model. Arguments and outputs have the names of Hugging Face's models.

    Args:
        words: Size of the vocabulary; words 0, 1 and 2 are padding, start and end.
        length: Maximum number of tokens in one forward pass.
        width: Embedding dimension.
        depth: Number of blocks.
        heads: Number of attention heads.
        hidden: Hidden units of the MLPs.

    Example:
        >>> model = PlainDecoder(words=9, length=16, width=16, depth=1, heads=2, hidden=24)
        >>> model(torch.tensor([[1, 3, 4]]))["logits"].shape
        torch.Size([1, 3, 9])
    """

    def __init__(
        self, words: int, length: int = 96, width: int = 96, depth: int = 4, heads: int = 4, hidden: int = 192
    ) -> None:
        super().__init__()
        self.config = DecoderConfig(words, length)
        self.word_embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(CausalBlock(width, heads, hidden) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, words, bias=False)

    def get_input_embeddings(self) -> nn.Embedding:
        """The layer that makes the vectors of words."""
        return self.word_embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Any]:
        """Compute the scores of the next word at every position.

        Returns:
            ``logits``, shape (b, n, words).
        """
        x, mask = self.word_embed(input_ids), None
        if attention_mask is not None:
            count = input_ids.shape[1]
            causal = torch.ones(count, count, dtype=torch.bool, device=x.device).tril()
            # A padding token attends to itself: a row of the attention matrix without any token would be NaN.
            itself = torch.eye(count, dtype=torch.bool, device=x.device)
            mask = (causal & attention_mask[:, None, None].bool()) | itself
        for block in self.blocks:
            x = block(x, mask)
        return {"logits": self.head(self.norm(x))}
