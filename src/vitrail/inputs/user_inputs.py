"""Convert tensors, images, paths and dicts of tensors to a batch on the model's device."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vitrail.capture.inputs import SPECIAL_TOKENS, ModelInputs
from vitrail.errors import GuessWarning, InputError
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import Preprocess, open_image, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

#: A tensor, a PIL image, a path, a sequence of these, or keyword arguments for the model (a tokenizer's output).
Inputs = Any


def to_model_inputs(inputs: Inputs, model: LoadedModel) -> ModelInputs:
    """Check the inputs and convert them to a batch on the model's device.

    Raises:
        InputError: An input cannot be used; the message says which and why.
    """
    if isinstance(inputs, Mapping):
        model_inputs = _named_inputs(inputs)
    elif isinstance(inputs, Tensor):
        model_inputs = ModelInputs((_batched(inputs),))
    elif isinstance(inputs, str | Path) or is_image(inputs):
        model_inputs = ModelInputs((_prepare([inputs], model),))
    elif isinstance(inputs, Sequence) and not isinstance(inputs, bytes | bytearray | memoryview):
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
        hint = " (torch.from_numpy converts an array)" if isinstance(inputs, np.ndarray) else ""
        raise InputError(
            f"cannot explain a {type(inputs).__name__}: give a tensor{hint}, PIL images, paths, or a dict of tensors"
        )
    if model_inputs.batch == 0:
        raise InputError(f"nothing to explain: the batch is empty, shape {tuple(model_inputs.tensors[0].shape)}")
    for tensor in model_inputs.tensors:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError("the input holds NaN or infinite values: check how it was normalised")
    return model_inputs.onto(model.module)


def tensor_inputs(inputs: Inputs) -> ModelInputs | None:
    """Inputs that are tensors and numbers, as they are; None for others, and for tensors that are no batch."""
    if type(inputs) is Tensor:
        images = inputs.is_floating_point() and inputs.dim() in (3, 4)
        words = not inputs.is_floating_point() and inputs.dim() == 2
        return ModelInputs((_batched(inputs),)) if images or words else None
    if isinstance(inputs, Mapping) and all(
        type(v) in (Tensor, bool, int, float, str, type(None)) for v in inputs.values()
    ):
        model_inputs = _named_inputs(inputs)
        return model_inputs if model_inputs.tensors else None
    return None


def _named_inputs(inputs: Mapping[str, Any]) -> ModelInputs:
    """Keyword arguments for the model; special tokens are an output of tokenizers that no model takes."""
    given = dict(inputs)
    special = given.pop(SPECIAL_TOKENS, None)
    return ModelInputs((), given, special=None if special is None else special.bool())


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


def needs_preprocess(inputs: Inputs) -> bool:
    """Whether inputs are images or paths, which are preprocessed; tensors are used unchanged."""
    if isinstance(inputs, str | Path) or is_image(inputs):
        return True
    return isinstance(inputs, Sequence) and not all(isinstance(i, Tensor) for i in inputs)


def input_names(inputs: Inputs, count: int, texts: bool = False) -> tuple[str, ...]:
    """Name each input: a path by its file name, anything else by its kind and index.

    Args:
        inputs: As `vitrail.explain` takes them.
        count: Number of inputs.
        texts: Whether strings are texts; otherwise they are paths.

    Example:
        >>> input_names(["photos/cat.jpg", Path("dog.jpg")], 2)
        ('cat.jpg', 'dog.jpg')
        >>> input_names(torch.zeros(2, 3, 8, 8), 2)
        ('tensor 0', 'tensor 1')
        >>> input_names(["It was great.Really", "No."], 2, texts=True)
        ('text 0', 'text 1')
    """
    single = isinstance(inputs, str | Path | Tensor | Mapping) or is_image(inputs) or not isinstance(inputs, Sequence)
    given = [inputs] * count if single else list(inputs)
    return tuple(f"text {i}" if texts else _name(value, i) for i, value in enumerate(given))


def _name(value: Any, index: int) -> str:
    if isinstance(value, str | Path):
        return Path(value).name
    if is_image(value):
        file_name = getattr(value, "filename", "")
        return Path(file_name).name if isinstance(file_name, str | Path) and file_name else f"image {index}"
    return f"tensor {index}"


def _prepare(images: Sequence[Any], model: LoadedModel) -> Tensor:
    if model.preprocess is None:
        unknown = next((p for p in images if isinstance(p, str) and not _exists(p)), None)
        raise InputError(
            f"the preprocessing of {model.name} is unknown: pass tensors, or "
            "preprocess=vitrail.Preprocess(size, mean, std)"
            + ("" if unknown is None else f"; if {unknown[:30]!r} is a text, pass tokenizer=…")
        )
    if isinstance(model.preprocess, Preprocess) and model.preprocess.guessed:
        warnings.warn(
            f"the preprocessing of {model.name} is a guess ({model.preprocess.origin}): pass "
            "preprocess=vitrail.Preprocess(size, mean, std) to set it",
            GuessWarning,
            stacklevel=4,
        )
    prepared = []
    for i, value in enumerate(images):
        if isinstance(value, str | Path):
            image: Image = open_image(value)
        elif is_image(value):
            image = to_rgb(value)
        else:
            raise InputError(
                f"input {i} is a {type(value).__name__}: a list must hold only tensors, or only paths and PIL images"
            )
        prepared.append(_as_tensor(model.preprocess(image)))
    shapes = {tuple(tensor.shape) for tensor in prepared}
    if len(shapes) > 1:
        listed = ", ".join(map(str, sorted(shapes)))
        raise InputError(f"preprocess returned tensors of different shapes, {listed}: resize all images to one size")
    return torch.stack(prepared)


def _as_tensor(value: Any) -> Tensor:
    """Check the result of a preprocess function; numpy arrays are converted."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if not isinstance(value, Tensor):
        kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"preprocess returned a {kind}: it must return a float tensor (channels, height, width)")
    if value.dim() != 3 or not value.is_floating_point():
        raise InputError(
            f"preprocess returned {value.dtype} of shape {tuple(value.shape)}: it must return a float tensor "
            "(channels, height, width)"
        )
    return value


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_image(value: object) -> bool:
    """Whether a value is a PIL image, by its attributes, so that Pillow is not imported."""
    return hasattr(value, "convert") and hasattr(value, "size") and not isinstance(value, Tensor | type)
