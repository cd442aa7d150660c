"""LoadedModel: a model with its preprocessing and class names, and how both are found for a model object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from math import floor, nextafter
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vitrail.models.preprocess import CLIP_MEAN, CLIP_STD, HALF, Preprocess

if TYPE_CHECKING:
    from PIL.Image import Image

Transform = Callable[["Image"], Tensor]


@dataclass(frozen=True)
class LoadedModel:
    """A model with its metadata.

    Attributes:
        module: The model, unmodified.
        preprocess: Function from a PIL image to a tensor, or None if unknown.
        classes: Class names by index, or None if unknown.
        name: Name for titles and manifests.
        scores: What turns its class scores into probabilities, where the user states it: "softmax", "sigmoid" (several
            labels an image) or "identity" (a regression); None for what the model states.
    """

    module: nn.Module
    preprocess: Transform | None = None
    classes: tuple[str, ...] | None = None
    name: str = ""
    scores: str | None = None


def describe(model: nn.Module | LoadedModel, name: str | None = None) -> LoadedModel:
    """Find the preprocessing and the class names of a model object.

    Args:
        model: A model; a `LoadedModel` is returned unchanged.
        name: Name of the model; the name of its class by default.
    """
    if isinstance(model, LoadedModel):
        return model
    classes = class_names_of(model, class_count(model))
    return LoadedModel(model, preprocess_of(model), classes, name or type(model).__name__)


def class_count(model: nn.Module) -> int | None:
    """Number of classes, or None if the model does not state it."""
    for holder in (model, getattr(model, "config", None)):
        for attribute in ("num_classes", "num_labels"):
            count = getattr(holder, attribute, None)
            if isinstance(count, int) and count > 0:
                return count
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return int(linears[-1].out_features) if type(model).__module__.startswith("torchvision.") and linears else None


def class_names_of(model: nn.Module, count: int | None) -> tuple[str, ...] | None:
    """Class names of a model: its own ``id2label``, or those of ImageNet if it has 1,000 classes."""
    config: Any = getattr(model, "config", None)
    labels = getattr(config, "id2label", None)
    if isinstance(labels, dict) and labels and (count is None or len(labels) == count):
        names = tuple(str(labels.get(i, labels.get(str(i), i))) for i in range(len(labels)))
        if not all(name.startswith("LABEL_") for name in names):
            return names
    return imagenet_classes() if count == 1000 else None


@lru_cache(maxsize=1)
def imagenet_classes() -> tuple[str, ...] | None:
    """Names of the 1,000 ImageNet classes from timm or torchvision, or None if neither is installed.

    timm's names include synonyms, the most common one first ("tabby, tabby cat").
    """
    if find_spec("timm") is not None:
        from timm.data import ImageNetInfo

        info = ImageNetInfo()
        return tuple(info.index_to_description(i, detailed=False) for i in range(1000))
    if find_spec("torchvision") is not None:
        from torchvision.models import ViT_B_16_Weights

        return tuple(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])
    return None


def preprocess_of(model: nn.Module) -> Preprocess | None:
    """Preprocessing as the model's library states it, or None for a model of no known library."""
    library = type(model).__module__.split(".")[0]
    if library == "timm":
        return _timm_preprocess(model)
    if library == "open_clip" or isinstance(getattr(getattr(model, "visual", None), "preprocess_cfg", None), dict):
        return _open_clip_preprocess(model)
    if library == "transformers":
        return _hugging_face_preprocess(model)
    if library == "torchvision":
        size = getattr(model, "image_size", 224)
        return Preprocess((size, size), crop=0.875, resample="bilinear", origin="torchvision's default for ImageNet")
    return None


