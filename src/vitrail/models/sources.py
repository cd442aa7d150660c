"""Where models come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from torch import nn

from vitrail.errors import ModelError, require

#: Names that are tried in the tests, for each source; any other name of the library may be given as well.
TRIED = {
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

#: The module of each source and the extra that installs it.
EXTRAS = {
    "timm": ("timm", "timm"), "hf": ("transformers", "hf"), "torchvision": ("torchvision", "timm"),
    "open_clip": ("open_clip", "clip"),
}  # fmt: skip


def names(source: str, pattern: str) -> tuple[str, ...]:
    """Names in a source's own list that hold a text; the hub behind ``hf`` cannot be listed offline."""
    if source == "hf":
        return tuple(n for n in TRIED["hf"] if pattern in n)
    module: Any = require("torchvision.models" if source == "torchvision" else source, EXTRAS[source][1], "list models")
    return tuple(n for n in module.list_models() if pattern.lower() in n.lower())


def from_timm(name: str, pretrained: bool) -> nn.Module:
    """A timm model."""
    timm: Any = require("timm", "timm", "make timm models")
    base = name.partition(".")[0]
    _check("timm", base, timm.list_models())
    return timm.create_model(name, pretrained=pretrained)  # type: ignore[no-any-return]


def from_hf(name: str, pretrained: bool) -> nn.Module:
    """A Hugging Face model: an image classifier if the checkpoint is one, else the bare model."""
    transformers: Any = require("transformers", "hf", "make Hugging Face models")
    config = transformers.AutoConfig.from_pretrained(name)
    architectures = getattr(config, "architectures", None) or ["AutoModel"]
    factory = getattr(transformers, architectures[0], transformers.AutoModel)
    return factory.from_pretrained(name) if pretrained else factory(config)  # type: ignore[no-any-return]


def from_torchvision(name: str, pretrained: bool) -> nn.Module:
    """A torchvision model."""
    models: Any = require("torchvision.models", "timm", "make torchvision models")
    _check("torchvision", name, models.list_models())
    return models.get_model(name, weights="DEFAULT" if pretrained else None)  # type: ignore[no-any-return]


def from_open_clip(name: str, pretrained: bool) -> nn.Module:
    """An open_clip model; ``NAME/TAG`` chooses the weights."""
    open_clip: Any = require("open_clip", "clip", "make open_clip models")
    architecture, _, tag = name.partition("/")
    _check("open_clip", architecture, open_clip.list_models())
    tags = open_clip.list_pretrained_tags_by_model(architecture)
    chosen = (tag or next(iter(tags), None)) if pretrained else None
    return open_clip.create_model(architecture, pretrained=chosen)  # type: ignore[no-any-return]


def _check(source: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = get_close_matches(name, known, n=3)
        raise ModelError(f"{source} has no model {name!r}" + (f": did you mean {', '.join(near)}?" if near else ""))


SOURCES: dict[str, Callable[[str, bool], nn.Module]] = {
    "timm": from_timm,
    "hf": from_hf,
    "torchvision": from_torchvision,
    "open_clip": from_open_clip,
}
