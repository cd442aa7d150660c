"""What the four corner patches of an image have of the relevance, and what they change."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from model_halves import CHOSEN, MODELS, predictor
from PIL import Image
from study import manifest, save_json
from torch import Tensor

import vitrail
from vitrail.capture.removal import TokenDropper
from vitrail.models.preprocess import Preprocess


def corner_effects(predict: Any, images: Tensor, module: Any, draws: int = 8) -> dict[str, Tensor]:
    """Loss of the predicted class's probability without the four corner patches, and without four others at random.

    Patches are painted with the mean colour, or their tokens are dropped: a model can store what it knows of the whole
    image in tokens whose pixels do not matter.
    """
    patch = module.patch_embed.patch_size[0]
    rows, columns = (length // patch for length in images.shape[2:])
    corners = torch.tensor([0, columns - 1, (rows - 1) * columns, rows * columns - 1])
    others = torch.tensor(sorted(set(range(rows * columns)) - set(corners.tolist())))
    generator = torch.Generator().manual_seed(0)
    drawn = [others[torch.randperm(len(others), generator=generator)[:4]] for _ in range(draws)]
    drop = TokenDropper(module, images)
    whole = predict(images)
    classes = whole.argmax(1, keepdim=True)

    def painted(kept: Tensor) -> Tensor:
        mask = kept.view(1, 1, rows, columns).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        return predict(images * mask)  # zero is the mean colour

    def dropped(kept: Tensor) -> Tensor:
        with torch.inference_mode():
            return drop(images, kept.nonzero()[:, 0].expand(len(images), -1)).float().softmax(-1)

    def loss(remove: Any, patches: Tensor) -> Tensor:
        kept = torch.ones(rows * columns, device=images.device)
        kept[patches.to(images.device)] = 0.0
        return (whole - remove(kept)).gather(1, classes)[:, 0]

    found = {}
    for name, remove in (("pixels", painted), ("tokens", dropped)):
        found[f"corners, {name}"] = loss(remove, corners)
        found[f"random patches, {name}"] = torch.stack([loss(remove, own) for own in drawn]).mean(0)
    return found


def photo(args: argparse.Namespace) -> None:
    """Measure what the corners of a photograph have of the relevance, and what they change, on one model."""
    (name,) = args.models
    loaded = vitrail.load(f"timm:{MODELS[name]}", args.assets / "weights" / f"{MODELS[name]}.safetensors")
    assert isinstance(loaded.preprocess, Preprocess)
    image = loaded.preprocess(Image.open(args.photo).convert("RGB"))[None]
    predict = predictor(loaded.module.eval())
    effects = corner_effects(predict, image, loaded.module, draws=40)
    relevance = vitrail.explain(loaded, image, CHOSEN).grid[0, 0].double()
    corners = sum(float(relevance[i, j]) for i in (0, -1) for j in (0, -1)) / float(relevance.sum())
    found = {"probability": float(predict(image).max()), "corners": corners}
    losses = {f"loss, {kind}": float(own) for kind, own in effects.items()}
    save_json(args.out, {"manifest": manifest("cpu", photo=args.photo.name, model=name), **found, **losses})
