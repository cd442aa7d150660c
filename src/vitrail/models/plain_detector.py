"""PlainDetector: a minimal encoder–decoder detector in the manner of DETR."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.plain_vit import PlainEncoder


class CrossBlock(nn.Module):
    """Pre-norm decoder block: self-attention of the queries, cross-attention to a memory, and an MLP."""

    def __init__(self, width: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.cross_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp * width), nn.GELU(), nn.Linear(mlp * width, width))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Map queries, shape (b, q, d), and a memory, shape (b, n, d), to queries of the same shape."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        q, k, v = self._split(self.query(self.norm2(x))), self._split(self.key(memory)), self._split(self.value(memory))
        x = x + self.cross_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm3(x))  # type: ignore[no-any-return]


class PlainDetector(PlainEncoder):
    """An encoder of patches and a decoder of a few queries, each of which predicts a class and a box.

    Example:
        >>> out = PlainDetector(size=32, width=16, depth=1, decoder_depth=1)(torch.zeros(2, 3, 32, 32))
        >>> out["logits"].shape, out["pred_boxes"].shape
        (torch.Size([2, 6, 13]), torch.Size([2, 6, 4]))
    """

    def __init__(
        self,
        size: int = 128,
        patch: int = 8,
        width: int = 80,
        depth: int = 3,
        decoder_depth: int = 2,
        heads: int = 4,
        mlp: int = 2,
        queries: int = 6,
        classes: int = 12,
    ) -> None:
        embed = nn.Conv2d(3, width, patch, patch)
        super().__init__(embed, (size // patch) ** 2, width, depth, heads, mlp, prefix=None)
        self.queries = nn.Parameter(torch.randn(1, queries, width))
        self.decoder = nn.ModuleList(CrossBlock(width, heads, mlp) for _ in range(decoder_depth))
        self.decoder_norm = nn.LayerNorm(width)
        self.class_head = nn.Linear(width, classes + 1)
        self.box_head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4))

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Detect objects in images, shape (b, 3, h, w).

        Returns:
            ``logits``, shape (b, queries, classes + 1), the last one for no object; and ``pred_boxes``, the centre,
            width and height as shares of the image, shape (b, queries, 4).
        """
        memory = self.encode(pixel_values)
        queries = self.queries.expand(len(memory), -1, -1)
        for block in self.decoder:
            queries = block(queries, memory)
        return self.heads(queries)

    def heads(self, queries: Tensor) -> dict[str, Tensor]:
        """Classes and boxes of decoded queries, shape (b, queries, d)."""
        queries = self.decoder_norm(queries)
        return {"logits": self.class_head(queries), "pred_boxes": self.box_head(queries).sigmoid()}
