"""The model as it is trained: stochastic depth, a sound start, and the plain copy that is saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.plain_vit import PlainBlock, PlainViT


class DropBlock(PlainBlock):
    """A block whose two branches are each left out for a random share of the samples while training."""

    def __init__(self, width: int, heads: int, mlp: int, rate: float) -> None:
        super().__init__(width, heads, mlp)
        self.rate = rate

    def _drop(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate
        return branch * (kept.to(branch.dtype) / (1 - self.rate))

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """(b, n, d) to (b, n, d); the first token attends to what it has ``seen`` alone, shape (b, n), if given."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if seen is None:
            attended = F.scaled_dot_product_attention(q, k, v)
        else:
            first = F.scaled_dot_product_attention(q[:, :, :1], k, v, attn_mask=seen[:, None, None])
            attended = torch.cat([first, F.scaled_dot_product_attention(q[:, :, 1:], k, v)], 2)
        x = x + self._drop(self.proj(attended.transpose(1, 2).flatten(2)))
        return x + self._drop(self.mlp(self.norm2(x)))


class TrainedViT(PlainViT):
    """A ``PlainViT`` with the same parameters under the same names, plus stochastic depth and an initialisation.

    Args:
        architecture: The arguments of ``PlainViT``.
        drop_path: Share of samples that skip a branch of the last block; it grows linearly from none in the first.
    """

    def __init__(self, architecture: Mapping[str, Any], drop_path: float = 0.0) -> None:
        super().__init__(**architecture)
        first: Any = self.blocks[0]
        width, heads, mlp = first.proj.in_features, first.heads, first.mlp[0].out_features // first.proj.in_features
        depth = len(self.blocks)
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.Sequential(*(DropBlock(width, heads, mlp, rate) for rate in rates))
        self._initialise(width)

    def _initialise(self, width: int) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.embed.weight, std=self.embed.weight[0].numel() ** -0.5)
        assert self.embed.bias is not None
        nn.init.zeros_(self.embed.bias)
        prefix = self.prefix.shape[1]
        side = math.isqrt(self.position.shape[1] - prefix)
        with torch.no_grad():
            if prefix:  # trunc_normal_ warns of tensors without elements
                nn.init.trunc_normal_(self.prefix, std=0.02)
            # Neighbours start out alike. Learned from nothing, that costs a small model a good part of its schedule.
            self.position.zero_()
            self.position[0, prefix:] = 0.5 * waves(side, width)

    def forward(self, images: Tensor) -> Tensor:
        """(b, 3, h, w) to logits, shape (b, classes)."""
        return self.read(self.blocks(self.tokens(images)))

    def tokens(self, images: Tensor) -> Tensor:
        """(b, 3, h, w) to what the first block takes, shape (b, n, d)."""
        x = self.embed(images).flatten(2).transpose(1, 2)
        if self.prefix.shape[1]:  # the compiler should not have to see tensors without elements
            x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1)
        return x + self.position

    def read(self, x: Tensor) -> Tensor:
        """What the last block gives, shape (b, n, d), to logits, shape (b, classes)."""
        x = self.norm(x)
        return self.head(x[:, self.prefix.shape[1] :].mean(1) if self.pool else x[:, 0])  # type: ignore[no-any-return]


def waves(side: int, width: int) -> Tensor:
    """Sines and cosines of the two coordinates of a square grid, shape (side², width), at falling frequencies."""
    quarter = width // 4
    frequency = 10_000.0 ** (-torch.arange(quarter) / quarter)
    angle = torch.arange(side)[:, None] * frequency
    line = torch.cat([angle.sin(), angle.cos()], 1)
    grid = torch.cat([line[:, None].expand(side, side, -1), line[None].expand(side, side, -1)], -1).flatten(0, 1)
    return F.pad(grid, (0, width - grid.shape[1]))


def plain_copy(net: TrainedViT, architecture: Mapping[str, Any]) -> PlainViT:
    """The plain model with a net's weights, for evaluation; refuses a net that would not answer like it.

    Raises:
        RuntimeError: ``PlainViT`` computes something else than the model that is trained.
    """
    plain = PlainViT(**architecture)
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if k in plain.state_dict()}, strict=True)
    plain.eval().requires_grad_(False)
    size = architecture["size"]
    images = torch.randn(2, 3, size, size)
    training = net.training
    with torch.no_grad():
        alike = torch.allclose(plain(images), net.eval()(images), atol=1e-4)
    net.train(training)
    if not alike:
        raise RuntimeError("TrainedViT and PlainViT give other logits: bring training/net.py up to date")
    return plain
