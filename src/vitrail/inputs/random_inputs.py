"""Random inputs that fit a model, images of its size or tokens of its vocabulary, and a target for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.output_tensors import any_output, logits_of
from vitrail.inputs.signal_inputs import signal_arguments
from vitrail.models.loaded import LoadedModel
from vitrail.models.plain_clip import PlainCLIP
from vitrail.models.plain_sequences import PlainSpectrogramViT, PlainVideoViT
from vitrail.models.plain_vlm import IMAGE, PlainVLM
from vitrail.models.preprocess import Preprocess

#: Tokens of a random text, unless the model takes fewer.
TEXT_LENGTH = 64
#: Random texts beside the images of models like CLIP.
TEXTS = 3
#: Samples of a random waveform: one second.
WAVEFORM = 16000
#: Token ids that models give a meaning to: padding decides which tokens are seen, an end where a text is read.
_SPECIAL_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def random_inputs(model: LoadedModel, batch: int = 1) -> ModelInputs:
    """Create random images, texts, videos, sounds or series, on the model's device and the same in every call.

    Args:
        model: The model. Hugging Face models of videos, sound and series take these, of the size in their config.
            Others take texts if they embed tokens, otherwise images: of the size of their preprocessing or their
            config, or 224×224 if that is unknown. Hugging Face models like CLIP take both.
        batch: Number of inputs.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> random_inputs(LoadedModel(tiny_vit(), Preprocess((32, 32))), batch=2).args[0].shape
        torch.Size([2, 3, 32, 32])
    """
    module, generator = unwrap(model.module), torch.Generator().manual_seed(0)
    signal = _signal_size(module)
    if isinstance(module, PlainCLIP):
        size = (TEXTS, module.text_position.shape[1])
        ids = torch.randint(3, module.word_embed.num_embeddings, size, generator=generator)
        pixels = torch.randn(batch, 3, *_image_size(model), generator=generator)
        return ModelInputs((), {"input_ids": ids, "pixel_values": pixels}).onto(module)
    if isinstance(module, PlainVLM):
        front = torch.full((batch, module.position.shape[1]), IMAGE)
        asked = torch.randint(5, module.word_embed.num_embeddings, (batch, 6), generator=generator)
        pixels = torch.randn(batch, 3, *_image_size(model), generator=generator)
        return ModelInputs((), {"input_ids": torch.cat([front, asked], 1), "pixel_values": pixels}).onto(module)
    if signal is not None:
        noise = torch.randn(batch, *signal, generator=generator)
        if isinstance(module, PlainSpectrogramViT):
            return ModelInputs((), {"input_values": noise}).onto(module)
        known = signal_arguments(noise, module)
        return (ModelInputs((noise,)) if known is None else known).onto(module)
    vocabulary = vocabulary_size(module)
    if vocabulary is not None:
        ids = _token_ids(getattr(module, "config", None), vocabulary, batch, generator)
        return ModelInputs((), {"input_ids": ids}).onto(module)
    config = getattr(module, "config", None)
    side = getattr(getattr(config, "vision_config", config), "image_size", None)
    usual = Preprocess((side, side)) if isinstance(side, int) else Preprocess((224, 224))
    preprocess = model.preprocess if isinstance(model.preprocess, Preprocess) else usual
    noise = torch.randn(batch, len(preprocess.mean), *preprocess.size, generator=generator)
    text = getattr(config, "text_config", None)
    words = getattr(text, "vocab_size", None)
    if isinstance(words, int) and hasattr(module, "get_text_features"):
        ids = _token_ids(text, words, TEXTS, generator)
        return ModelInputs((), {"input_ids": ids, "pixel_values": noise}).onto(module)
    return ModelInputs((noise,)).onto(module)


def _image_size(model: LoadedModel) -> tuple[int, int]:
    return model.preprocess.size if isinstance(model.preprocess, Preprocess) else (224, 224)


def _signal_size(module: nn.Module) -> tuple[int, ...] | None:
    """Size of a video, spectrogram, waveform or series that a model takes, or None where it takes none."""
    if isinstance(module, PlainVideoViT | PlainSpectrogramViT):
        size = [cells * patch for cells, patch in zip(module.grid, module.embed.kernel_size, strict=True)]
        return (size[0], 3, *size[1:]) if isinstance(module, PlainVideoViT) else tuple(size)
    config: Any = getattr(module, "config", None)
    main = getattr(module, "main_input_name", None)
    frames, side = getattr(config, "num_frames", None), getattr(config, "image_size", None)
    if isinstance(frames, int) and isinstance(side, int):
        return (frames, int(getattr(config, "num_channels", 3)), side, side)
    bins = getattr(config, "num_mel_bins", None)
    if main == "input_values" and isinstance(bins, int):
        return (int(getattr(config, "max_length", 1024)), bins)
    if main == "input_features" and isinstance(getattr(config, "max_source_positions", None), int):
        return (int(bins or 80), 2 * config.max_source_positions)
    if main == "input_values" and hasattr(config, "conv_stride"):
        return (WAVEFORM,)
    if main == "past_values" and isinstance(getattr(config, "context_length", None), int):
        return (config.context_length, int(getattr(config, "num_input_channels", 1)))
    return None


def output_target(module: nn.Module, model_inputs: ModelInputs) -> Callable[[Any], Tensor] | None:
    """None (the predicted class) for a model with classes; otherwise its first output."""
    with frozen(module), torch.no_grad():
        output = run_model(module, model_inputs)
    return None if logits_of(output) is not None and not hasattr(module, "encode_text") else _first_output


def _first_output(output: Any) -> Tensor:
    """A scalar to differentiate in a model without classes."""
    return any_output(output).flatten(1)[:, :1]


def vocabulary_size(module: nn.Module) -> int | None:
    """Number of tokens that a Hugging Face text model knows, or None for other models.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> vocabulary_size(tiny_vit()) is None
        True
    """
    embeddings = getattr(module, "get_input_embeddings", None)
    if embeddings is None or hasattr(module, "get_image_features"):  # CLIP and its kind take images as well
        return None
    try:
        layer = embeddings()
    except NotImplementedError:
        return None
    return layer.num_embeddings if isinstance(layer, nn.Embedding) else None


def _token_ids(config: Any, vocabulary: int, batch: int, generator: torch.Generator) -> Tensor:
    """Ids of tokens without a special meaning, shape (batch, n)."""
    special = {getattr(config, name, None) for name in _SPECIAL_IDS}
    allowed = torch.tensor([i for i in range(vocabulary) if i not in special] or [0])
    positions = getattr(config, "max_position_embeddings", None)
    # RoBERTa counts positions from its padding id, so that it takes fewer tokens than it has positions.
    longest = positions - 2 if isinstance(positions, int) and positions > 2 else TEXT_LENGTH
    drawn = torch.randint(len(allowed), (batch, min(TEXT_LENGTH, longest)), generator=generator)
    return allowed[drawn]
