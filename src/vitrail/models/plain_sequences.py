"""PlainVideoViT and PlainSpectrogramViT: minimal transformers of videos and of spectrograms."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from vitrail.models.plain_vit import PlainEncoder


class PlainVideoViT(PlainEncoder):
    """A vision transformer of videos with tubelets as tokens, a CLS token and a linear head.

    Example:
        >>> import torch
        >>> PlainVideoViT(width=16, depth=1)(torch.zeros(2, 12, 3, 64, 64)).shape
        torch.Size([2, 8])
    """

    embed: nn.Conv3d

    def __init__(
        self,
        frames: int = 12,
        size: int = 64,
        tubelet: int = 2,
        patch: int = 8,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        mlp: int = 2,
        classes: int = 8,
    ) -> None:
        grid = (frames // tubelet, size // patch, size // patch)
        embed = nn.Conv3d(3, width, (tubelet, patch, patch), (tubelet, patch, patch))
        super().__init__(embed, prod(grid), width, depth, heads, mlp)
        self.grid, self.head = grid, nn.Linear(width, classes)
        self.axis_sizes = {"time": frames, "height": size, "width": size}

    def embed_tokens(self, pixel_values: Tensor) -> Tensor:
        """Map videos, shape (b, frames, 3, h, w), to the input of the first block, shape (b, n, d)."""
        return super().embed_tokens(pixel_values.transpose(1, 2))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Map videos, shape (b, frames, 3, h, w), to logits, shape (b, classes)."""
        return self.head(self.encode(pixel_values)[:, 0])  # type: ignore[no-any-return]


class PlainSpectrogramViT(PlainEncoder):
    """A vision transformer of spectrograms with a CLS token and a linear head.

    Example:
        >>> import torch
        >>> PlainSpectrogramViT(width=16, depth=1)(torch.zeros(2, 128, 64)).shape
        torch.Size([2, 8])
    """

    embed: nn.Conv2d

    def __init__(
        self,
        frames: int = 128,
        bins: int = 64,
        patch: int = 8,
        width: int = 64,
        depth: int = 3,
        heads: int = 4,
        mlp: int = 2,
        classes: int = 8,
    ) -> None:
        grid = (frames // patch, bins // patch)
        super().__init__(nn.Conv2d(1, width, patch, patch), prod(grid), width, depth, heads, mlp)
        self.grid, self.head = grid, nn.Linear(width, classes)
        self.axis_sizes = {"time": frames, "frequency": bins}

    def embed_tokens(self, input_values: Tensor) -> Tensor:
        """Map spectrograms, shape (b, frames, bins), to the input of the first block, shape (b, n, d)."""
        return super().embed_tokens(input_values[:, None])

    def forward(self, input_values: Tensor) -> Tensor:
        """Map spectrograms, shape (b, frames, bins), to logits, shape (b, classes)."""
        return self.head(self.encode(input_values)[:, 0])  # type: ignore[no-any-return]
