"""Small vision-language models: a question about an image for each of two examples."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from tests.zoo.entry import Entry, Subject
from tests.zoo.number_words import NumberWords, log_odds
from tests.zoo.pairs import PIXELS, TEXT, VISION, WIDTH, pixels
from tests.zoo.tiny import add_noise
from vitrail.capture.merged_stream import MergedStream, find_merged_stream
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models.loaded import describe
from vitrail.models.plain_vit import PlainBlock
from vitrail.models.plain_vlm import PlainVLM
from vitrail.targets import token

#: Number of the image token, of the words around it, and of the word that is explained.
IMAGE, START, STOP, LABEL = 55, 53, 54, 7
WORDS = 6
TOKENIZER = NumberWords((START, STOP, IMAGE))
GROUPED = TEXT | {"num_key_value_heads": 2, "max_position_embeddings": 128}


@dataclass(frozen=True)
class ImageQuestion(Subject):
    """A model with two questions about two images.

    Attributes:
        tokens: Image tokens of an example.
        tile: The tile that shows the last quarter of an image; None for images without tiles.
        reader: Which word's position is read: −1 for the last, 0 for the first.
    """

    tokens: int = 0
    tile: int | None = None
    reader: int = -1


def asked(
    model: nn.Module, inputs: dict[str, Tensor], tokens: int, grid: tuple[int, int] | None, tile: int | None = None
) -> ImageQuestion:
    target = token(f"w{LABEL}")
    return ImageQuestion(model, inputs, target, grid=grid, options={"tokenizer": TOKENIZER}, tokens=tokens, tile=tile)


def question(tokens: int, count: int = 2, image: int = IMAGE) -> dict[str, Tensor]:
    """Image tokens between two words, in front of six others."""
    drawn = torch.randint(8, 50, (count, WORDS), generator=torch.Generator().manual_seed(1))
    front = torch.tensor([START, *[image] * tokens, STOP]).expand(count, -1)
    ids = torch.cat([front, drawn], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def build(model: str, config: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    return add_noise(getattr(transformers, model)(config)).eval()


def _config(name: str, **options: Any) -> Any:
    import transformers

    return getattr(transformers, name)(**options)


def llava() -> ImageQuestion:
    vision = _config("CLIPVisionConfig", **VISION)
    config = _config("LlavaConfig", vision_config=vision, text_config=_config("LlamaConfig", **GROUPED),
                     image_token_index=IMAGE, vision_feature_layer=-1)  # fmt: skip
    return asked(build("LlavaForConditionalGeneration", config), question(16) | {"pixel_values": pixels(2)}, 16, (4, 4))


def llava_next() -> ImageQuestion:
    """An overview and four tiles of each image."""
    vision = _config("CLIPVisionConfig", **VISION)
    config = _config(
        "LlavaNextConfig", vision_config=vision, text_config=_config("LlamaConfig", **GROUPED), vision_feature_layer=-1,
        image_token_index=IMAGE, image_grid_pinpoints=[[128, 128]],
    )  # fmt: skip
    # 16 tokens of the overview, and 8 rows of 8 with a learned token at the end of each.
    given = question(16 + 8 * 9) | {"pixel_values": tiles(2), "image_sizes": torch.tensor([[128, 128]] * 2)}
    return asked(build("LlavaNextForConditionalGeneration", config), given, 16 + 64, (8, 8), tile=4)


def tiles(count: int, last: bool = False) -> Tensor:
    """An overview of each image and its four quarters; shape (count, 5, 3, 64, 64)."""
    whole = torch.nn.functional.interpolate(pixels(count), scale_factor=2, mode="bilinear")
    quarters = whole.unflatten(2, (2, PIXELS)).unflatten(4, (2, PIXELS)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    overview = torch.nn.functional.avg_pool2d(whole, 2)[:, None]
    return torch.cat([quarters, overview] if last else [overview, quarters], 1)


def pali_gemma() -> ImageQuestion:
    vision = _config("SiglipVisionConfig", **VISION, projection_dim=32)
    text = _config("GemmaConfig", **GROUPED, head_dim=8)
    config = _config("PaliGemmaConfig", vision_config=vision, text_config=text, image_token_index=IMAGE,
                     projection_dim=32, hidden_size=32)  # fmt: skip
    given = question(16) | {"pixel_values": pixels(2)}
    given["token_type_ids"] = torch.zeros_like(given["input_ids"])
    return asked(build("PaliGemmaForConditionalGeneration", config), given, 16, (4, 4))


def gemma3() -> ImageQuestion:
    """Patches are averaged to four tokens."""
    vision = _config("SiglipVisionConfig", **VISION)
    text = _config("Gemma3TextConfig", **GROUPED, head_dim=8)
    config = _config("Gemma3Config", vision_config=vision, text_config=text, image_token_index=IMAGE,
                     mm_tokens_per_image=4)  # fmt: skip
    given = question(4) | {"pixel_values": pixels(2)}
    given["token_type_ids"] = (given["input_ids"] == IMAGE).long()
    return asked(build("Gemma3ForConditionalGeneration", config), given, 4, (2, 2))


def idefics3(family: str = "Idefics3") -> ImageQuestion:
    """Four tiles and an overview; four patches make one token."""
    vision = _config(f"{family}VisionConfig", **VISION)
    config = _config(f"{family}Config", vision_config=vision, text_config=_config("LlamaConfig", **GROUPED),
                     image_token_id=IMAGE, scale_factor=2)  # fmt: skip
    given = question(20) | {"pixel_values": tiles(2, last=True)}
    return asked(build(f"{family}ForConditionalGeneration", config), given, 20, (4, 4), tile=3)


def intern_vl() -> ImageQuestion:
    vision = _config("InternVLVisionConfig", **VISION | {"image_size": [PIXELS, PIXELS], "patch_size": [16, 16]})
    config = _config("InternVLConfig", vision_config=vision, text_config=_config("Qwen2Config", **GROUPED),
                     image_token_id=IMAGE, downsample_ratio=0.5, vision_feature_layer=-1)  # fmt: skip
    return asked(
        build("InternVLForConditionalGeneration", config), question(4) | {"pixel_values": pixels(2)}, 4, (2, 2)
    )


def qwen(family: str = "Qwen2VL") -> ImageQuestion:
    """Flattened patches in one row; four of them make one token."""
    given = question(4)
    given |= {
        "pixel_values": torch.randn(32, 96, generator=torch.Generator().manual_seed(3)),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 2), "mm_token_type_ids": (given["input_ids"] == IMAGE).long(),
    }  # fmt: skip
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2,
              "temporal_patch_size": 2}  # fmt: skip
    vision |= (
        {"embed_dim": 32, "mlp_ratio": 2} if family == "Qwen2VL" else
        {"out_hidden_size": 32, "intermediate_size": 48, "window_size": 16, "fullatt_block_indexes": [1]}
    )  # fmt: skip
    text = GROUPED | {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    config = _config(
        f"{family}Config", text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=56,
        vision_start_token_id=START, vision_end_token_id=STOP,
    )  # fmt: skip
    return asked(build(f"{family}ForConditionalGeneration", config), given, 4, (2, 2))


def _blip(family: str) -> tuple[Any, dict[str, Any]]:
    vision = VISION
    former = WIDTH | {"encoder_hidden_size": 32, "cross_attention_frequency": 1, "vocab_size": 60}
    text = _config("OPTConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, vocab_size=60,
                   max_position_embeddings=128, word_embed_proj_dim=32, pad_token_id=0)  # fmt: skip
    options = {"vision_config": vision, "qformer_config": former, "text_config": text.to_dict(),
               "num_query_tokens": 5, "image_token_index": IMAGE}  # fmt: skip
    return _config(f"{family}Config", **options), question(5) | {"pixel_values": pixels(2)}


def blip2() -> ImageQuestion:
    """Five queries that attend to all patches."""
    config, given = _blip("Blip2")
    return asked(build("Blip2ForConditionalGeneration", config), given, 5, None)


def instruct_blip() -> ImageQuestion:
    config, given = _blip("InstructBlip")
    words = question(0)
    given |= {"qformer_input_ids": words["input_ids"], "qformer_attention_mask": words["attention_mask"]}
    return asked(build("InstructBlipForConditionalGeneration", config), given, 5, None)


def kosmos2() -> ImageQuestion:
    """Five queries that attend to all patches."""
    text = {"vocab_size": 60, "embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 4, "pad_token_id": 0,
            "max_position_embeddings": 128}  # fmt: skip
    config = _config("Kosmos2Config", vision_config=VISION, text_config=text, latent_query_num=5)
    given = question(5) | {"pixel_values": pixels(2)}
    given["image_embeds_position_mask"] = (given["input_ids"] == IMAGE).long()
    return asked(build("Kosmos2ForConditionalGeneration", config), given, 5, None)


def vilt() -> ImageQuestion:
    """Words in front of patches, in one encoder."""
    config = _config("ViltConfig", **VISION, vocab_size=60, num_labels=9, max_image_length=-1, type_vocab_size=2)
    made = asked(build("ViltForQuestionAnswering", config), question(0) | {"pixel_values": pixels(2)}, 16, (4, 4))
    return replace(made, target=1, reader=0)


def florence2() -> ImageQuestion:
    """A convolutional encoder of the image, whose tokens stand in front of the words of an encoder–decoder."""
    text = _config("BartConfig", vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=48,
                   decoder_ffn_dim=48, encoder_attention_heads=4, decoder_attention_heads=4,
                   max_position_embeddings=128, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                   decoder_start_token_id=2, forced_eos_token_id=2)  # fmt: skip
    vision = {"embed_dim": [16, 32], "num_heads": [2, 4], "num_groups": [2, 4], "depths": [1, 1],
              "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True],
              "window_size": 4, "projection_dim": 32}  # fmt: skip
    config = _config("Florence2Config", vision_config=vision, text_config=text, image_token_id=IMAGE)
    given = question(65) | {"pixel_values": pixels(2), "decoder_input_ids": torch.tensor([[2, 9, 10]] * 2)}
    return asked(build("Florence2ForConditionalGeneration", config), given, 65, None)


def plain() -> ImageQuestion:
    torch.manual_seed(0)
    model = PlainVLM(size=64, patch=16, width=32, depth=2, heads=4, words=60, length=16, text_depth=2)
    ids = question(16, image=1)["input_ids"]
    return asked(add_noise(model).eval(), {"input_ids": ids, "pixel_values": pixels(2)}, 16, (4, 4))


CASES: dict[str, Callable[[], ImageQuestion]] = {
    "plain": plain, "llava": llava, "llava_next": llava_next, "pali_gemma": pali_gemma, "gemma3": gemma3,
    "idefics3": idefics3, "smolvlm": partial(idefics3, "SmolVLM"), "intern_vl": intern_vl, "qwen2_vl": qwen,
    "qwen2_5_vl": partial(qwen, "Qwen2_5_VL"), "blip2": blip2, "instruct_blip": instruct_blip, "kosmos2": kosmos2,
    "vilt": vilt, "florence2": florence2,
}  # fmt: skip

#: Names of the layers that add what attention found to the stream of an image encoder.
_ADDED = re.compile(r"((vision|visual).*(out_proj|projection_layer|attn\.proj)|^blocks\.\d\.proj)\.(weight|bias)$")


def without_mixing(model: nn.Module) -> nn.Module:
    """The same model, in whose image encoder attention adds nothing: an image token depends on its patches alone."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if _ADDED.search(name):
                parameter.zero_()
    return made


