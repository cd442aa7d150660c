"""The convolutional net that a transformer learns from."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

CHANNELS = (64, 128, 256, 512)


def conv(before: int, after: int) -> nn.Sequential:
    """Convolution over three by three pixels, norm over the batch, and what is positive of it."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )


class Residual(nn.Module):
    """Two convolutions, added to what they were given."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(conv(channels, channels), conv(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """(b, c, h, w) to the same shape."""
        return x + self.branch(x)  # type: ignore[no-any-return]


class Teacher(nn.Module):
    """A residual net of nine layers and more: convolutions with pooling, each followed by two with a shortcut.

    Args:
        classes: Number of classes.
        channels: Of the stem and of each stage, which halves the picture.

    Example:
        >>> Teacher(10, (4, 8))(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(self, classes: int, channels: tuple[int, ...] = CHANNELS) -> None:
        super().__init__()
        stages = [
            nn.Sequential(conv(before, after), nn.MaxPool2d(2), Residual(after))
            for before, after in itertools.pairwise(channels)
        ]
        self.body = nn.Sequential(conv(3, channels[0]), *stages)
        self.head = nn.Linear(channels[-1], classes)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        """(b, 3, h, w) to logits, shape (b, classes)."""
        x = self.body(images.contiguous(memory_format=torch.channels_last))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]
