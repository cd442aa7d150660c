"""Model sources: create models of timm, Hugging Face, torchvision and open_clip by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import ModelError, require
from vitrail.models.checkpoint import strip_prefixes
from vitrail.models.loaded import LoadedModel

TESTED_MODELS = {
    "timm": (
        "vit_tiny_patch16_224", "vit_base_patch16_224", "deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224",
        "deit3_small_patch16_224", "beit_base_patch16_224", "eva02_tiny_patch14_224", "vit_small_patch14_reg4_dinov2",
        "vit_base_patch16_siglip_224",
    ),
    "hf": (
        "google/vit-base-patch16-224", "facebook/deit-tiny-patch16-224",
        "facebook/dinov2-with-registers-small-imagenet1k-1-layer", "openai/clip-vit-base-patch32",
    ),
    "torchvision": ("vit_b_16",),
    "open_clip": ("ViT-B-32",),
}  # fmt: skip
"""Names that the tests cover, for each source. Any other name of the library is accepted as well."""

SOURCE_PACKAGES = {
    "timm": ("timm", "timm"), "hf": ("transformers", "hf"), "torchvision": ("torchvision", "timm"),
    "open_clip": ("open_clip", "clip"),
}  # fmt: skip
"""Module of each source, and the extra of this package that installs it."""


def matching_names(source: str, text: str) -> tuple[str, ...]:
    """Model names of a source that contain a text; for ``hf``, which cannot be listed offline, the tested names."""
    if source == "hf":
        return tuple(n for n in TESTED_MODELS["hf"] if text in n)
    module_name = "torchvision.models" if source == "torchvision" else source
    module: Any = require(module_name, SOURCE_PACKAGES[source][1], "list models")
    return tuple(n for n in module.list_models() if text.lower() in n.lower())


def from_timm(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """Create a timm model; the options are those of ``timm.create_model``, such as ``num_classes``."""
    timm: Any = require("timm", "timm", "create timm models")
    base = name.partition(".")[0]
    _check_name("timm", base, timm.list_models())
    return timm.create_model(name, pretrained=pretrained, **options)  # type: ignore[no-any-return]


def fitting_image_size(module: nn.Module, weights: Mapping[str, Tensor]) -> int | None:
    """Image size at which a timm model has the position embedding of some weights, or None where it has it already."""
    state = module.state_dict()
    before, after = state.get("pos_embed"), strip_prefixes(weights, set(state)).get("pos_embed")
    patch_embed = getattr(module, "patch_embed", None)
    grid, patch = getattr(patch_embed, "grid_size", None), getattr(patch_embed, "patch_size", None)
    if not grid or not patch or before is None or after is None or not before.dim() == after.dim() == 3:
        return None
    prefix = before.shape[1] - grid[0] * grid[1]
    side = isqrt(max(0, after.shape[1] - prefix))
    if before.shape[1] == after.shape[1] or side * side + prefix != after.shape[1]:
        return None
    return side * int(patch[0])


def from_hf(name: str, pretrained: bool) -> nn.Module:
    """Create a Hugging Face model with the architecture that its configuration names."""
    transformers: Any = require("transformers", "hf", "create Hugging Face models")
    config = transformers.AutoConfig.from_pretrained(name)
    architectures = getattr(config, "architectures", None) or [_unnamed_architecture(transformers, config)]
    factory = getattr(transformers, architectures[0], transformers.AutoModel)
    return factory.from_pretrained(name) if pretrained else factory(config)  # type: ignore[no-any-return]


def _unnamed_architecture(transformers: Any, config: Any) -> str:
    """The class of a model whose configuration names none: that of a decoder with its head, else without a head."""
    decoders, masked = transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.MODEL_FOR_MASKED_LM_MAPPING
    if type(config) in decoders and type(config) not in masked:
        return str(decoders[type(config)].__name__)
    return "AutoModel"


def from_torchvision(name: str, pretrained: bool) -> nn.Module:
    """Create a torchvision model."""
    models: Any = require("torchvision.models", "timm", "create torchvision models")
    _check_name("torchvision", name, models.list_models())
    return models.get_model(name, weights="DEFAULT" if pretrained else None)  # type: ignore[no-any-return]


def from_open_clip(name: str, pretrained: bool) -> nn.Module:
    """Create an open_clip model; ``NAME/TAG`` selects the weights."""
    open_clip: Any = require("open_clip", "clip", "create open_clip models")
    architecture, _, tag = name.partition("/")
    _check_name("open_clip", architecture, open_clip.list_models())
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    weights = (tag or next(iter(tags), None)) if pretrained else None
    return open_clip.create_model(architecture, pretrained=weights)  # type: ignore[no-any-return]


def _check_name(source: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        similar = get_close_matches(name, known, n=3)
        hint = f"did you mean {', '.join(similar)}?" if similar else f"list the names with `vitrail models {name[:3]}`"
        raise ModelError(f"{source} has no model {name!r}: {hint}")


SOURCES: dict[str, Callable[[str, bool], nn.Module]] = {
    "timm": from_timm,
    "hf": from_hf,
    "torchvision": from_torchvision,
    "open_clip": from_open_clip,
}
"""Function that creates a model from its name and whether to download weights, for each source."""


def embed_texts(loaded: LoadedModel, texts: Sequence[str]) -> Tensor:
    """Embed texts with the text encoder of an open_clip model, shape (K, d).

    Args:
        loaded: An open_clip model that was loaded by name, which determines its tokenizer.
        texts: The texts.

    Raises:
        ModelError: The model is not an open_clip model loaded by name.
    """
    open_clip: Any = require("open_clip", "clip", "tokenize texts for CLIP models")
    encode: Any = getattr(loaded.module, "encode_text", None)
    source, _, name = loaded.name.partition(":")
    if encode is None or source != "open_clip":
        raise ModelError(
            f"{loaded.name} is not an open_clip model loaded by name, so its text encoder is unknown: embed the texts "
            "yourself and pass target=vitrail.similarity(embeddings)"
        )
    tokens = open_clip.get_tokenizer(name.partition("/")[0])(list(texts))
    device = next(loaded.module.parameters()).device
    with torch.no_grad():
        return encode(tokens.to(device))  # type: ignore[no-any-return]
