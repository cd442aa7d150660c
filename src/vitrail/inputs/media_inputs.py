"""Sound and video files as the arguments of a model, with the units of their axes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.capture.inputs import ModelInputs
from vitrail.errors import InputError
from vitrail.inputs.map_axis import MapAxis
from vitrail.inputs.media_files import Clip, Sound, is_sound, is_video, read_sound, read_video
from vitrail.inputs.signal_inputs import SEQUENCES, takes_videos
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import Preprocess

#: Seconds between two frames of a spectrogram whose feature extractor does not state them, as in AST.
FRAME_SHIFT = 0.01


def media_arguments(paths: Sequence[str | Path], loaded: LoadedModel) -> ModelInputs | None:
    """The arguments of a call for sound or video files; None if the files are images.

    Args:
        paths: Files.
        loaded: The model. For sound, its preprocessing is a Hugging Face feature extractor; for videos, one of single
            frames, or a Hugging Face processor of videos.
    """
    videos = takes_videos(loaded.module)
    if all(is_sound(path) for path in paths):
        return _joined([_sound_arguments(path, loaded) for path in paths])
    if all(is_video(path) for path in paths) and (videos or not any(_is_gif(path) for path in paths)):
        if not videos:
            raise InputError(
                f"{Path(paths[0]).name} is a video, and {loaded.name} takes no videos: use a video model, or explain "
                "single frames as images"
            )
        return _joined([_video_arguments(path, loaded) for path in paths])
    if any(is_sound(path) or (is_video(path) and not _is_gif(path)) for path in paths):
        raise InputError("pass only sound files, only video files, or only images in one call")
    if getattr(loaded.module, "main_input_name", None) in SEQUENCES:
        raise InputError(f"{loaded.name} takes sound or series, not images or videos: pass a .wav file, or tensors")
    if videos:
        raise InputError(f"{loaded.name} takes videos: pass a .gif or .mp4 file, or a tensor of frames")
    return None


def _is_gif(path: str | Path) -> bool:
    return Path(path).suffix.lower() == ".gif"


def _joined(calls: Sequence[ModelInputs]) -> ModelInputs:
    """Several calls of one example as one call."""
    if len(calls) == 1:
        return calls[0]
    shapes = {tuple(t.shape for t in call.tensors) for call in calls}
    if len(shapes) > 1:
        listed = ", ".join(sorted("×".join(map(str, shape[0][1:])) for shape in shapes))
        raise InputError(f"the files become tensors of different shapes, {listed}: explain them one by one")
    args = tuple(torch.cat([call.args[i] for call in calls]) for i in range(len(calls[0].args)))
    kwargs = {name: torch.cat([call.kwargs[name] for call in calls]) for name in calls[0].kwargs}
    return replace(calls[0], args=args, kwargs=kwargs)


def _video_arguments(path: str | Path, loaded: LoadedModel) -> ModelInputs:
    clip, name = read_video(path), Path(path).name
    frames = _sampled(clip, frame_count(loaded.module), name)
    preprocess = loaded.preprocess
    if preprocess is None:
        raise InputError(
            f"the preprocessing of {loaded.name} is unknown: pass a tensor of frames, or "
            "preprocess=vitrail.Preprocess(size, mean, std)"
        )
    if _is_processor(preprocess):
        found: Any = preprocess(list(frames.frames), return_tensors="pt")  # type: ignore[call-arg,arg-type]
        video = next(t for t in found.values() if isinstance(t, Tensor) and t.dim() == 5)
    else:
        video = torch.stack([preprocess(frame) for frame in frames.frames])[None]
        # Models with the argument names of transformers take (batch, time, channels, height, width), those of
        # torchvision (batch, channels, time, height, width).
        if "pixel_values" not in inspect.signature(loaded.module.forward).parameters:
            video = video.transpose(1, 2)
    return ModelInputs((video,), units=(_time_axis(frames.times),))


def _is_processor(preprocess: Any) -> bool:
    """Whether a preprocessing is an object of Hugging Face, which takes all frames or all samples at once."""
    return hasattr(preprocess, "model_input_names") and not isinstance(preprocess, Preprocess)


def frame_count(model: nn.Module) -> int | None:
    """Number of frames that a model takes, as its config states it, or None."""
    config: Any = getattr(model, "config", None)
    found = (getattr(part, "num_frames", None) for part in (config, getattr(config, "vision_config", None)))
    return next((n for n in found if isinstance(n, int)), None)


def _sampled(clip: Clip, count: int | None, name: str) -> Clip:
    """As many frames as the model takes, at equal distances."""
    length = len(clip.frames)
    if count is None or count == length:
        return clip
    if length < count:
        raise InputError(
            f"{name} has {length} frames, the model takes {count}: pass a longer video, or repeat frames and pass a "
            "tensor"
        )
    index = [int(i) for i in np.linspace(0, length - 1, count).round()]
    return Clip(tuple(clip.frames[i] for i in index), tuple(clip.times[i] for i in index))


def _time_axis(times: Sequence[float]) -> MapAxis:
    steps = np.diff(times)
    if len(steps) and float(steps.min()) > 0 and np.allclose(steps, steps[0], rtol=0.02) and not times[0]:
        return MapAxis("time", "s", float(steps.mean()))
    return MapAxis("time", "s", values=tuple(times)) if len(set(times)) > 1 else MapAxis("time")


def _sound_arguments(path: str | Path, loaded: LoadedModel) -> ModelInputs:
    main, name = getattr(loaded.module, "main_input_name", None), Path(path).name
    if main not in SEQUENCES:
        raise InputError(f"{name} is a sound, and {loaded.name} takes no sound: use a sound model")
    sound = read_sound(path)
    extractor: Any = loaded.preprocess
    if not _is_processor(extractor):
        raise InputError(
            f"the preprocessing of {loaded.name} is unknown: pass its feature extractor, as in preprocess=transformers."
            "AutoFeatureExtractor.from_pretrained(…), or the tensors that it returns"
        )
    rate = getattr(extractor, "sampling_rate", None)
    samples = _mono(sound, name)
    if rate is not None and rate != sound.rate:
        raise InputError(
            f"{name} has {sound.rate} samples a second, {loaded.name} takes {rate}: resample it first, for example "
            f"with ffmpeg -i {name} -ar {rate} resampled.wav"
        )
    features: Any = extractor(samples, sampling_rate=sound.rate, return_tensors="pt")
    tensors = {key: value for key, value in features.items() if isinstance(value, Tensor)}
    return ModelInputs((), tensors, units=sound_axes(extractor, tensors, sound.rate))


def _mono(sound: Sound, name: str) -> NDArray[np.float32]:
    if len(sound.samples) != 1:
        raise InputError(
            f"{name} has {len(sound.samples)} channels, the model takes one: mix them first, for example with "
            f"ffmpeg -i {name} -ac 1 mono.wav, or pass the mean of the channels"
        )
    samples: NDArray[np.float32] = sound.samples[0]
    return samples


def sound_axes(extractor: Any, tensors: Mapping[str, Tensor], rate: int) -> tuple[MapAxis, ...]:
    """The axes of what a feature extractor returns: seconds of a waveform, seconds and hertz of a spectrogram.

    Args:
        extractor: A Hugging Face feature extractor.
        tensors: What it returned.
        rate: Samples a second.
    """
    main = next(iter(tensors.values()))
    if main.dim() == 2:
        return (MapAxis("time", "s", 1 / rate),)
    hop = getattr(extractor, "hop_length", None)
    time = MapAxis("time", "s", hop / rate if isinstance(hop, int) else FRAME_SHIFT)
    filters = getattr(extractor, "mel_filters", None)
    if filters is None:
        return (time,)
    weights = np.asarray(filters, dtype=np.float64)  # (frequencies of the transform, mel bins)
    places = np.linspace(0, rate / 2, len(weights))
    total = weights.sum(0)
    centres = (places[:, None] * weights).sum(0) / np.where(total > 0, total, 1.0)
    # A filter narrower than a step of the transform is empty: its centre lies between those beside it.
    full = np.flatnonzero(total > 0)
    centres = np.interp(np.arange(len(total)), full, centres[full]) if len(full) else centres
    return (time, MapAxis("frequency", "Hz", values=tuple(float(c) for c in centres)))
