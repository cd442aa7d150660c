"""Convert tensors, images, paths and dicts of tensors to a batch on the model's device."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.capture.input_roles import InputTensor
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.output_tensors import OutputReading
from vitrail.errors import GuessWarning, InputError
from vitrail.inputs.call_arguments import call_arguments, is_record
from vitrail.inputs.input_description import describe_inputs
from vitrail.inputs.media_inputs import media_arguments
from vitrail.inputs.signal_inputs import signal_arguments
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import Preprocess, open_image, to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

#: A tensor, a PIL image, a path, a sequence of these, keyword arguments for the model (a tokenizer's output), a tuple
#: of its positional arguments, or the dict or dataclass that it takes as its only argument.
Inputs = Any
#: Times the largest value of a normalised image at which values are taken for raw pixels.
_RAW_PIXELS = 10


def to_model_inputs(
    inputs: Inputs,
    model: LoadedModel,
    roles: Mapping[str, str] | None = None,
    of: str | None = None,
    reading: OutputReading | None = None,
) -> ModelInputs:
    """Check the inputs, convert them to a batch on the model's device, and describe their tensors.

    Args:
        inputs: As `vitrail.explain` takes them.
        model: The model.
        roles: Roles of tensors by name, where the user states them.
        of: Name of the tensor that is explained, where there are several.
        reading: How the model's output is read.

    Raises:
        InputError: An input cannot be used; the message says which and why.
    """
    if isinstance(inputs, ModelInputs):  # some examples of an earlier call, described there
        return replace(inputs, reading=reading or OutputReading()).onto(model.module)
    if isinstance(inputs, Mapping) or is_record(inputs):
        model_inputs = call_arguments(inputs, model.module)
    elif isinstance(inputs, Tensor):
        known = signal_arguments(inputs, model.module)
        model_inputs = ModelInputs((_batched(inputs, model.module),)) if known is None else known
    elif isinstance(inputs, str | Path) or is_image(inputs):
        model_inputs = _from_files([inputs], model)
    elif isinstance(inputs, Sequence) and not isinstance(inputs, bytes | bytearray | memoryview):
        if not inputs:
            raise InputError("nothing to explain: the list of inputs is empty")
        if all(isinstance(i, Tensor) for i in inputs):
            shapes = {tuple(i.shape) for i in inputs}
            if len(shapes) > 1:
                listed = ", ".join(map(str, sorted(shapes)))
                raise InputError(f"tensors of different shapes cannot be batched: {listed}")
            model_inputs = ModelInputs((_batched(torch.stack(list(inputs)), None),))
        else:
            model_inputs = _from_files(inputs, model)
    else:
        hint = " (torch.from_numpy converts an array)" if isinstance(inputs, np.ndarray) else ""
        raise InputError(
            f"cannot explain a {type(inputs).__name__}: give a tensor{hint}, PIL images, paths, or a dict of tensors"
        )
    _check_roles(roles, of)
    if model_inputs.batch == 0:
        raise InputError(f"nothing to explain: the batch is empty, shape {tuple(model_inputs.tensors[0].shape)}")
    for name, tensor in model_inputs.named:
        if tensor.is_floating_point() and "mask" not in name and not bool(torch.isfinite(tensor).all()):
            raise InputError("the input holds NaN or infinite values: check how it was normalised")
    model_inputs = replace(model_inputs, reading=reading or OutputReading())
    described = describe_inputs(model.module, model_inputs.onto(model.module), roles, of)
    _warn_of_raw_pixels(described, model.preprocess)
    return described


def _from_files(inputs: Sequence[Any], model: LoadedModel) -> ModelInputs:
    """The arguments for image, sound or video files, or PIL images."""
    paths = all(isinstance(one, str | Path) for one in inputs)
    media = media_arguments(inputs, model) if paths and all(_exists(one) for one in inputs) else None
    return ModelInputs((_prepare(inputs, model),)) if media is None else media


def _check_roles(roles: Any, of: Any) -> None:
    if roles is not None and not isinstance(roles, Mapping):
        raise InputError(f"roles={roles!r} must be a dict from names of tensors to roles, as {{'input_ids': 'shared'}}")
    if of is not None and not isinstance(of, str):
        raise InputError(f"of={of!r} must be the name of the tensor that is explained")


def _warn_of_raw_pixels(model_inputs: ModelInputs, preprocess: Any) -> None:
    """Warn of values far outside of what the model's normalisation gives, such as pixels from 0 to 255."""
    if not isinstance(preprocess, Preprocess):
        return
    limit = max(max(mean, 1 - mean) / std for mean, std in zip(preprocess.mean, preprocess.std, strict=True))
    described = zip(model_inputs.description, model_inputs.tensors, strict=True)
    pixels = [tensor for one, tensor in described if _holds_pixels(one) and tensor.is_floating_point()]
    largest = max((float(tensor.detach().abs().amax()) for tensor in pixels if tensor.numel()), default=0.0)
    if largest > _RAW_PIXELS * limit:
        warnings.warn(
            f"the images have values up to {largest:.4g}, and the normalisation of this model gives at most "
            f"{limit:.3g}: if they are raw pixels, scale them to [0, 1] and normalise them, or pass paths or PIL "
            "images, which are prepared for you",
            GuessWarning,
            stacklevel=5,
        )


def _holds_pixels(one: InputTensor) -> bool:
    # Other flattened patches can be the stream of a decoder.
    return one.role in ("image", "video") or (one.role == "patches" and "pixel" in one.key)


def _batched(tensor: Tensor, model: nn.Module | None) -> Tensor:
    """A tensor that the model takes as its only argument, checked; one image without a batch axis gains one."""
    numbers, axes = tensor.is_floating_point(), tensor.dim()
    if axes == 4 and not numbers:
        raise InputError(
            f"images of type {tensor.dtype} are raw pixels: normalise them to floats, or pass paths or PIL images, "
            "which are prepared for you"
        )
    if axes == 4 or (axes == 2 and not numbers):
        return tensor
    if model is not None and numbers and axes == 3 and tensor.shape[0] == _channels(model):
        warnings.warn(
            f"a tensor of shape {tuple(tensor.shape)} has no batch axis: it is taken as one image of "
            f"{tensor.shape[0]} channels; pass image[None] to say so",
            GuessWarning,
            stacklevel=5,
        )
        return tensor[None]
    hint = ": pass it by name in a dict if the model takes no images, or image[None] for one image" if axes == 3 else ""
    raise InputError(
        f"a tensor of shape {tuple(tensor.shape)} is not a batch of images: expected (batch, channels, height, width)"
        f"{hint}"
    )


def _channels(model: nn.Module) -> int | None:
    """Channels of the images that a model takes, by its first convolution."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    return None if first is None else int(first.in_channels)


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


def _exists(path: str | Path) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def is_image(value: object) -> bool:
    """Whether a value is a PIL image, by its attributes, so that Pillow is not imported."""
    return hasattr(value, "convert") and hasattr(value, "size") and not isinstance(value, Tensor | type)
