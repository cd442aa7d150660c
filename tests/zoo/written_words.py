"""Small encoder–decoders that write words: about a text, an image or a sound."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from tests.zoo.encoder_decoders import LAYERS, build, ids
from tests.zoo.entry import Entry, Subject
from tests.zoo.number_words import NumberWords, log_odds
from tests.zoo.tiny import add_noise
from vitrail.targets import token

SPECIAL = {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}


@dataclass(frozen=True)
class WrittenWords(Subject):
    """A model with two examples for its encoder.

    Attributes:
        start: Start token of the decoder.
        tokens: Whether the encoder reads words.
    """

    start: int = 2
    tokens: bool = True


def written(model: nn.Module, inputs: dict[str, Tensor], start: int = 2, tokens: bool = True) -> WrittenWords:
    options: dict[str, Any] = {"tokenizer": NumberWords()} if tokens else {}
    return WrittenWords(model, inputs, token(7), options=options, start=start, tokens=tokens)


def texts() -> dict[str, Tensor]:
    words = ids(2, 9)
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


def bart() -> WrittenWords:
    options = LAYERS | SPECIAL | {"max_position_embeddings": 40, "forced_eos_token_id": 2, "vocab_size": 60}
    model = build("BartForConditionalGeneration", "BartConfig", **options)
    return written(model, texts())


def marian() -> WrittenWords:
    options = LAYERS | SPECIAL | {"max_position_embeddings": 40, "forced_eos_token_id": 2, "vocab_size": 60}
    model = build("MarianMTModel", "MarianConfig", **options)
    return written(model, texts())


def t5() -> WrittenWords:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
    model = build("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0, vocab_size=60, **sizes)
    return written(model, texts(), 0)


def whisper() -> WrittenWords:
    """Sound of 64 steps and 16 bins."""
    options = LAYERS | SPECIAL | {
        "vocab_size": 60, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 40,
        "begin_suppress_tokens": None, "suppress_tokens": None,
    }  # fmt: skip
    model = build("WhisperForConditionalGeneration", "WhisperConfig", **options)
    sound = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return written(model, {"input_features": sound}, tokens=False)


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
    return written(model, {"pixel_values": images}, tokens=False)


def donut() -> WrittenWords:
    """A Swin encoder, which attends inside windows."""
    return trocr("DonutSwinConfig", image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1], num_heads=[2, 2, 4],
                 window_size=4)  # fmt: skip


CASES: dict[str, Callable[[], WrittenWords]] = {
    "bart": bart, "marian": marian, "t5": t5, "whisper": whisper, "trocr": trocr, "donut": donut,
}  # fmt: skip


def reading_only(model: nn.Module, position: int) -> nn.Module:
    """The same model, whose encoder sees zeros at all positions but one, and whose decoder reads that one alone."""
    made: Any = copy.deepcopy(model)
    encoder = made.get_encoder()
    layers = next(m for m in encoder.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)

    def mask(x: Tensor) -> Tensor:
        kept = torch.zeros(x.shape[1], 1, dtype=x.dtype)
        kept[position] = 1
        return x * kept

    def hide(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (mask(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": mask(kwargs["hidden_states"])}

    def result(_: nn.Module, __: Any, output: Any) -> Any:
        output.last_hidden_state = mask(output.last_hidden_state)
        return output

    for layer in layers:
        layer.register_forward_pre_hook(hide, with_kwargs=True)
    encoder.register_forward_hook(result)
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if key.endswith("bias") and any(part in key for part in ("attn", "attention", "norm")):
                parameter.zero_()  # zeros stay zeros
    return made  # type: ignore[no-any-return]


def plant_encoder_position(subject: Subject, methods: Sequence[str]) -> None:
    """The encoder and the decoder see one position: all relevance of the encoder's input lies there."""
    case, position = subject, 4
    assert isinstance(case, WrittenWords)
    # The other patches of an image have no effect, so that the grid cannot be measured.
    options = dict(case.options) if case.tokens else {"layout": vitrail.Layout(prefix=1, grid=(4, 4))}
    model = reading_only(case.model, position)
    found = vitrail.explain(model, case.inputs, methods=list(methods), target=case.target, **options)
    for method, e in found.items():
        scores = e.grid[0, 0].abs()
        if not case.tokens:
            scores = torch.nn.functional.avg_pool2d(scores[None], len(scores) // 4)[0].flatten()
        planted = position if case.tokens else position - 1  # the first token of the image is no patch
        assert int(scores.argmax()) == planted, method
        others = torch.cat([scores[:planted], scores[planted + 1 :]])
        assert float(others.max()) <= 1e-6 * float(scores[planted]), method


def same_as_function(subject: Subject, methods: Sequence[str]) -> None:
    """A token as target gives the maps of a function of the output."""
    case = subject
    assert isinstance(case, WrittenWords)
    given = case.inputs | {"decoder_input_ids": torch.tensor([[case.start]] * 2)}
    found = vitrail.explain(case.model, case.inputs, methods=list(methods), target=case.target, **case.options)
    expected = vitrail.explain(case.model, given, methods=list(methods), target=lambda o: log_odds(o.logits[:, -1], 7))
    for method, e in found.items():
        scale = float(expected[method].grid.abs().max())
        assert torch.allclose(e.grid, expected[method].grid, atol=1e-9 * scale), method


WRITTEN_TESTS = {"plant_encoder_position": plant_encoder_position, "same_as_function": same_as_function}
METHODS = ("transformer_mm", "attnlrp", "gradient_x_input")
PLANTED, SAME = ("plant_encoder_position",), ("same_as_function",)
ENTRIES = [
    Entry("hf:BartForConditionalGeneration, written words", bart, PLANTED, METHODS, target="word that is written"),
    Entry("hf:MarianMTModel", marian, PLANTED, METHODS, target="word that is written"),
    Entry("hf:T5ForConditionalGeneration, written words", t5, PLANTED, METHODS, target="word that is written"),
    Entry("hf:VisionEncoderDecoderModel, TrOCR", trocr, PLANTED, METHODS, target="word that is written"),
    Entry("hf:WhisperForConditionalGeneration, written words", whisper, SAME, METHODS, target="word that is written"),
    Entry("hf:VisionEncoderDecoderModel, Donut", donut, SAME, ("gradient_x_input",),
          {"transformer_mm": "windows|several streams|number of tokens|between two sequences"},
          target="word that is written"),
]  # fmt: skip
