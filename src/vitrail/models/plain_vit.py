"""PlainViT: a minimal vision transformer for the embedded models, examples and tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import OptionError


class PlainBlock(nn.Module):
    """Pre-norm transformer block: self-attention and MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp * width), nn.GELU(), nn.Linear(mlp * width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map tokens, shape (b, n, d), to the same shape; ``mask`` says what may be attended to, (b, heads, n, n)."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class PlainEncoder(nn.Module):
    """Patches with learned positions, blocks and a norm: what the plain models share.

    Args:
        embed: Layer that maps the input to patches, shape (b, width, grid …).
        patches: Number of patches.
        width: Embedding dimension.
        depth: Number of blocks.
        heads: Number of attention heads.
        mlp: Hidden width of the MLPs, as a multiple of ``width``.
        prefix: Number of tokens before the patches; None for a model without a place for them.
    """

    def __init__(
        self, embed: nn.Module, patches: int, width: int, depth: int, heads: int, mlp: int, prefix: int | None = 1
    ) -> None:
        super().__init__()
        self.embed = embed
        self.prefix = None if prefix is None else nn.Parameter(torch.randn(1, prefix, width))
        self.position = nn.Parameter(torch.randn(1, (prefix or 0) + patches, width))
        self.blocks = nn.Sequential(*(PlainBlock(width, heads, mlp) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)

    def embed_tokens(self, values: Tensor) -> Tensor:
        """Map inputs as the embedding takes them to the input of the first block, shape (b, n, d)."""
        x: Tensor = self.embed(values).flatten(2).transpose(1, 2)
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1)
        return x + self.position

    def encode(self, values: Tensor) -> Tensor:
        """Map inputs as the embedding takes them to normalised tokens, shape (b, n, d)."""
        return self.norm(self.blocks(self.embed_tokens(values)))  # type: ignore[no-any-return]


class PlainViT(PlainEncoder):
    """A pre-norm vision transformer with learned position embeddings and a linear head.

    Args:
        size: Height and width of the images in pixels.
        patch: Height and width of a patch in pixels.
        width: Embedding dimension.
        depth: Number of blocks.
        heads: Number of attention heads.
        classes: Number of classes.
        prefix: Number of tokens before the patches; the head reads the first of them unless ``pool`` is set.
        pool: Whether the head reads the mean of the patch tokens.
        mlp: Hidden width of the MLP, as a multiple of ``width``.
        distilled: Whether the second token is a distillation token with a head of its own, as in DeiT; the logits are
            the mean of both heads. Needs a ``prefix`` of 2.

    Example:
        >>> PlainViT(size=32, patch=8)(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 5])
    """

    embed: nn.Conv2d
    prefix: nn.Parameter

    def __init__(
        self,
        size: int = 32,
        patch: int = 8,
        width: int = 32,
        depth: int = 3,
        heads: int = 4,
        classes: int = 5,
        prefix: int = 1,
        pool: bool = False,
        mlp: int = 2,
        distilled: bool = False,
    ) -> None:
        if distilled and (prefix < 2 or pool):
            raise OptionError("distilled=True needs a CLS and a distillation token: pass prefix=2, pool=False")
        embed = nn.Conv2d(3, width, patch, patch)
        super().__init__(embed, (size // patch) ** 2, width, depth, heads, mlp, prefix)
        self.head = nn.Linear(width, classes)
        self.head_dist = nn.Linear(width, classes) if distilled else None
        self.pool = pool

    def forward(self, images: Tensor) -> Tensor:
        """Map images, shape (b, 3, h, w), to logits, shape (b, classes)."""
        x = self.encode(images)
        if self.head_dist is not None:
            return (self.head(x[:, 0]) + self.head_dist(x[:, 1])) / 2  # type: ignore[no-any-return]
        return self.head(x[:, self.prefix.shape[1] :].mean(1) if self.pool else x[:, 0])  # type: ignore[no-any-return]


def tiny_vit(seed: int = 0, **options: int) -> PlainViT:
    """Create a small `PlainViT` with random weights that depend only on the seed; torch's generator is not advanced.

    Args:
        seed: Seed of the weights.
        **options: Arguments of `PlainViT`.

    Example:
        >>> tiny_vit()(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 5])
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PlainViT(**options).eval()  # type: ignore[arg-type]
