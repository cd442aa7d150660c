"""Videos, sound, series and features that are passed as tensors: their names, roles and axes by the model."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from vitrail.capture.input_roles import FEATURES, SERIES, SPECTROGRAM, VIDEO, InputTensor, axes_of, role_of
from vitrail.capture.inputs import ModelInputs

#: Main inputs of Hugging Face models that are sequences of numbers, without channels, height and width.
SEQUENCES = ("input_values", "input_features", "past_values", "inputs_embeds", "spectrogram")
#: Names by which configs of sound models state the number of frequency bins.
_BINS = ("num_mel_bins", "input_feat_per_channel", "feature_size")


def signal_arguments(tensor: Tensor, model: nn.Module) -> ModelInputs | None:
    """The arguments of a call with one tensor that is no batch of images, or None if the model takes images.

    The name of the model's main input says what a sequence is. A table of numbers is one of features, or of waveforms
    if the model convolves along one axis.

    Example:
        >>> import torch
        >>> signal_arguments(torch.zeros(2, 5), nn.Linear(5, 3)).description[0].role
        'features'
    """
    main = getattr(model, "main_input_name", None) or first_sequence(model)
    if not tensor.is_floating_point():
        return None
    if tensor.dim() in (2, 3) and main in SEQUENCES:
        role, known_by = role_of(str(main), tensor)
        return _described(tensor, role, axes_of(role, tensor), known_by)
    if tensor.dim() == 5 and takes_videos(model):
        return ModelInputs((tensor,))
    if tensor.dim() != 2 or main is not None:
        return None
    convolves = {m.weight.dim() - 2 for m in model.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)}
    if not convolves & {2, 3}:
        role = SERIES if 1 in convolves else FEATURES
        return _described(tensor, role, axes_of(role, tensor), "shape")
    return None


def first_sequence(model: nn.Module) -> str | None:
    """The name of forward's first parameter, if it names a sequence of numbers.

    Example:
        >>> first_sequence(nn.Linear(5, 3)) is None
        True
    """
    first = next(iter(inspect.signature(model.forward).parameters), None)
    return first if first in SEQUENCES else None


def _described(tensor: Tensor, role: str, axes: tuple[str, ...], known_by: str) -> ModelInputs:
    one = ModelInputs((tensor,)).description[0]
    described = replace(one, role=role, axes=axes, per_example=True, known_by=known_by)
    return replace(ModelInputs((tensor,)), described=(described,))


def takes_videos(model: nn.Module) -> bool:
    """Whether a model takes videos: its config states a number of frames, or it convolves along three axes."""
    config: Any = getattr(model, "config", None)
    frames = any(hasattr(part, "num_frames") for part in (config, getattr(config, "vision_config", None)))
    return frames or any(isinstance(m, nn.Conv3d) for m in model.modules())


def model_axes(one: InputTensor, tensor: Tensor, model: nn.Module) -> InputTensor:
    """The description of a tensor with its axes as the model states them, where the shape alone leaves them open.

    A spectrogram has its frequencies along the axis of the number of bins in the model's config. A video has its
    channels behind the frames in Hugging Face models; in others in front of them if their number fits the first
    convolution.
    """
    config = getattr(model, "config", None)
    if one.role == SPECTROGRAM and tensor.dim() == 3:
        bins = next((getattr(config, name) for name in _BINS if isinstance(getattr(config, name, None), int)), None)
        at = [axis for axis in (1, 2) if tensor.shape[axis] == bins]
        if len(at) == 1:
            names = ("batch", "frequency", "time") if at[0] == 1 else ("batch", "time", "frequency")
            return replace(one, axes=names)
    if one.role == VIDEO and tensor.dim() == 5:
        return replace(one, axes=_video_axes(one.axes, tensor, model))
    return one


def _video_axes(axes: tuple[str, ...], tensor: Tensor, model: nn.Module) -> tuple[str, ...]:
    frames_first = ("batch", "time", "channels", "height", "width")
    if type(model).__module__.startswith("transformers."):
        return frames_first
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Conv3d)), None)
    if first is None:
        return axes
    fits = [axis for axis in (1, 2) if int(tensor.shape[axis]) == int(first.in_channels)]
    if fits == [1] or (fits == [1, 2] and isinstance(first, nn.Conv3d)):
        return ("batch", "channels", "time", "height", "width")
    return frames_first if fits else axes
