"""Small transformers to try things on, without any other library."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TinyBlock(nn.Module):
    """A pre-norm block with fused attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(b, n, d) to (b, n, d)."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class TinyViT(nn.Module):
    """A plain ViT of the usual make, small enough for examples and tests."""

    def __init__(
        self, width: int = 32, depth: int = 3, heads: int = 4, patch: int = 8, size: int = 32, classes: int = 5,
        prefix: int = 1, pool: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.prefix = nn.Parameter(torch.randn(1, prefix, width))
        self.position = nn.Parameter(torch.randn(1, prefix + (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(TinyBlock(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.pool = pool

    def forward(self, images: Tensor) -> Tensor:
        """(b, 3, h, w) to logits, shape (b, classes)."""
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.prefix.expand(len(x), -1, -1), x], 1) + self.position
        x = self.norm(self.blocks(x))
        count = self.prefix.shape[1]
        return self.head(x[:, count:].mean(1) if self.pool else x[:, 0])  # type: ignore[no-any-return]


def tiny_vit(seed: int = 0, **options: int) -> TinyViT:
    """A ``TinyViT`` with the same random weights for the same seed; torch's own generator is left alone.

    Example:
        >>> tiny_vit()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 5])
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TinyViT(**options).eval()  # type: ignore[arg-type]
