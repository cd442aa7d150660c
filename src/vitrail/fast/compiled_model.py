"""A model run through torch.compile with one batch size, for many forward passes of equal shape."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn


class CompiledModel:
    """Calls a model through ``torch.compile``, always with the same number of images.

    The model itself is not changed. If compiling or the first compiled pass fails, for example because there is no
    compiler, the plain model is used from then on.

    Args:
        model: The model.
        batch: Images in each pass; a smaller batch is padded with copies of its first image, and so is the output.
        backend: Backend of ``torch.compile``.

    Example:
        >>> double = CompiledModel(nn.Linear(2, 2), batch=4, backend="eager")
        >>> double(torch.zeros(3, 2)).shape
        torch.Size([4, 2])
    """

    def __init__(self, model: nn.Module, batch: int, backend: str = "inductor") -> None:
        self.model, self.batch, self.backend = model, batch, backend
        self._compiled: Any = None
        self._failed = False

    def __call__(self, images: Tensor) -> Any:
        """Run the model; the output has as many rows as a whole batch, those of the padding last."""
        if self._failed or len(images) > self.batch:
            return self.model(images)
        padding = self.batch - len(images)
        padded = torch.cat([images, images[:1].expand(padding, *images.shape[1:])]) if padding else images
        try:
            if self._compiled is None:
                self._compiled = torch.compile(self.model, dynamic=False, backend=self.backend)
            return self._compiled(padded)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the compiler lacks, the plain model gives the output
            self._failed = True
            line = (str(error).strip().splitlines() or [""])[0]
            warnings.warn(
                f"the model cannot be compiled ({type(error).__name__}: {line}): it runs uncompiled, with the same "
                "scores but slower",
                RuntimeWarning,
                stacklevel=2,
            )
            return self.model(images)
