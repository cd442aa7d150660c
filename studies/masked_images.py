"""Shared by benchmarks on images with masks: models with weights files, images and masks in the model's pixels."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from study import manifest, options, read_json, save_json
from torch import Tensor
from value_tables import Values, save_values, values_path

import vitrail
from vitrail.data import Dataset, open_dataset
from vitrail.errors import MapWarning
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess

TINY = ("vit_tiny_patch16_224", "deit_tiny_patch16_224")


class MaskedBatch(NamedTuple):
    """Images with masks: ids, model inputs, masks (0 background, 255 ignore) and labels (−1 where unknown)."""

    ids: list[str]
    images: Tensor
    masks: Tensor
    labels: list[int]


def masked_options(description: str | None, count: int) -> argparse.ArgumentParser:
    """Parser with the options that choose models, images and device; models are given as MODEL or MODEL=WEIGHTS."""
    parser = options(description, models=None, assets=None, batch=16)
    parser.add_argument("--data", default="masks", help="masks (a folder) or imagenet-segmentation (an h5 file)")
    parser.add_argument("--root", type=Path, default=None, help="folder or file of the data set")
    parser.add_argument("--count", type=int, default=count, help="number of images, evenly spread; 0 for all")
    return parser


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


def model_values_path(result: Path, model: str) -> Path:
    """File of the values of each image of a model, named without the library: NAME-MODEL.parquet."""
    return values_path(result, model.rpartition(":")[2].replace("/", "-"))


def joined_result(before: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """A result with the rows of other methods that an earlier one of the same model has.

    Tables are dicts of rows by method, or lists of rows with the method as ``spec``.
    """
    joined: dict[str, Any] = {}
    for name, own in result.items():
        if isinstance(own, dict):
            joined[name] = {**before.get(name, {}), **own}
        elif isinstance(own, list):
            joined[name] = list({row["spec"]: row for row in (*before.get(name, []), *own)}.values())
    return {**before, **result, **joined}


def measure_models(
    args: argparse.Namespace, measure: Callable[[LoadedModel, Dataset], tuple[dict[str, Any], Values]],
    show: Callable[[dict[str, Any]], None], **about: Any,
) -> None:  # fmt: skip
    """Measure each model, print its table, and write results, values of each image and manifest.

    Rows of other models and methods that the file has stay, and their values as well.
    """
    warnings.simplefilter("ignore", MapWarning)
    data = open_dataset(args.data, args.root)
    results = {row["model"]: row for row in read_json(args.out, {"results": []})["results"]}
    found = manifest(args.device, data=f"{args.data}: {args.root.name}", images=args.count or "all",
                     preprocessing="resized to the model's input size without cropping, bilinear", **about)  # fmt: skip
    for given in args.models:
        loaded, weights = open_model(given, args.device)
        result, values = measure(loaded, data)
        result = {"model": loaded.name, "weights": weights, **result}
        results[loaded.name] = joined_result(results.get(loaded.name, {}), result)
        show(results[loaded.name])
        save_json(args.out, {"manifest": found, "results": list(results.values())})
        if args.out is not None:
            save_values(model_values_path(args.out, loaded.name), values)
