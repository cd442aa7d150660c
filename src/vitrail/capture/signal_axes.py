"""The axes of an input that is made of numbers: which of them a relevance map has, and which holds the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

#: Axes that no map has.
_BATCH, _CHANNELS = "batch", "channels"


@dataclass(frozen=True)
class SignalAxes:
    """The axes of images, videos, spectrograms, series or features.

    A *canvas* is such an input with the axes (batch, channels, axes of the map …), whatever the model takes. Inputs
    without channels have one channel there. The canvas of images is the images themselves.

    Attributes:
        names: Axes of a map in order, such as ("time", "height", "width").
        channels: The axis of the channels, or None if there is none.

    Example:
        >>> import torch
        >>> axes = SignalAxes.of(("batch", "time", "channels", "height", "width"))
        >>> axes.names, axes.canvas(torch.zeros(2, 8, 3, 4, 5)).shape
        (('time', 'height', 'width'), torch.Size([2, 3, 8, 4, 5]))
        >>> SignalAxes.of(("batch", "time")).canvas(torch.zeros(2, 8)).shape
        torch.Size([2, 1, 8])
    """

    names: tuple[str, ...]
    channels: int | None

    @classmethod
    def of(cls, axes: Sequence[str]) -> SignalAxes:
        """The axes of a tensor, given what each of its axes is."""
        names = tuple(name for name in axes if name not in (_BATCH, _CHANNELS))
        return cls(names, axes.index(_CHANNELS) if _CHANNELS in axes else None)

    def canvas(self, tensor: Tensor) -> Tensor:
        """A tensor as the model takes it, with the channels behind the batch axis."""
        if self.channels is None:
            return tensor.unsqueeze(1)
        return tensor if self.channels == 1 else tensor.movedim(self.channels, 1)

    def restore(self, canvas: Tensor) -> Tensor:
        """The inverse of `canvas`: the tensor as the model takes it."""
        if self.channels is None:
            return canvas.squeeze(1)
        return canvas if self.channels == 1 else canvas.movedim(1, self.channels)

    def size(self, tensor: Tensor) -> tuple[int, ...]:
        """The size of a map of a tensor that the model takes."""
        return tuple(int(n) for i, n in enumerate(tensor.shape) if i not in (0, self.channels))
