"""Calling a model: an error of its own becomes one line that says what failed and, where known, how to fix it."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn

from vitrail.capture.inputs import ModelInputs
from vitrail.errors import InputError, ModelError, VitrailError

#: Words by which libraries complain about the size of an image.
_SIZE_WORDS = re.compile(
    r"size of tensor|must match|doesn't match model|match the model|input (image )?(height|width|size)|"
    r"shape|img_size|image_size|mat1 and mat2|expected .*channels|divisible",
    re.IGNORECASE,
)
#: Names by which configs state the size of an axis.
_STATED = {
    "time": ("num_frames", "max_length", "context_length"), "frequency": ("num_mel_bins",),
    "height": ("image_size",), "width": ("image_size",), "variables": ("num_input_channels",),
}  # fmt: skip


def run_model(model: nn.Module, model_inputs: ModelInputs) -> Any:
    """Call the model; an error of its own becomes one line that says what failed and, where known, how to fix it."""
    try:
        return model_inputs.into(model)
    except (VitrailError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise _error_of_call(model, model_inputs, error) from error


def _error_of_call(model: nn.Module, model_inputs: ModelInputs, error: Exception) -> VitrailError:
    """The error to raise for one that a model raised in its own forward pass."""
    name = type(model).__name__
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    if "nference tensor" in reason:
        weights = any(parameter.is_inference() for parameter in model.parameters())
        what = "the model's weights were" if weights else "a tensor that the model keeps was"
        return ModelError(
            f"{what} made under torch.inference_mode(), so nothing can be differentiated through "
            f"{'them' if weights else 'it'}: load the model outside of it"
            + ("" if weights else ", and run it under torch.no_grad() instead")
        )
    if "meta" in reason and isinstance(error, NotImplementedError | RuntimeError):
        return ModelError(f"{name} has weights on the meta device: load them into memory first ({reason})")
    words, limit = model_inputs.called("input_ids"), _stated_positions(model)
    if isinstance(error, IndexError) and words is not None and limit is not None and words.shape[-1] > limit:
        return InputError(f"the text has {words.shape[-1]} tokens, and {name} takes {limit}: shorten it")
    if isinstance(error, TypeError) and "argument" in reason:
        return InputError(
            f"{name}.forward() does not accept these inputs ({reason}): pass a dict with the arguments by name"
        )
    image = model_inputs.image
    if image is None and model_inputs.axes is not None:
        expected = _stated_sizes(model, model_inputs.axes.names)
        sizes = dict(zip(model_inputs.axes.names, model_inputs.map_size or (), strict=True))
        if any(sizes[axis] != size for axis, size in expected.items()):
            given, takes = (", ".join(f"{axis} {size}" for axis, size in one.items()) for one in (sizes, expected))
            return InputError(f"{name} does not accept an input of {given} ({reason}): it takes {takes}")
    sized = isinstance(error, RuntimeError | ValueError | AssertionError) and _SIZE_WORDS.search(str(error))
    if image is None or not sized:
        hint = _spectrogram_hint(model, model_inputs)
        if hint:
            assert image is not None
            return InputError(f"{name} does not accept an image of shape {tuple(image.shape[1:])} ({reason}){hint}")
        further = _further_inputs(model, model_inputs, error)
        return ModelError(f"{name} failed in its own forward pass: {reason}{further}")
    weight = next((m.weight for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    channels, height, width = image.shape[1:]
    if weight is not None and weight.shape[1] != channels and weight.dim() == 4:
        return InputError(
            f"the images have {channels} channels, {name} takes {weight.shape[1]}: "
            "convert them first (paths and PIL images are converted for you)" + _spectrogram_hint(model, model_inputs)
        )
    return InputError(
        f"{name} does not accept images of {height}×{width} pixels ({reason}): resize them to the model's own "
        "size, or pass paths or PIL images, which are resized for you" + _spectrogram_hint(model, model_inputs)
    )


def _stated_sizes(model: nn.Module, axes: tuple[str, ...]) -> dict[str, int]:
    """The sizes of the axes that a model's ``axis_sizes`` or its config states."""
    known = getattr(model, "axis_sizes", None)
    if isinstance(known, dict):
        return known
    config = getattr(model, "config", None)
    config = getattr(config, "vision_config", config)
    found: dict[str, int] = {}
    for axis in axes:
        stated = [getattr(config, name, None) for name in _STATED.get(axis, ())]
        size = next((one for one in stated if isinstance(one, int)), None)
        found |= {} if size is None else {axis: size}
    return found


def _stated_positions(model: nn.Module) -> int | None:
    """Most tokens of a text by the model's config, where it adds vectors of positions."""
    config = getattr(model, "config", None)
    found = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    return next((one for one in found if isinstance(one, int)), None)


def _further_inputs(model: nn.Module, model_inputs: ModelInputs, error: Exception) -> str:
    """What else forward takes, where it failed on something that is None."""
    if "NoneType" not in str(error):
        return ""
    parameters = list(inspect.signature(model.forward).parameters.values())
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    rest = [p for p in named[len(model_inputs.args) :] if p not in model_inputs.kwargs]
    if not rest:
        return ""
    listed = ", ".join(rest[:6]) + (", …" if len(rest) > 6 else "")
    given = f"the first argument was passed as {named[0]}, and " if model_inputs.args else ""
    return f"; {given}forward() also takes {listed}: pass a dict with what the model needs by name"


def _spectrogram_hint(model: nn.Module, model_inputs: ModelInputs) -> str:
    """How to pass a spectrogram or series, where one tensor without a name can be one."""
    image = model_inputs.image
    if image is None or len(model_inputs.args) != 1 or image.shape[:2] != (1, 1):
        return ""
    parameter = next(iter(inspect.signature(model.forward).parameters), "x")
    return (
        f". If the tensor is a spectrogram, pass {{'{parameter}': tensor}} with "
        f"roles={{'{parameter}': 'spectrogram'}}, or 'series' for a series"
    )
