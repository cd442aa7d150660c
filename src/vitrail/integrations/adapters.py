"""To and from other libraries: vitrail where Quantus or Captum is expected, and their maps where ours are.

None of them is imported: only the shapes and names they agree on are used.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from vitrail.errors import InputError
from vitrail.explain import DEFAULT, explain
from vitrail.explanation import Explanation
from vitrail.models import LoadedModel
from vitrail.targets import Target

Sign = Literal["keep", "positive", "abs"]


def explain_func(
    model: nn.Module | LoadedModel, inputs: ArrayLike | Tensor, targets: ArrayLike | Tensor, **kwargs: Any
) -> NDArray[np.float32]:
    """What Quantus calls to explain a batch: pass it as ``explain_func`` to a metric.

    Args:
        model: The model.
        inputs: Images as the model takes them, shape (N, channels, height, width).
        targets: A class for each image, shape (N,).
        **kwargs: ``method`` and what `vitrail.explain` takes besides, the method's options included; from Quantus by
            way of ``explain_func_kwargs``. ``device`` is accepted and not needed: the model stays where it is.

    Returns:
        Maps, shape (N, 1, height, width), not negative, or from -1 to 1 for a signed method.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> images = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype("float32")
        >>> explain_func(tiny_vit(), images, np.array([0, 3]), method="rollout").shape
        (2, 1, 32, 32)
    """
    kwargs.pop("device", None)
    images = inputs if isinstance(inputs, Tensor) else torch.as_tensor(np.asarray(inputs))
    classes = torch.as_tensor(targets if isinstance(targets, Tensor) else np.asarray(targets)).long().flatten()
    # Images from numpy are double by default, which hardly any model is.
    floating = images.float() if images.dtype == torch.float64 else images
    maps = Attribution(model, **kwargs).attribute(floating, target=classes)
    return np.asarray(maps.detach().cpu().numpy(), dtype=np.float32)


class Attribution:
    """Explanations the way Captum's attribution classes give them.

    Args:
        model: The model.
        method: A method's name, as for `vitrail.explain`.
        **options: The method's options, and what else `vitrail.explain` takes, ``batch_size`` for one.

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
        """Relevance of the pixels for one class an image.

        Args:
            inputs: Images as the model takes them, shape (N, channels, height, width).
            target: A class for all, or one for each image as a list or a tensor of shape (N,); None for the predicted
                one, where Captum would ask for it.

        Returns:
            Shape (N, 1, height, width): one map for all channels, which broadcasts over the images.
        """
        if isinstance(target, Tensor) and target.numel() == 1:
            target = int(target)
        found = explain(self.model, inputs, self.method, target=target, **self.options)
        return as_maps(found)[:, None]


def as_maps(attributions: Tensor | ArrayLike | Explanation, sign: Sign = "keep") -> Tensor:
    """Maps of any of these libraries in the shape that `vitrail.scores` takes.

    Args:
        attributions: Captum's, of shape (N, channels, height, width), whose channels are summed; pytorch-grad-cam's, an
            array of shape (N, height, width); a single map (height, width); or an `Explanation` of one target.
        sign: "keep" leaves relevance as it is, "positive" drops what speaks against, "abs" takes magnitudes. All after
            the sum over channels.

    Returns:
        Shape (N, height, width), floating point, on the device it was on.

    Raises:
        InputError: If the shape is none of these, or an `Explanation` has several targets.

    Example:
        >>> as_maps(torch.tensor([[[[1.0]], [[-3.0]], [[1.0]]]])), as_maps(np.ones((2, 4, 4))).shape
        (tensor([[[-1.]]]), torch.Size([2, 4, 4]))
    """
    if isinstance(attributions, Explanation):
        if attributions.maps.dim() != 4 or attributions.maps.shape[1] != 1:
            raise InputError(
                f"an explanation with maps of shape {tuple(attributions.maps.shape)} has not one map an image: "
                "take one target, as in maps[:, k]"
            )
        maps = attributions.maps[:, 0]
    else:
        maps = attributions if isinstance(attributions, Tensor) else torch.as_tensor(np.asarray(attributions))
    if maps.dim() not in (2, 3, 4):
        raise InputError(f"attributions of shape {tuple(maps.shape)} are neither maps nor relevance of images")
    maps = maps.detach()
    maps = maps if maps.is_floating_point() else maps.float()
    maps = maps.sum(1) if maps.dim() == 4 else maps
    maps = maps[None] if maps.dim() == 2 else maps
    if sign == "positive":
        return maps.clamp_min(0)
    if sign == "abs":
        return maps.abs()
    if sign != "keep":
        raise InputError(f"sign={sign!r} is not 'keep', 'positive' or 'abs'")
    return maps
