"""Class names, from wherever the installed libraries carry them."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from torch import nn


@lru_cache(maxsize=1)
def imagenet_classes() -> tuple[str, ...] | None:
    """The thousand names of ImageNet-1k, with synonyms where timm is installed, or None without timm or torchvision.

    Names start with the one people use ("tabby, tabby cat").
    """
    if find_spec("timm") is not None:
        from timm.data import ImageNetInfo

        info = ImageNetInfo()
        return tuple(info.index_to_description(i, detailed=False) for i in range(1000))
    if find_spec("torchvision") is not None:
        from torchvision.models import ViT_B_16_Weights

        return tuple(ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"])
    return None


def classes_of(model: nn.Module, count: int | None) -> tuple[str, ...] | None:
    """A model's class names: its own labels if it carries any, ImageNet's if it has a thousand classes.

    Args:
        model: Any model.
        count: Its number of classes, if known.
    """
    config: Any = getattr(model, "config", None)
    labels = getattr(config, "id2label", None)
    if isinstance(labels, dict) and labels and (count is None or len(labels) == count):
        names = tuple(str(labels.get(i, labels.get(str(i), i))) for i in range(len(labels)))
        if not all(name.startswith("LABEL_") for name in names):
            return names
    return imagenet_classes() if count == 1000 else None
