"""Add the texts of targets to the call of a model of images and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.data.captions import CaptionTokenizer
from vitrail.data.recall import recall_tokenizer
from vitrail.errors import InputError, TargetError
from vitrail.inputs.input_description import describe_inputs
from vitrail.models.loaded import LoadedModel
from vitrail.models.plain_clip import PlainCLIP
from vitrail.models.plain_decoder import PlainDecoder
from vitrail.targets.output_reader import TextColumns

IDS = "input_ids"
#: Model types whose texts are padded to the full length.
_FULL_LENGTH = ("siglip", "owl")


class SharedTexts(nn.Module):
    """A detector that reads the same texts for every image, given once."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = getattr(model, "config", None)

    def forward(self, pixel_values: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        """The model's output with the texts repeated for each image."""
        count = len(pixel_values)
        mask = None if attention_mask is None else attention_mask.repeat(count, 1)
        return self.model(pixel_values=pixel_values, input_ids=input_ids.repeat(count, 1), attention_mask=mask)


_shared: WeakKeyDictionary[nn.Module, SharedTexts] = WeakKeyDictionary()


def add_texts(
    loaded: LoadedModel, model_inputs: ModelInputs, texts: Sequence[str], processor: Any
) -> tuple[LoadedModel, ModelInputs, TextColumns]:
    """Add texts to the inputs of a call.

    Args:
        loaded: The model.
        model_inputs: The images.
        texts: The texts.
        processor: Processor or tokenizer, by object or by name; None to load that of a model that was loaded by name.

    Returns:
        The model that is called, its inputs, and where the output has the scores of each text.

    Raises:
        TargetError: The model reads no texts, or the call has texts already.
        InputError: The processor is missing.
    """
    module = loaded.module
    if hasattr(module, "encode_text"):
        return loaded, model_inputs, _embedded(loaded, texts, find_tokenizer(loaded, processor))
    takes = _parameters(module)
    if not reads_texts(module):
        raise TargetError(
            f"{loaded.name or type(module).__name__} reads no texts: a prompt is a target of models of images and "
            "texts, such as CLIP, SigLIP or OWL-ViT; name a class instead"
        )
    if model_inputs.called(IDS) is not None:
        raise TargetError(
            "the inputs have texts already (input_ids), and the target has others: choose one of them by its number, "
            "as in prompt(0), or leave the texts out of the inputs"
        )
    tokenizer = find_tokenizer(loaded, processor)
    device = model_inputs.tensors[0].device
    named = _named_images(model_inputs)
    kind = str(getattr(getattr(module, "config", None), "model_type", ""))
    if "grounding" in kind:
        tokens, columns = _joined(tokenizer, texts, device)
        own = {name: value.expand(model_inputs.batch, -1) for name, value in tokens.items() if name in takes}
        return loaded, _described(module, model_inputs, named | own, {}), TextColumns(columns)
    tokens = {name: value for name, value in tokenize(tokenizer, texts, module, device).items() if name in takes}
    columns = {text: (i,) for i, text in enumerate(texts)}
    extra = {"use_itm_head": False} if "use_itm_head" in takes else {}
    if kind in ("owlvit", "owlv2") and hasattr(module, "class_head"):
        module = _shared.setdefault(module, SharedTexts(module))
        loaded = replace(loaded, module=module)
    shared = dict.fromkeys(tokens, "shared")
    return loaded, _described(module, model_inputs, named | tokens | extra, shared), TextColumns(columns)


def reads_texts(module: nn.Module) -> bool:
    """Whether a model takes images and texts."""
    takes = set(_parameters(module))
    return hasattr(module, "encode_text") or (IDS in takes and bool({"pixel_values", "image", "images"} & takes))


def find_tokenizer(loaded: LoadedModel, processor: Any) -> Any:
    """The tokenizer of a processor, of a name, or of the checkpoint that a model was loaded from.

    Raises:
        InputError: There is none, or it cannot be loaded.
    """
    module = loaded.module
    if processor is None and isinstance(module, PlainCLIP):
        return CaptionTokenizer()
    if processor is None and isinstance(module, PlainDecoder):
        return recall_tokenizer()
    source, _, name = loaded.name.partition(":")
    if processor is None and source in ("hf", "open_clip") and name:
        processor = name
    processor = processor or getattr(module, "name_or_path", None) or None
    if processor is None:
        raise InputError(
            f"the tokenizer of {loaded.name or type(module).__name__} is unknown, so that the text cannot be read: "
            "pass processor= to the target, the Hugging Face processor or the open_clip tokenizer, or its name"
        )
    if not isinstance(processor, str):
        found = getattr(processor, "tokenizer", processor)
        if not callable(found):
            raise InputError(f"processor= is a {type(processor).__name__}, which has no tokenizer")
        return found
    try:
        if hasattr(module, "encode_text") and find_spec("open_clip") is not None:
            import open_clip  # type: ignore[import-untyped,unused-ignore]

            return open_clip.get_tokenizer(processor.partition("/")[0])
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(processor)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the tokenizer {processor!r} cannot be loaded ({reason}): pass processor= to the target, as an object"
        ) from error


