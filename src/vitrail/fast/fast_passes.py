"""How the forward passes of perturbation tests are computed: precision, and products that are faster on a GPU."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from vitrail.fast.patch_convolutions import PatchProducts
from vitrail.fast.split_products import split_products
from vitrail.fast.switches import fast_paths_disabled

_HALF = (torch.bfloat16, torch.float16)


class FastPasses:
    """Contexts for the forward passes of a model.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> model, images = tiny_vit(), torch.zeros(1, 3, 32, 32)
        >>> with FastPasses(model, torch.bfloat16).on(images):
        ...     model(images).dtype
        torch.bfloat16
    """

    def __init__(self, model: nn.Module, precision: torch.dtype | None = None, compiled: bool = False) -> None:
        self.precision, self.compiled = precision, compiled
        self._patches = PatchProducts(model)

    def on(self, images: Tensor) -> ExitStack:
        """The context of passes over such images."""
        contexts, device = ExitStack(), images.device
        if self.precision is not None:
            contexts.enter_context(torch.autocast(device.type, self.precision))
        if not self.compiled:
            contexts.enter_context(split_products(device))
        if device.type == "cuda" and not fast_paths_disabled() and (self.precision or images.dtype) in _HALF:
            contexts.enter_context(self._patches.used())
        return contexts
