"""Vitrail's methods with Captum's interface, and attributions of other libraries as maps for `vitrail.scores`."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.explain import DEFAULT, explain
from vitrail.explanation import Explanation
from vitrail.models import LoadedModel
from vitrail.targets import Target

Sign = Literal["keep", "positive", "abs"]


class Attribution:
    """A method with the interface of Captum's attribution classes.

    Args:
        model: The model.
        method: A method's name, as for `vitrail.explain`.
        **options: The method's options, and other arguments of `vitrail.explain` such as ``batch_size``.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> Attribution(tiny_vit(), "rollout").attribute(torch.randn(2, 3, 32, 32), target=1).shape
        torch.Size([2, 1, 32, 32])
    """

    def __init__(self, model: nn.Module | LoadedModel, method: str = DEFAULT, **options: Any) -> None:
        self.model = model
        self.method = method
        self.options = options

    def attribute(self, inputs: Tensor, target: Target = None) -> Tensor:
        """Compute the relevance of the pixels for one class per image.

        Args:
            inputs: Images as the model takes them, shape (N, channels, height, width).
            target: One class for all images, or one per image as a list or a tensor of shape (N,). Unlike in Captum,
                None stands for the predicted class.

        Returns:
            Shape (N, 1, height, width): one map for all channels, which broadcasts over the images.
        """
        if isinstance(target, Tensor) and target.numel() == 1:
            target = int(target)
        explanation = explain(self.model, inputs, self.method, target=target, **self.options)
        return as_maps(explanation)[:, None]


def as_maps(attributions: Tensor | ArrayLike | Explanation, sign: Sign = "keep") -> Tensor:
    """Convert attributions to the shape that `vitrail.scores` takes.

    Args:
        attributions: Captum's attributions, shape (N, channels, height, width), whose channels are summed;
            pytorch-grad-cam's maps, an array of shape (N, height, width); a single map (height, width); or an
            `Explanation` with one target.
        sign: "keep" keeps the values, "positive" sets negative ones to 0, "abs" takes magnitudes. Applied after the
            sum over channels.

    Returns:
        Shape (N, height, width), floating point, on the same device.

    Raises:
        InputError: The shape is none of these, the `Explanation` has several targets, or ``sign`` is unknown.

    Example:
        >>> as_maps(torch.tensor([[[[1.0]], [[-3.0]], [[1.0]]]])), as_maps(np.ones((2, 4, 4))).shape
        (tensor([[[-1.]]]), torch.Size([2, 4, 4]))
    """
    if isinstance(attributions, Explanation):
        if attributions.maps.dim() != 4 or attributions.maps.shape[1] != 1:
            raise InputError(
                f"the explanation has maps of shape {tuple(attributions.maps.shape)}, expected (N, 1, height, width): "
                "pass the maps of one target, as in maps[:, k]"
            )
        maps = attributions.maps[:, 0]
    else:
        maps = attributions if isinstance(attributions, Tensor) else torch.as_tensor(np.asarray(attributions))
    if maps.dim() not in (2, 3, 4):
        raise InputError(
            f"attributions have shape {tuple(maps.shape)}, expected (N, channels, height, width), (N, height, width) "
            "or (height, width)"
        )
    maps = maps.detach()
    maps = maps if maps.is_floating_point() else maps.float()
    maps = maps.sum(1) if maps.dim() == 4 else maps
    maps = maps[None] if maps.dim() == 2 else maps
    if sign == "positive":
        return maps.clamp_min(0)
    if sign == "abs":
        return maps.abs()
    if sign != "keep":
        raise InputError(f"sign={sign!r} is unknown: use 'keep', 'positive' or 'abs'")
    return maps