def _timm_preprocess(model: nn.Module) -> Preprocess:
    config: dict[str, Any] = dict(getattr(model, "pretrained_cfg", None) or {})
    patch_embed = getattr(model, "patch_embed", None)
    size: Any = getattr(patch_embed, "img_size", None) or tuple(config.get("input_size", (3, 224, 224)))[-2:]
    return Preprocess(
        (int(size[0]), int(size[1])), tuple(config.get("mean", HALF)), tuple(config.get("std", HALF)),
        float(config.get("crop_pct") or 0.875), config.get("crop_mode") == "squash",
        str(config.get("interpolation") or "bicubic"), "timm's configuration of the model",
    )  # fmt: skip


def _open_clip_preprocess(model: nn.Module) -> Preprocess:
    visual: Any = getattr(model, "visual", model)
    config = dict(getattr(visual, "preprocess_cfg", None) or {})
    size: Any = config.get("size") or getattr(visual, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    return Preprocess(
        (height, width), tuple(config.get("mean", CLIP_MEAN)), tuple(config.get("std", CLIP_STD)), 1.0,
        config.get("resize_mode") == "squash", "bicubic", "open_clip's configuration of the model",
    )  # fmt: skip


def _hugging_face_preprocess(model: nn.Module) -> Preprocess | None:
    config: Any = getattr(model, "config", None)
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None)
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    model_type = str(getattr(vision, "model_type", ""))
    if "clip" in model_type:
        preprocess = Preprocess((height, width), CLIP_MEAN, CLIP_STD, 1.0, origin="the usual values for CLIP")
    elif model_type in ("vit", "siglip", "siglip_vision_model", "beit", "vit_mae"):
        preprocess = Preprocess(
            (height, width), HALF, HALF, 1.0, True, "bilinear", f"the usual values for {model_type}"
        )
    else:
        origin = f"ImageNet's mean and standard deviation, the usual values for {model_type or 'ViTs'}"
        preprocess = Preprocess((height, width), crop=0.875, origin=origin)
    return replace(preprocess, guessed=True)


def processor_preprocess(processor: Any) -> Transform:
    """Preprocessing of a Hugging Face image processor: size, crop, interpolation, mean and standard deviation.

    Returns:
        A `Preprocess` with the same values, or, if it cannot express them, a function that calls the processor.
    """
    from PIL.Image import Resampling

    config: dict[str, Any] = processor.to_dict()
    size, crop_size = dict(config.get("size") or {}), dict(config.get("crop_size") or {})
    crops, short = bool(config.get("do_center_crop")), size.get("shortest_edge")
    final = crop_size if crops else size
    height, width = int(final.get("height") or 0), int(final.get("width") or 0)
    plain = config.get("do_resize") and config.get("do_rescale", True)
    plain = plain and abs(float(config.get("rescale_factor") or 1 / 255) * 255 - 1) < 1e-6
    plain = plain and not any(config.get(key) for key in ("do_pad", "do_flip_channel_order", "crop_pct"))
    squash = not crops or size == crop_size
    if not (plain and height and width and (squash or (height == width and short and short >= height))):
        return lambda image: processor(image, return_tensors="pt")["pixel_values"][0]
    crop = 1.0
    if not squash:
        crop = height / int(short)  # type: ignore[arg-type]
        while floor(height / crop) < int(short):  # type: ignore[arg-type]
            crop = nextafter(crop, 0.0)
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if config.get("do_normalize", True):
        mean, std = tuple(config["image_mean"]), tuple(config["image_std"])
    resample = Resampling(int(config.get("resample", Resampling.BILINEAR))).name.lower()
    return Preprocess((height, width), mean, std, crop, squash, resample, "the checkpoint's image processor")


def sound_processor(name: str) -> Any:
    """Load the feature extractor of a Hugging Face checkpoint of a sound model, or None if it cannot be loaded."""
    from transformers import AutoFeatureExtractor

    try:
        return AutoFeatureExtractor.from_pretrained(name)
    except (OSError, ValueError, ImportError, KeyError):
        return None


def hugging_face_processor(name: str) -> Any:
    """Load the image processor of a Hugging Face checkpoint, or None if it has none that can be loaded."""
    from transformers import AutoImageProcessor

    try:
        return AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError):
        return None
