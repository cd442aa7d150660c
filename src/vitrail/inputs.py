"""Convert tensors, images, paths and dicts of tensors to a batch of model inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.errors import InputError
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import open_image, upright

if TYPE_CHECKING:
    from PIL.Image import Image

#: A tensor, a PIL image, a path, a sequence of these, or keyword arguments for the model (a tokenizer's output).
Inputs = Any


def to_model_inputs(inputs: Inputs, model: LoadedModel) -> ModelInputs:
    """What the user gave, checked, as a batch on the model's device.

    Raises:
        InputError: Says which input is unusable and why.
    """
    if isinstance(inputs, Mapping):
        model_inputs = ModelInputs((), dict(inputs))
    elif isinstance(inputs, Tensor):
        model_inputs = ModelInputs((_batched(inputs),))
    elif isinstance(inputs, str | Path) or _is_image(inputs):
        model_inputs = ModelInputs((_prepare([inputs], model),))
    elif isinstance(inputs, Sequence):
        if not inputs:
            raise InputError("nothing to explain: the list of inputs is empty")
        if all(isinstance(i, Tensor) for i in inputs):
            shapes = {tuple(i.shape) for i in inputs}
            if len(shapes) > 1:
                listed = ", ".join(map(str, sorted(shapes)))
                raise InputError(f"tensors of different shapes cannot be batched: {listed}")
            model_inputs = ModelInputs((_batched(torch.stack(list(inputs))),))
        else:
            model_inputs = ModelInputs((_prepare(inputs, model),))
    else:
        raise InputError(
            f"cannot explain a {type(inputs).__name__}: give a tensor, PIL images, paths, or a dict of tensors"
        )
    if model_inputs.batch == 0:
        raise InputError(f"nothing to explain: the batch is empty, shape {tuple(model_inputs.tensors[0].shape)}")
    for tensor in model_inputs.tensors:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError("the input holds NaN or infinite values: check how it was normalised")
    return model_inputs.onto(model.module)


def _batched(tensor: Tensor) -> Tensor:
    if tensor.dim() == 3 and tensor.is_floating_point():
        return tensor[None]
    if tensor.dim() == 4 and not tensor.is_floating_point():
        raise InputError(
            f"images of type {tensor.dtype} are raw pixels: normalise them to floats, or pass paths or PIL images, "
            "which are prepared for you"
        )
    if tensor.dim() == 4 or (tensor.dim() == 2 and not tensor.is_floating_point()):
        return tensor
    raise InputError(
        f"a tensor of shape {tuple(tensor.shape)} is not a batch of images: expected (batch, channels, height, width)"
    )


def _prepare(images: Sequence[Any], model: LoadedModel) -> Tensor:
    if model.preprocess is None:
        written = next((p for p in images if isinstance(p, str) and not Path(p).exists()), None)
        raise InputError(
            f"how {model.name} wants its images is unknown: pass tensors, or "
            "preprocess=vitrail.Preprocess(size, mean, std)"
            + ("" if written is None else f"; if {written[:30]!r} is a text, pass tokenizer=…")
        )
    prepared = []
    for given in images:
        if isinstance(given, str | Path):
            image: Image = open_image(given)
        elif _is_image(given):
            image = upright(given)
        else:
            raise InputError(f"cannot mix a {type(given).__name__} with images: give paths and PIL images only")
        prepared.append(model.preprocess(image))
    return torch.stack(prepared)


def _is_image(value: object) -> bool:
    return hasattr(value, "convert") and hasattr(value, "size") and not isinstance(value, Tensor)
