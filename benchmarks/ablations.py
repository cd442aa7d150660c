"""Ablations of VTranM and GradToken on photographs with masks: segmentation by every row of their tables.

    python benchmarks/ablations.py --assets DIR --out benchmarks/results/ablations-pets.json

DIR has ``weights/MODEL.safetensors`` and ``pets`` (photographs with masks). The predicted class is explained; images
are resized without cropping, so that masks fit. Scores are those of the protocol ``segmentation``: with the mean of the
map as threshold, and with the best of ten thresholds. All rows share the forward and backward passes of an image.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import vitrail
import vitrail.errors
from vitrail.data import MaskFolder
from vitrail.pipeline.provenance import versions
from vitrail.scores import SegmentationScores, interval, mean_ratio, score_segmentation

BLOCKS = 12
METHODS = (
    "vtranm:baseline", "vtranm:af", "vtranm:af+l", "vtranm", "gradtoken:i", "gradtoken:ii",
    *(f"gradtoken:{scheme}" for scheme in range(5)), *(f"gradtoken:depth={depth}" for depth in range(1, BLOCKS + 1)),
)  # fmt: skip
#: Scores of the summary that are written.
SCORES = ("pixel_accuracy", "map", "miou", "best_pixel_accuracy", "best_miou", "best_threshold", "flat")


def samples(folder: Path, size: tuple[int, int], limit: int, batch: int) -> Iterator[tuple[list[Any], torch.Tensor]]:
    """Samples of a folder, spread evenly, with their masks in the size of the model's input."""
    data = MaskFolder(folder)
    indices = np.linspace(0, len(data) - 1, min(limit, len(data))).round().astype(int)
    for start in range(0, len(indices), batch):
        found = [data[int(i)] for i in indices[start : start + batch]]
        masks = [torch.from_numpy(np.array(s.mask))[None, None].float() for s in found]
        yield found, torch.cat([F.interpolate(mask, size=size, mode="nearest")[:, 0].long() for mask in masks])


def main() -> None:
    """Explain, score and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", type=Path, required=True)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--limit", type=int, default=300, help="number of images")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore", vitrail.errors.MapWarning)  # constant maps are counted: "flat"
    loaded = vitrail.load(f"timm:{args.model}", args.assets / "weights" / f"{args.model}.safetensors")
    loaded.module.to(args.device)
    preprocess = replace(loaded.preprocess, squash=True)
    tallies = {method: SegmentationScores() for method in METHODS}
    for found, masks in samples(args.assets / "pets", preprocess.size, args.limit, args.batch):
        images = torch.stack([preprocess(s.image) for s in found]).to(args.device)
        for method, explanation in vitrail.explain(loaded, images, methods=list(METHODS)).items():
            tallies[method].add([s.id for s in found], score_segmentation(explanation.maps[:, 0].cpu(), masks))
        print(f"{len(tallies['vtranm'])} images", flush=True)
    rows: dict[str, dict[str, Any]] = {}
    for method, tally in tallies.items():
        summary = tally.summary()
        rows[method] = {name: round(float(summary[name]), 5) for name in SCORES}
        for name, threshold in (("miou", None), ("best_miou", summary["best_threshold"])):
            found = interval(tally.ratios(threshold), mean_ratio)
            rows[method][f"{name}_interval"] = [round(found.low, 5), round(found.high, 5)]
    manifest = {
        "model": args.model, "images": len(tallies["vtranm"]), "data": "pets", "target": "predicted class",
        "device": args.device, "versions": versions(),
    }  # fmt: skip
    args.out.write_text(json.dumps({"manifest": manifest, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
