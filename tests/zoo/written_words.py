"""Small encoder–decoders that write words: about a text, an image or a sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.encoder_decoders import LAYERS, build, ids
from tests.zoo.tiny import add_noise

SPECIAL = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}


@dataclass(frozen=True)
class WrittenWords:
    """A model with two examples for its encoder.

    Attributes:
        model: The model.
        inputs: The arguments of its encoder.
        start: Start token of the decoder.
        layers: Name of the module that holds the layers of the encoder.
        tokens: Whether the encoder reads words.
    """

    model: nn.Module
    inputs: dict[str, Tensor]
    start: int
    layers: str
    tokens: bool = True


def texts() -> dict[str, Tensor]:
    words = ids(2, 9)
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


def bart() -> WrittenWords:
    options = LAYERS | SPECIAL | {"max_position_embeddings": 40, "forced_eos_token_id": 2, "vocab_size": 60}
    model = build("BartForConditionalGeneration", "BartConfig", **options)
    return WrittenWords(model, texts(), 2, "model.encoder.layers")


def marian() -> WrittenWords:
    options = LAYERS | SPECIAL | {"max_position_embeddings": 40, "forced_eos_token_id": 2, "vocab_size": 60}
    model = build("MarianMTModel", "MarianConfig", **options)
    return WrittenWords(model, texts(), 2, "model.encoder.layers")


def t5() -> WrittenWords:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    model = build("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0, vocab_size=60, **sizes)
    return WrittenWords(model, texts(), 0, "encoder.block")


def whisper() -> WrittenWords:
    """Sound of 64 steps and 16 bins."""
    options = LAYERS | SPECIAL | {
        "vocab_size": 60, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 40,
        "begin_suppress_tokens": None, "suppress_tokens": None,
    }  # fmt: skip
    model = build("WhisperForConditionalGeneration", "WhisperConfig", **options)
    sound = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return WrittenWords(model, {"input_features": sound}, 2, "model.encoder.layers", False)


def trocr(encoder: str = "ViTConfig", **sizes: Any) -> WrittenWords:
    """Images of 64×64 pixels on a grid of 4×4."""
    import transformers

    width = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    vision = getattr(transformers, encoder)(**(sizes or width | {"image_size": 64, "patch_size": 16}))
    decoder = transformers.TrOCRConfig(
        vocab_size=60, d_model=32, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48,
        max_position_embeddings=40, is_decoder=True, add_cross_attention=True, cross_attention_hidden_size=32,
    )  # fmt: skip
    torch.manual_seed(0)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, decoder)
    config.decoder_start_token_id, config.pad_token_id = 2, 1
    model = add_noise(transformers.VisionEncoderDecoderModel(config)).double().eval()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return WrittenWords(model, {"pixel_values": images}, 2, "encoder", False)


def donut() -> WrittenWords:
    """A Swin encoder, which attends inside windows."""
    return trocr("DonutSwinConfig", image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1], num_heads=[2, 2, 4],
                 window_size=4)  # fmt: skip


CASES: dict[str, Callable[[], WrittenWords]] = {
    "bart": bart, "marian": marian, "t5": t5, "whisper": whisper, "trocr": trocr, "donut": donut,
}  # fmt: skip