def positions_of_patch(case: ImageQuestion, change: Callable[[Tensor], Tensor], place: str, argument: Any) -> list[int]:
    """Positions of the stream of the first example that a change of the image moves, in a model without mixing."""
    model, seen = without_mixing(case.model), []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(kwargs[argument] if isinstance(argument, str) else args[argument])

    handle = model.get_submodule(place).register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        for pixel_values in (case.inputs["pixel_values"], change(case.inputs["pixel_values"])):
            torch.manual_seed(0)
            model(**case.inputs | {"pixel_values": pixel_values})
    handle.remove()
    moved = (seen[0][0] - seen[1][0]).abs().amax(-1)
    return (moved > 1e-5 * seen[0].abs().max()).nonzero()[:, 0].tolist()


def reading_only(model: nn.Module, stream: str, positions: Sequence[int]) -> nn.Module:
    """The same model, whose decoder sees zeros at all positions but some: what it says depends on these alone."""
    made = copy.deepcopy(model)
    decoder = made.get_submodule(stream)
    owner = made if isinstance(decoder, PlainBlock) else decoder
    layers = next(m for m in owner.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
    kept = torch.tensor(list(positions))

    def mask(x: Tensor) -> Tensor:
        return x * torch.zeros(x.shape[1], 1, dtype=x.dtype).index_fill_(0, kept, 1.0)

    def hide(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (mask(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": mask(kwargs["hidden_states"])}

    for layer in layers:
        # The stream enters the first block of a plain model itself, where it must stay as it is.
        seen = layer.norm1 if isinstance(layer, PlainBlock) else layer
        seen.register_forward_pre_hook(hide, with_kwargs=True)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()  # so that zeros stay zeros
    return made


def stream_of(case: ImageQuestion) -> MergedStream:
    return find_merged_stream(case.model, to_model_inputs(case.inputs, describe(case.model), None, "input_ids", None))


def changed_cell(case: ImageQuestion) -> tuple[tuple[int, int], Callable[[Tensor], Tensor]]:
    """A cell of the grid of the first image, and a change of the pixels that its image token alone stands for."""
    assert case.grid is not None
    rows, columns = case.grid
    if case.inputs["pixel_values"].dim() == 2:  # four flattened patches make a token

        def change(pixels: Tensor) -> Tensor:
            new = pixels.clone()
            new[4 * (rows - 1) * columns : 4 * (rows - 1) * columns + 4] += 1
            return new

        return (rows - 1, 0), change

    def brighter(pixels: Tensor) -> Tensor:
        new = pixels.clone()
        if case.tile is not None:
            size = pixels.shape[-1] // (columns // 2)
            new[0, case.tile, :, -size:, -size:] += 1
            return new
        height, width = pixels.shape[-2] // rows, pixels.shape[-1] // columns
        new[0, :, -height:, :width] += 1
        return new

    return (rows - 1, columns - 1 if case.tile is not None else 0), brighter


def plant_patch_and_word(subject: Subject, methods: Sequence[str]) -> None:
    """The decoder reads one image token and one word; these, and the position that is read, are all that is relevant.

    Which image token stands for a patch is found by changing the patch in a model whose image encoder mixes nothing.
    """
    case = subject
    assert isinstance(case, ImageQuestion)
    stream, (cell, change) = stream_of(case), changed_cell(case)
    seen = positions_of_patch(case, change, stream.place.name, stream.place.argument)
    assert len(seen) == 1, "the change must be one of a single token"
    words = stream.words[0].nonzero()[:, 0].tolist()
    planted, last = len(words) - 4, range(len(words))[case.reader]
    model = reading_only(case.model, stream.place.name, [seen[0], words[planted], words[last]])
    found = vitrail.explain(model, case.inputs, methods=list(methods), target=case.target, **case.options)
    for method, e in found.items():
        grid = e.grid[0, 0].abs()
        assert tuple(grid.shape) == case.grid, method
        assert divmod(int(grid.argmax()), grid.shape[1]) == cell, method
        assert float(grid.sum() - grid.max()) <= 1e-4 * float(grid.max()), method
        assert e.text is not None
        scores = e.text[0].scores[0].abs()  # without the two words around the image, which are special
        others = [i for i in range(WORDS) if i not in (planted - 2, last - 2)]
        assert float(scores[planted - 2]) > 0, method
        assert float(scores[others].max()) <= 1e-4 * float(scores[planted - 2]), method
        assert e.images is not None
        assert e.images.shape[-2:] == e.maps.shape[-2:], method


def gradient_at_pixels(subject: Subject, methods: Sequence[str]) -> None:
    """Where image tokens have no place, the map is that of the pixels, beside the words of the stream."""
    case = subject
    assert list(methods) == ["gradient_x_input"]
    e = vitrail.explain(case.model, case.inputs, "gradient_x_input", target=case.target, **case.options)
    pixels = case.inputs["pixel_values"].clone().requires_grad_()
    logits = case.model(**case.inputs | {"pixel_values": pixels}).logits
    gradient = torch.autograd.grad(log_odds(logits[:, -1], LABEL).sum(), pixels)[0]
    expected = (gradient * pixels).sum(1).detach()
    assert torch.allclose(e.grid[:, 0].flatten(1), expected.flatten(1), atol=1e-5 * float(expected.abs().max()))
    assert e.text is not None
    assert e.text[0].words == tuple(f"w{i}" for i in case.inputs["input_ids"][0, -WORDS:].tolist())


def plant_patch_of_queries(subject: Subject, methods: Sequence[str]) -> None:
    """The queries of a query transformer see one patch alone: it is all that is relevant of the image."""
    case, patch, (rows, columns) = subject, 9, (4, 4)
    model = copy.deepcopy(case.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("vision_model.encoder") and name.endswith("projection.weight"):
                parameter.mul_(1e-5)  # patches are hardly mixed before
            elif name.endswith("bias"):
                parameter.zero_()  # so that zeros stay zeros

    def hide(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen = kwargs["encoder_hidden_states"]
        only = torch.zeros(seen.shape[1], 1).index_fill_(0, torch.tensor([1 + patch]), 1.0)  # after the class token
        return args, {**kwargs, "encoder_hidden_states": seen * only}

    model.get_submodule("qformer").register_forward_pre_hook(hide, with_kwargs=True)
    found = vitrail.explain(model, case.inputs, methods=list(methods), target=case.target, **case.options)
    for method, e in found.items():
        cells = torch.nn.functional.adaptive_avg_pool2d(e.grid[:, 0].abs(), (rows, columns)).flatten(1)
        assert (cells[:, patch] > 0).all(), method
        # The rule of cross-attention scales what patches have of others to sum one, however little it is.
        others = 1.0 if method == "transformer_mm" else 1e-3
        assert float(cells.sum() - cells[:, patch].sum()) <= others * float(cells[:, patch].sum()), method
        assert e.text is not None
        assert e.text[0].words == tuple(f"w{i}" for i in case.inputs["input_ids"][0, -WORDS:].tolist())


STREAM_TESTS = {
    "plant_patch_and_word": plant_patch_and_word, "gradient_at_pixels": gradient_at_pixels,
    "plant_patch_of_queries": plant_patch_of_queries,
}  # fmt: skip
METHODS = ("transformer_mm", "attnlrp", "gradient_x_input")
_NAMES = {
    "plain": "own:PlainVLM", "llava": "hf:LlavaForConditionalGeneration", "vilt": "hf:ViltForQuestionAnswering, answer",
    "llava_next": "hf:LlavaNextForConditionalGeneration", "pali_gemma": "hf:PaliGemmaForConditionalGeneration",
    "gemma3": "hf:Gemma3ForConditionalGeneration", "idefics3": "hf:Idefics3ForConditionalGeneration",
    "smolvlm": "hf:SmolVLMForConditionalGeneration", "intern_vl": "hf:InternVLForConditionalGeneration",
    "qwen2_vl": "hf:Qwen2VLForConditionalGeneration, answer", "qwen2_5_vl": "hf:Qwen2_5_VLForConditionalGeneration",
    "blip2": "hf:Blip2ForConditionalGeneration, answer", "kosmos2": "hf:Kosmos2ForConditionalGeneration",
    "instruct_blip": "hf:InstructBlipForConditionalGeneration", "florence2": "hf:Florence2ForConditionalGeneration",
}  # fmt: skip
QUERIED = ("blip2", "instruct_blip")
RESAMPLED = ("kosmos2", "florence2")
ENTRIES = [
    Entry(_NAMES[name], make, ("plant_patch_and_word",), METHODS, slow=name not in ("plain", "llava", "llava_next"),
          target="answer about an image")
    for name, make in CASES.items() if name not in (*QUERIED, *RESAMPLED)
] + [
    Entry(_NAMES[name], CASES[name], ("gradient_at_pixels",), ("gradient_x_input",), slow=name != "blip2",
          target="answer about an image")
    for name in QUERIED
] + [
    Entry(f"{_NAMES[name]}, image", CASES[name], ("plant_patch_of_queries",), METHODS, slow=name != "blip2",
          target="answer about an image")
    for name in QUERIED
] + [
    Entry(_NAMES[name], CASES[name], ("gradient_at_pixels",), ("gradient_x_input",),
          {"transformer_mm": "no place on the image"}, target="answer about an image")
    for name in RESAMPLED
]  # fmt: skip
