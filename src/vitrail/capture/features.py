"""The last feature map of a model without attention, such as a convolutional network or an MLP-Mixer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from vitrail.capture.operators import ADD, NORM

#: Functions whose result is a feature map: convolutions, norms, activations, and sums of such maps.
_FEATURES = NORM | ADD | {
    F.conv2d, torch.conv2d, F.batch_norm, F.group_norm, F.relu, torch.relu, F.gelu, F.silu, F.hardswish, Tensor.add_,
    Tensor.relu, Tensor.relu_, Tensor.__iadd__,
}  # fmt: skip
_CHANNELS_FIRST = {F.conv2d, torch.conv2d, F.batch_norm, F.group_norm}


class FeatureMode(TorchFunctionMode):
    """Keep the last feature map, the one that the classification head pools.

    Attributes:
        features: Shape (b, channels, rows, columns), (b, rows, columns, channels) or (b, tokens, channels); in the
            graph. None where there is none.
    """

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.features: Tensor | None = None
        self._batch = batch
        self._channels_first = True

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _FEATURES and isinstance(result, Tensor) and result.shape[:1] == (self._batch,):
            channels_first = self._order(func, result)
            sizes = result.shape[2:] if channels_first else result.shape[1:-1]
            if result.dim() in (3, 4) and result.requires_grad and sizes.numel() > 1:
                self.features, self._channels_first = result, channels_first
        return result

    def _order(self, func: Any, result: Tensor) -> bool:
        """Whether the channels come first: by the function where it says so, else by which two axes are alike."""
        if result.dim() != 4 or func in NORM:
            return False
        if func in _CHANNELS_FIRST:
            return True
        _, one, two, three = result.shape
        return self._channels_first if (one == two) == (two == three) else two == three

    def as_rows(self, features: Tensor) -> Tensor:
        """Features with the channels last, as the attention blocks of other models have them."""
        return features.permute(0, 2, 3, 1) if features.dim() == 4 and self._channels_first else features
