"""What a model takes, images, videos or sound, and what of its output can be explained."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.outputs import class_logits
from vitrail.data import SCENE_CLASSES
from vitrail.errors import ModelError, TargetError
from vitrail.inputs.signal_inputs import takes_videos
from vitrail.models import LoadedModel
from vitrail.models.plain_clip import PlainCLIP
from vitrail.models.plain_sequences import PlainSpectrogramViT, PlainVideoViT
from vitrail.models.preprocess import Preprocess
from vitrail.targets import NamedTarget, box, prompt, region
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.targets.text_call import reads_texts

#: Prompts that are offered at first.
PROMPTS = ("a photo of a cat", "a photo of a dog", "a photo of a person", "a photo of food")


def media_of(loaded: LoadedModel) -> str:
    """What a model takes: "image", "video" or "sound"."""
    module = unwrap(loaded.module)
    if isinstance(module, PlainSpectrogramViT):
        return "sound"
    return "video" if takes_videos(module) else "image"


def frame_count(loaded: LoadedModel) -> int:
    """Number of frames of the videos that a model takes."""
    module: Any = unwrap(loaded.module)
    if isinstance(module, PlainVideoViT):
        return int(module.grid[0]) * int(module.embed.kernel_size[0])
    frames = getattr(getattr(module, "config", None), "num_frames", None)
    if not isinstance(frames, int):
        raise ModelError(f"the number of frames of {loaded.name} is unknown, so the page does not support it")
    return frames


def input_size(loaded: LoadedModel, media: str) -> tuple[int, ...]:
    """Shape of what the page keeps of an input, as bytes: (height, width, 3), with frames or without."""
    if media == "sound":
        module: Any = unwrap(loaded.module)
        return tuple(int(n) * int(k) for n, k in zip(module.grid, module.embed.kernel_size, strict=True))
    assert isinstance(loaded.preprocess, Preprocess)
    frames = (frame_count(loaded),) if media == "video" else ()
    return (*frames, *loaded.preprocess.size, 3)


def signal_tensor(raw_input: np.ndarray[Any, Any], loaded: LoadedModel) -> Tensor:
    """A video or spectrogram as the model takes it, from bytes."""
    values = torch.from_numpy(np.ascontiguousarray(raw_input)).float()
    if raw_input.ndim == 2:
        return values[None] / 127.5 - 1
    assert isinstance(loaded.preprocess, Preprocess)
    mean, std = (torch.tensor(v)[:, None, None] for v in (loaded.preprocess.mean, loaded.preprocess.std))
    return ((values.permute(0, 3, 1, 2) / 255 - mean) / std)[None]


def shown_pixels(raw_input: np.ndarray[Any, Any], frame: int = 0) -> np.ndarray[Any, Any]:
    """An image, a frame of a video, or a spectrogram with time to the right and frequency upwards, as pixels."""
    if raw_input.ndim == 2:
        return np.repeat(np.ascontiguousarray(raw_input.T[::-1])[..., None], 3, 2)
    return raw_input[min(frame, len(raw_input) - 1)] if raw_input.ndim == 4 else raw_input


def target_kind(loaded: LoadedModel, model_inputs: ModelInputs) -> tuple[str, int]:
    """What of a model's output can be explained: "class", "prompt", "box" or "region", and the number of labels."""
    module = unwrap(loaded.module)
    if reads_texts(module):
        return "prompt", 0
    with frozen(module), torch.inference_mode():
        output = run_model(module, model_inputs)
        logits = class_logits(module, output)
    reader = OutputReader(output, CallContext(module, loaded.classes))
    scores = reader.query_scores()
    if reader.find(("pred_boxes",), 3) is not None and scores is not None:
        return "box", int(scores.shape[-1])
    if logits is not None and logits.dim() == 2:
        return "class", int(logits.shape[1])
    try:
        return "region", int(reader.dense().shape[1])
    except TargetError:
        raise ModelError(
            f"{loaded.name} returns no class scores, boxes or scores of pixels, so the page does not support it: use "
            "the Python API"
        ) from None


def example_target(kind: str, module: nn.Module) -> NamedTarget | None:
    """Any target of a kind, which the structure of a model is read with; None for classes."""
    if kind == "prompt":
        return prompt(suggested_prompts(module)[0])
    return {"box": box(0), "region": region((0, 0))}.get(kind)


def suggested_prompts(module: nn.Module) -> tuple[str, ...]:
    """Prompts for any image of a model."""
    return tuple(f"a {name}" for name in SCENE_CLASSES[:4]) if isinstance(unwrap(module), PlainCLIP) else PROMPTS
