"""Localisation on ImageNet: boxes from thresholded maps (MaxBoxAcc), and the pointing game per box and per image.

    python benchmarks/wsol.py --assets DIR --device cuda --out benchmarks/results/wsol-h200.json

The assets hold ``imagenet`` (validation images with boxes) and ``weights``. Maps explain the label. Images are squashed
to the model's input size. Boxes are computed by worker processes while the next maps are computed; results are written
after every method, and methods that are in the file already are left out.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import device_name, save_json
from torch import Tensor

import vitrail
from vitrail.bench.ground_truth import GroundTruth, prepare_ground_truth
from vitrail.data import ImageNet
from vitrail.errors import DataWarning, MapWarning
from vitrail.methods.registry import METHODS
from vitrail.pipeline.provenance import versions
from vitrail.scores import (
    BoxPointingScores,
    PointingScores,
    WsolScores,
    box_masks,
    interval,
    mean_ratio,
    score_box_pointing,
    score_pointing,
    score_wsol,
)

#: Methods that evaluate many images per map, with fewer of them than by default where that takes minutes.
MANY = ("vit_cx", "vit_cx:paper", "occlusion", "scorecam", "rise:masks=1000", "integrated_gradients", "tam")


def default_methods() -> list[str]:
    """Every method of a single pass, the controls, then those of ``MANY``."""
    families = ("attention", "gradient", "relevance", "control")
    single = [name for name, method in METHODS.items() if method.family in families and name != "inverted"]
    return [*single, *MANY]


def score(given: Any, boxes: list[Any]) -> dict[str, dict[str, Any]]:
    """All scores of some maps; runs in a worker process. Arrays, because tensors would share file descriptors."""
    torch.set_num_threads(1)
    maps = torch.from_numpy(given)
    union = score_pointing(maps, box_masks(boxes, (maps.shape[1], maps.shape[2])), tolerances=(0,))
    found = {"wsol": score_wsol(maps, boxes), "box": score_box_pointing(maps, boxes),
             "union": {"hit@0": union["hit@0"], "area": union["area"]}}  # fmt: skip
    return {kind: {name: value.numpy() for name, value in own.items()} for kind, own in found.items()}


def measure(
    args: argparse.Namespace, loaded: Any, truths: list[GroundTruth], top1: Tensor, spec: str, pool: ProcessPoolExecutor
) -> dict[str, Any]:
    """Scores of one method on all images."""
    wsol, per_box, union = WsolScores(), BoxPointingScores(), PointingScores()
    batch = args.batch if METHODS[spec.partition(":")[0]].family in ("attention", "gradient", "control") else 16
    pending, seconds = [], 0.0
    for start in range(0, len(truths), batch):
        own = truths[start : start + batch]
        images = torch.stack([t.image for t in own]).to(args.device)
        started = time.perf_counter()
        found = vitrail.explain(loaded, images, spec, target=[int(t.label or 0) for t in own], batch_size=args.batch)
        maps = found.maps[:, 0].float().cpu()
        seconds += time.perf_counter() - started
        boxes = [np.zeros((0, 4)) if t.boxes is None else t.boxes.numpy() for t in own]
        pending.append((start, own, pool.submit(score, maps.numpy(), boxes)))
    for start, own, future in pending:
        names, values = [t.id for t in own], future.result()
        wsol.add(names, values["wsol"] | {"top1": top1[start : start + len(own)]})
        per_box.add(names, values["box"])
        union.add(names, values["union"])
    pairs = np.stack([per_box.column("hits"), per_box.column("boxes")], 1)
    s, halves, correct = wsol.summary(), wsol.two_fold(), wsol.at_best()
    return {
        "method": spec, "images": len(wsol), "boxes": int(per_box.column("boxes").sum()), "flat": s["flat"],
        "seconds_per_image": seconds / len(truths), "threshold": s["best_threshold"],
        "max_box_acc": interval(correct[:, None])._asdict(),
        "two_fold_box_acc": None if halves is None else interval(halves[:, None])._asdict(),
        "max_box_acc_v2": s["max_box_acc_v2"], "top1_loc": s.get("top1_loc"),
        "pointing_per_box": interval(pairs, mean_ratio)._asdict(), "per_box_bound": per_box.summary()["bound"],
        "pointing_mean_over_images": per_box.mean("hit_share"),
        "pointing_any_box": interval(union.column("hit@0")[:, None])._asdict(),
    }  # fmt: skip


def read_truths(args: argparse.Namespace, preprocess: Any) -> list[GroundTruth]:
    """Read the images that have a box of their label, spread evenly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        dataset = ImageNet(args.assets / "imagenet")
    count = min(args.images, len(dataset))
    indices = [i * len(dataset) // count for i in range(count)]
    with ThreadPoolExecutor(args.workers) as pool:
        found = pool.map(lambda i: prepare_ground_truth(dataset, i, preprocess, by_class=False), indices)
        return sorted((t for t in found if t.boxes is not None and len(t.boxes)), key=lambda t: t.id)


def main() -> None:
    """Measure, and write the results after every method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=Path, required=True)
    parser.add_argument("--model", default="timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    parser.add_argument("--weights", default="vit_tiny_patch16_224.safetensors", help="file in the assets' weights")
    parser.add_argument("--methods", nargs="+", default=default_methods())
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=8.0, help="no method starts after this time (%(default)s)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore", MapWarning)
    started = time.monotonic()
    loaded = vitrail.load(args.model, args.assets / "weights" / args.weights)
    preprocess = replace(loaded.preprocess, squash=True, resample="bilinear")
    truths = read_truths(args, preprocess)
    loaded = replace(loaded, module=loaded.module.to(args.device))
    with torch.inference_mode():
        predicted = torch.cat([
            loaded.module(torch.stack([t.image for t in truths[i : i + args.batch]]).to(args.device)).argmax(1).cpu()
            for i in range(0, len(truths), args.batch)
        ])  # fmt: skip
    top1 = (predicted == torch.tensor([int(t.label or 0) for t in truths])).double()
    print(f"{len(truths)} images, accuracy {top1.mean():.3f}, {time.monotonic() - started:.0f} s", flush=True)
    rows = json.loads(args.out.read_text(encoding="utf-8"))["rows"] if args.out.is_file() else []
    manifest = {
        "model": args.model, "weights": args.weights, "images": len(truths), "accuracy": float(top1.mean()),
        "explained": "label", "view": "squash", "versions": versions(), "device": device_name(args.device),
    }  # fmt: skip
    # New processes instead of forked ones, which must not inherit the GPU.
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        for spec in [spec for spec in args.methods if spec not in {row["method"] for row in rows}]:
            if time.monotonic() - started > 60 * args.minutes:
                print(f"stopped before {spec}: run again to continue", flush=True)
                break
            try:
                row = measure(args, loaded, truths, top1, spec, pool)
            except vitrail.errors.VitrailError as error:
                print(f"{spec}: {error}", flush=True)
                continue
            rows.append(row)
            save_json(args.out, {"manifest": manifest, "rows": sorted(rows, key=lambda r: -r["max_box_acc"]["value"])})
            print(f"{spec}: MaxBoxAcc {row['max_box_acc']['value']:.3f}, pointing per box "
                  f"{row['pointing_per_box']['value']:.3f}, any box {row['pointing_any_box']['value']:.3f}, "
                  f"{time.monotonic() - started:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
