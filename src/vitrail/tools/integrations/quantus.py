"""Vitrail's methods as the ``explain_func`` of Quantus' metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vitrail.models import LoadedModel
from vitrail.tools.integrations.captum import Attribution


def explain_func(
    model: nn.Module | LoadedModel, inputs: ArrayLike | Tensor, targets: ArrayLike | Tensor, **kwargs: Any
) -> NDArray[np.float32]:
    """Explain a batch with the signature that Quantus expects; pass it to a metric as ``explain_func``.

    Args:
        model: The model.
        inputs: Images as the model takes them, shape (N, channels, height, width). float64 is converted to float32.
        targets: One class per image, shape (N,).
        **kwargs: ``method``, its options, and other arguments of `vitrail.explain`; in Quantus these are passed as
            ``explain_func_kwargs``. ``device`` is ignored: the model stays on its device.

    Returns:
        Maps, shape (N, 1, height, width), from 0 to 1, or from -1 to 1 for a signed method.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> images = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype("float32")
        >>> explain_func(tiny_vit(), images, np.array([0, 3]), method="rollout").shape
        (2, 1, 32, 32)
    """
    kwargs.pop("device", None)
    images = inputs if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    images = images.float() if images.dtype == torch.float64 else images  # numpy's default, which few models take
    classes = torch.as_tensor(targets if isinstance(targets, Tensor) else np.asarray(targets)).long().flatten()
    maps = Attribution(model, **kwargs).attribute(images, target=classes)
    return np.asarray(maps.detach().cpu().numpy(), dtype=np.float32)
