"""Shared by benchmarks on images with masks: models with weights files, images and masks in the model's pixels."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import device_name
from torch import Tensor

import vitrail
from vitrail.data import Dataset, open_dataset
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.pipeline.provenance import versions

TINY = ("vit_tiny_patch16_224", "deit_tiny_patch16_224")


class MaskedBatch(NamedTuple):
    """Images with masks: ids, model inputs, masks (0 background, 255 ignore) and labels (−1 where unknown)."""

    ids: list[str]
    images: Tensor
    masks: Tensor
    labels: list[int]


def add_arguments(parser: argparse.ArgumentParser, count: int) -> None:
    """Add the options that choose models, images and device."""
    models = "as `vitrail.load` takes them, each with the file of its weights if it has one"
    parser.add_argument("--models", nargs="+", metavar="MODEL[=WEIGHTS]", default=None, help=models)
    parser.add_argument("--data", default="masks", help="masks (a folder) or imagenet-segmentation (an h5 file)")
    parser.add_argument("--root", type=Path, default=None, help="folder or file of the data set")
    assets = "folder with weights/ and pets/: sets --models to two tiny models and --root to pets"
    parser.add_argument("--assets", type=Path, default=None, help=assets)
    parser.add_argument("--count", type=int, default=count, help="number of images, evenly spread; 0 for all")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None, help="JSON file; models it has already are skipped")


def complete_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options, and fill in what --assets stands for."""
    args = parser.parse_args()
    if args.assets is not None:
        args.models = args.models or [f"timm:{n}={args.assets / 'weights' / n}.safetensors" for n in TINY]
        args.root = args.root or args.assets / "pets"
    if not args.models or args.root is None:
        parser.error("pass --models and --root, or --assets")
    return args


def open_model(spec: str, device: str) -> tuple[LoadedModel, str | None]:
    """Load a model given as NAME or NAME=WEIGHTS, with its images resized to its input size without cropping."""
    name, _, weights = spec.partition("=")
    loaded = vitrail.load(name, weights or None)
    loaded.module.to(device)
    assert isinstance(loaded.preprocess, Preprocess)
    squash = replace(loaded.preprocess, squash=True, resample="bilinear")
    return replace(loaded, preprocess=squash), Path(weights).name if weights else None


def choose_indices(dataset: Dataset, count: int) -> list[int]:
    """Indices of some samples, evenly spread over the data set; all of them if ``count`` is 0."""
    total = len(dataset.ids)
    return [i * total // count for i in range(count)] if 0 < count < total else list(range(total))


def read_batches(dataset: Dataset, indices: list[int], preprocess: Preprocess, size: int) -> Iterator[MaskedBatch]:
    """Read images and masks in batches, both resized for the model."""
    for start in range(0, len(indices), size):
        samples = [dataset[i] for i in indices[start : start + size]]
        yield MaskedBatch(
            [s.id for s in samples],
            torch.stack([preprocess(s.image) for s in samples]),
            torch.stack([prepare_mask(s.mask, preprocess) for s in samples]),
            [-1 if s.label is None else s.label for s in samples],
        )


def prepare_mask(mask: Any, preprocess: Preprocess) -> Tensor:
    """Resize a mask as the image is, by nearest neighbour, shape (height, width)."""
    from PIL import Image

    nearest = replace(preprocess, mean=(0.0,), std=(1 / 255,), resample="nearest")
    return nearest(Image.fromarray(mask, "L")).round().to(torch.uint8)[0]


def open_data(args: argparse.Namespace) -> Dataset:
    """Open the data set of the options."""
    return open_dataset(args.data, args.root)


def manifest(args: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """What decides the numbers: data, number of images, device, versions."""
    return {
        "data": f"{args.data}: {args.root.name}", "images": args.count or "all",
        "preprocessing": "resized to the model's input size without cropping, bilinear",
        "device": device_name(args.device), **more, "versions": versions(),
    }  # fmt: skip
