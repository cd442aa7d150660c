"""The three models and halves of images that studies of the grid pointing game and of leadlight share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from study import SINGLE_PASS_METHODS
from torch import Tensor

import vitrail
from vitrail.errors import NotApplicableError
from vitrail.methods.postprocess import upsample
from vitrail.models.preprocess import Preprocess
from vitrail.scores import fold_of

MODELS = {
    "vit-t": "vit_tiny_patch16_224", "deit-t": "deit_tiny_patch16_224", "dinov2-s": "vit_small_patch14_dinov2",
}  # fmt: skip
CHOSEN, OBJECT = "leadlight", "leadlight:object"
METHODS = (
    *SINGLE_PASS_METHODS, OBJECT, "leadlight:fast", "vtranm:af+l", "gradtoken:cosine", "gradtoken:3",
    "random", "centre",
)  # fmt: skip
BATCH = 20
#: By score, one value per image for each method.
Values = dict[str, dict[str, list[float]]]


def load(name: str, args: argparse.Namespace) -> tuple[Any, Preprocess]:
    """A model with its weights on the device, and a preprocessing that squashes."""
    loaded = vitrail.load(f"timm:{MODELS[name]}", args.assets / "weights" / f"{MODELS[name]}.safetensors")
    loaded.module.to(args.device).eval()
    assert isinstance(loaded.preprocess, Preprocess)
    squashed = replace(loaded.preprocess, squash=True)
    return replace(loaded, preprocess=squashed), squashed


def half_of(data: Any, half: int, count: int) -> list[int]:
    """Indices of one half of the images, by a hash of their ids, spread over all of them."""
    own = [i for i in range(len(data)) if fold_of(data.ids[i]) == half]
    return own[:: max(1, len(own) // max(1, count))][:count]


def batches(items: Any, size: int = BATCH) -> Iterator[Any]:
    """Parts of a sequence."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def timely(args: argparse.Namespace, items: Any, size: int = BATCH) -> Iterator[Any]:
    """Parts of a sequence until the time limit is over."""
    for part in batches(items, size):
        if args.clock.is_over("the next part"):
            return
        yield part


def add(values: Values, method: str, found: dict[str, Tensor], only: tuple[str, ...] = ()) -> None:
    """Append the values of a batch."""
    for score, own in found.items():
        if score != "flat" and (not only or score in only):
            values.setdefault(score, {}).setdefault(method, []).extend(own.double().cpu().tolist())


def explain(loaded: Any, images: Tensor, methods: Sequence[str], target: Any, **given: Any) -> dict[str, Any]:
    """Explanations of all methods in one call; of those that apply where some do not."""
    try:
        return dict(vitrail.explain(loaded, images, methods=methods, target=target, **given))
    except NotApplicableError:
        if len(methods) == 1:
            return {}
    alone = [explain(loaded, images, [method], target, **given) for method in methods]
    return {name: e for found in alone for name, e in found.items()}


def raw_maps(explanation: Any) -> Tensor:
    """The relevance before scaling, at the size of the image."""
    return upsample(explanation.grid.float(), tuple(explanation.maps.shape[-2:]))


def predictor(module: torch.nn.Module, batch: int = 512) -> Any:
    """Class probabilities of images, in parts."""

    def predict(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.cat([module(part).float().softmax(-1) for part in batches(images, batch)])

    return predict