def tokenize(tokenizer: Any, texts: Sequence[str], module: nn.Module, device: torch.device) -> dict[str, Tensor]:
    """Tokens of texts as the model takes them: input_ids, and the mask where the model was trained with one."""
    config = getattr(module, "config", None)
    kind = str(getattr(config, "model_type", ""))
    length = getattr(getattr(config, "text_config", config), "max_position_embeddings", None)
    if not hasattr(tokenizer, "get_vocab"):
        found = tokenizer(list(texts))
        return {IDS: found.to(device)} if isinstance(found, Tensor) else _tensors(found, device)
    full = any(name in kind for name in _FULL_LENGTH)
    encoded = tokenizer(
        list(texts), padding="max_length" if full else True, truncation=True, max_length=length, return_tensors="pt"
    )
    found = _tensors(encoded, device)
    if "siglip" in kind:
        found.pop("attention_mask", None)
    return found


def _tensors(encoded: Mapping[str, Any], device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in encoded.items() if isinstance(value, Tensor)}


def _joined(tokenizer: Any, texts: Sequence[str], device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All texts as one caption, each followed by a full stop, and the tokens of each."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError("the tokens of each label are found by a fast tokenizer: pass the processor of the model")
    caption = " ".join(f"{text.strip().rstrip('.')} ." for text in texts)
    encoded = tokenizer(caption, return_tensors="pt", return_offsets_mapping=True)
    offsets = encoded.pop("offset_mapping")[0].tolist()
    columns, start = {}, 0
    for text in texts:
        words = text.strip().rstrip(".")
        end = start + len(words)
        columns[text] = tuple(i for i, (a, b) in enumerate(offsets) if a < b and a >= start and b <= end)
        start = end + 3
        if not columns[text]:
            raise TargetError(f"the tokenizer found no token in the label {text!r}")
    return _tensors(encoded, device), columns


def _embedded(loaded: LoadedModel, texts: Sequence[str], tokenizer: Any) -> TextColumns:
    """Embeddings of texts by an open_clip model, with its scale and bias."""
    module: Any = loaded.module
    device = next(module.parameters()).device
    with frozen(module), torch.no_grad():
        embeddings = F.normalize(module.encode_text(tokenize(tokenizer, texts, module, device)[IDS]), dim=-1)
    scale, bias = getattr(module, "logit_scale", None), getattr(module, "logit_bias", None)
    columns = {text: (i,) for i, text in enumerate(texts)}
    return TextColumns(
        columns, embeddings, 1.0 if scale is None else float(scale.detach().double().exp()),
        0.0 if bias is None else float(bias.detach()),
    )  # fmt: skip


def _named_images(model_inputs: ModelInputs) -> dict[str, Any]:
    """The inputs by name; images that were passed by position are pixel_values."""
    if not model_inputs.args:
        return dict(model_inputs.kwargs)
    if len(model_inputs.args) > 1 or model_inputs.kwargs:
        raise TargetError("texts are added to images that are passed alone, or to a dict of tensors by name")
    return {"pixel_values": model_inputs.args[0]}


def _described(
    module: nn.Module, model_inputs: ModelInputs, named: dict[str, Any], roles: Mapping[str, str]
) -> ModelInputs:
    """Inputs with the texts, their tensors described."""
    order = {name: i for i, name in enumerate(_parameters(module))}
    kwargs = {name: named[name] for name in sorted(named, key=lambda name: order.get(name, len(order)))}
    new = ModelInputs((), kwargs, reading=model_inputs.reading)
    images = next((name for name in ("pixel_values", "image", "images") if name in kwargs), None)
    return describe_inputs(module, new, roles, images)


def _parameters(module: nn.Module) -> tuple[str, ...]:
    try:
        return tuple(signature(module.forward).parameters)
    except (TypeError, ValueError):
        return ()
