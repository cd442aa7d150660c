"""Perturbation tests of the papers' tables with the models and images at hand, for the pages of docs/papers.

    python benchmarks/paper_tables.py --assets DIR --device cuda --out benchmarks/results/paper-tables.json

DIR has ``weights/vit_tiny_patch16_224.safetensors``, ``imagenet`` (validation images) and
``cifar10/cifar10_jpeg.tar.xz``. Jobs:

    cifar10  Table 1 of VTranM, columns of CIFAR-10, with the embedded model; both targets
    cifar10-distilled  the same with the embedded model that has a distillation token, as DeiT has
    vtranm   Table 4 of VTranM, perturbation half, with ViT-Tiny on ImageNet
    vitcx    Tables 1 and 2 of ViT-CX, deletion and insertion, with ViT-Tiny on ImageNet

Images are spread evenly over the data set. Results are written after every job; a job that is in the file is skipped.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
import vitrail.errors
from vitrail.data import open_dataset
from vitrail.pipeline.provenance import versions
from vitrail.scores import PRESETS, Evaluator, PerturbationRecords, interval

TINY = "timm:vit_tiny_patch16_224"


@dataclass(frozen=True)
class TableJob:
    """What is run for a table.

    Attributes:
        preset: Perturbation preset.
        dataset: Name of the data set.
        root: Its place in the folder of assets.
        methods: Our methods.
        targets: Explained classes.
        images: Number of images.
        embedded: Embedded model that is explained; ViT-Tiny if empty.
    """

    preset: str
    dataset: str
    root: str
    methods: tuple[str, ...]
    targets: tuple[str, ...] = ("predicted",)
    images: int = 1000
    embedded: str = ""


CIFAR_METHODS = (
    "gradcam", "lrp", "conservative_lrp", "transformer_attribution", "raw_attention", "rollout", "attcat",
    "transformer_mm", "vtranm", "random", "centre",
)  # fmt: skip
JOBS = {
    "cifar10": TableJob(
        "vtranm", "cifar10", "cifar10/cifar10_jpeg.tar.xz", CIFAR_METHODS, ("predicted", "label"), 2000, "cifar10",
    ),
    "cifar10-distilled": TableJob(
        "vtranm", "cifar10", "cifar10/cifar10_jpeg.tar.xz", CIFAR_METHODS, ("predicted", "label"), 2000,
        "cifar10-distilled",
    ),
    "vtranm": TableJob(
        "vtranm", "imagenet", "imagenet", ("vtranm:baseline", "vtranm:af", "vtranm:af+l", "vtranm"),
    ),
    "vitcx": TableJob(
        "vitcx", "imagenet", "imagenet",
        ("vit_cx", "rollout", "partial_lrp", "transformer_attribution", "transformer_mm", "tam", "occlusion",
         "rise:masks=1000", "scorecam", "gradcam", "integrated_gradients", "smoothgrad", "vit_cx:1",
         "vit_cx:2,random_masks=1000", "vit_cx:3", "vit_cx:4", "vit_cx:5", "random", "centre"), images=200,
    ),
}  # fmt: skip


def run_job(job: TableJob, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Explain and evaluate the images of a job; rows of means with intervals."""
    if job.embedded:
        loaded = vitrail.load(job.embedded)
    else:
        loaded = vitrail.load(TINY, args.assets / "weights" / "vit_tiny_patch16_224.safetensors")
        loaded = replace(loaded, preprocess=replace(loaded.preprocess, squash=True))
    loaded.module.to(args.device)
    data = open_dataset(job.dataset, args.assets / job.root)
    count = min(args.limit or job.images, len(data))
    indices = np.linspace(0, len(data) - 1, count).round().astype(int)
    preset = PRESETS[job.preset]
    evaluate = Evaluator(loaded, [preset], batch=args.evaluated)
    parts, started = [], time.perf_counter()
    for start in range(0, count, args.batch):
        samples = [data[int(i)] for i in indices[start : start + args.batch]]
        images = torch.stack([loaded.preprocess(s.image) for s in samples]).to(args.device)
        parts.append(evaluate_batch(job, loaded, evaluate, images, samples))
        print(
            f"{job.dataset}: {start + len(samples)} of {count} images, {time.perf_counter() - started:.0f} s",
            flush=True,
        )
    records = PerturbationRecords.join(parts)
    rows = []
    for method in job.methods:
        for target in job.targets:
            for score, values in records.scores(preset, method, target).items():
                found = interval(values.numpy())
                rows.append({"dataset": job.embedded or job.dataset, "protocol": job.preset, "target": target,
                             "score": score, "method": method, "images": count, "value": round(found.value, 5),
                             "low": round(found.low, 5), "high": round(found.high, 5)})  # fmt: skip
    return rows


def evaluate_batch(
    job: TableJob, loaded: Any, evaluate: Evaluator, images: torch.Tensor, samples: Sequence[Any]
) -> PerturbationRecords:
    """Explain a batch with all methods of a job, and evaluate the maps."""
    labels = torch.tensor([s.label for s in samples])
    found = vitrail.explain(loaded, images, methods=list(job.methods))
    maps = {name: e.maps[:, 0] for name, e in found.items()}
    label_maps = {}
    if "label" in job.targets:
        of_label = vitrail.explain(loaded, images, methods=list(job.methods), target=labels.tolist())
        agnostic = {name for name in maps if not vitrail.methods()[name.partition(":")[0]].class_specific}
        label_maps = {name: maps[name] if name in agnostic else e.maps[:, 0] for name, e in of_label.items()}
    predicted = next(iter(found.values())).targets[:, 0]
    ids = [s.id for s in samples]
    return evaluate(images, maps, labels=labels, label_maps=label_maps or None, ids=ids, predicted=predicted)


def main() -> None:
    """Run jobs and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=Path, required=True)
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--limit", type=int, default=0, help="number of images; by default that of each job")
    parser.add_argument("--batch", type=int, default=25, help="images that are explained together")
    parser.add_argument("--evaluated", type=int, default=512, help="most images in a forward pass of the evaluator")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore", vitrail.errors.MapWarning)
    found = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"manifest": {}, "rows": {}}
    for name in args.jobs:
        if name in found["rows"]:
            print(f"{name}: already in {args.out}", flush=True)
            continue
        started = time.perf_counter()
        found["rows"][name] = run_job(JOBS[name], args)
        device = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
        found["manifest"][name] = {"device": device, "seconds": round(time.perf_counter() - started), **versions()}
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
