"""A model together with what it needs to look at a picture and to speak of classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vitrail.models.classes import classes_of
from vitrail.models.preprocess import CLIP_MEAN, CLIP_STD, HALF, Preprocess

if TYPE_CHECKING:
    from PIL.Image import Image

Prepare = Callable[["Image"], Tensor]


@dataclass(frozen=True)
class LoadedModel:
    """A model and its luggage.

    Attributes:
        module: The model itself, untouched.
        preprocess: From a PIL image to a tensor, or None if unknown.
        classes: Class names in order, or None if unknown.
        name: What to call it in titles and manifests.
    """

    module: nn.Module
    preprocess: Prepare | None = None
    classes: tuple[str, ...] | None = None
    name: str = ""


def describe(model: nn.Module | LoadedModel, name: str | None = None) -> LoadedModel:
    """Find the preprocessing and the class names of a model object."""
    if isinstance(model, LoadedModel):
        return model
    return LoadedModel(model, preprocess_of(model), classes_of(model, class_count(model)), name or type(model).__name__)


def class_count(model: nn.Module) -> int | None:
    """Number of outputs, where the library says it."""
    for holder in (model, getattr(model, "config", None)):
        for attribute in ("num_classes", "num_labels"):
            count = getattr(holder, attribute, None)
            if isinstance(count, int) and count > 0:
                return count
    head = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return int(head[-1].out_features) if type(model).__module__.startswith("torchvision.") and head else None


def preprocess_of(model: nn.Module) -> Preprocess | None:
    """How a model wants its images, as its library states it; None for a model of unknown make."""
    library = type(model).__module__.split(".")[0]
    if library == "timm":
        return _timm(model)
    if library == "open_clip" or isinstance(getattr(getattr(model, "visual", None), "preprocess_cfg", None), dict):
        return _open_clip(model)
    if library == "transformers":
        return _hugging_face(model)
    if library == "torchvision":
        side = getattr(model, "image_size", 224)
        return Preprocess((side, side), crop=0.875, resample="bilinear", origin="torchvision's default for ImageNet")
    return None


def _timm(model: nn.Module) -> Preprocess:
    config: dict[str, Any] = dict(getattr(model, "pretrained_cfg", None) or {})
    embed = getattr(model, "patch_embed", None)
    size: Any = getattr(embed, "img_size", None) or tuple(config.get("input_size", (3, 224, 224)))[-2:]
    return Preprocess(
        (int(size[0]), int(size[1])), tuple(config.get("mean", HALF)), tuple(config.get("std", HALF)),
        float(config.get("crop_pct") or 0.875), config.get("crop_mode") == "squash",
        str(config.get("interpolation") or "bicubic"), "timm's configuration of the model",
    )  # fmt: skip


def _open_clip(model: nn.Module) -> Preprocess:
    visual: Any = getattr(model, "visual", model)
    config = dict(getattr(visual, "preprocess_cfg", None) or {})
    size: Any = config.get("size") or getattr(visual, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    return Preprocess(
        (height, width), tuple(config.get("mean", CLIP_MEAN)), tuple(config.get("std", CLIP_STD)), 1.0,
        config.get("resize_mode") == "squash", "bicubic", "open_clip's configuration of the model",
    )  # fmt: skip


def _hugging_face(model: nn.Module) -> Preprocess | None:
    config: Any = getattr(model, "config", None)
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None)
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    kind = str(getattr(vision, "model_type", ""))
    if "clip" in kind:
        return Preprocess((height, width), CLIP_MEAN, CLIP_STD, 1.0, origin="the usual values for CLIP")
    if kind in ("vit", "siglip", "siglip_vision_model", "beit", "vit_mae"):
        return Preprocess((height, width), HALF, HALF, 1.0, True, "bilinear", f"usual for {kind}")
    return Preprocess((height, width), crop=0.875, origin=f"ImageNet's mean and deviation, usual for {kind or 'ViTs'}")
