"""Choice of leadlight's form: chosen on one half of the images, reported on the other, with intervals.

    python benchmarks/leadlight.py --assets DIR --device cuda --out benchmarks/results/leadlight.csv

DIR has ``weights/{vit,deit}_tiny_patch16_224.safetensors``, ``pets`` (photographs with masks) and ``imagenet``
(validation images). Every form (source of the relevance, share of the spread part, first block of the mean) explains
the predicted class. Scores: segmentation of the pets (threshold: the mean); on ImageNet, the area of LeRF minus that of
MoRF, with black and with the mean colour as fill; on scenes with two objects, class-discrimination accuracy and
relevance mass. A hash of the image id decides the half; of scenes, the val split is the first half and the test split
the second. Forms are sorted by their mean rank over all scores and models on the first half.

Depths are those of twelve blocks; for a model of L blocks, depth d means 1 + (d − 1)·L/12, rounded down. Models named
by --models are measured; rows of other models are kept with their manifest.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pairs import class_discrimination
from torch import Tensor

import vitrail
from vitrail.data import ImageNet, MaskFolder, Sample, Scenes
from vitrail.explanation import versions
from vitrail.scores import (
    Evaluator,
    Interval,
    PerturbationRecords,
    SegmentationScores,
    find_presets,
    fold_of,
    interval,
    mean_ratio,
    score_segmentation,
)

PHOTOGRAPHS = ("vit_tiny_patch16_224", "deit_tiny_patch16_224")
SCENES = "scenes"
SOURCES = ("transformer_mm", "vtranm", "last")
SHARES = (0.25, 0.5, 0.75, 1.0)
DEPTHS = (1, 4, 7, 10)
REFERENCES = ("transformer_mm", "vtranm", "vtranm:af+l", "gradtoken", "rollout", "centre", "random")
#: Presets whose LeRF area minus MoRF area is scored.
PRESETS = ("chefer21", "chefer21-mean")
HALVES = ("choice", "report")
BATCH = 50


def forms(blocks: int = 12) -> dict[str, str]:
    """Every form of leadlight and the reference methods: name in the table, and method for a model of some blocks."""
    found = {}
    for source, share, depth in product(SOURCES, SHARES, DEPTHS):
        form = f"leadlight:source={source},mix={share},depth="
        first = 1 + (depth - 1) * blocks // 12
        wide = source != "last" and share in (0.5, 0.75) and depth in (4, 7)
        for score in ("logit", "prob") if wide else ("logit",):
            found[f"{form}{depth},score={score}"] = f"{form}{first},score={score}"
    return {**found, **{name: name for name in ("leadlight:source=last,mix=0,score=logit", *REFERENCES)}}


def batches(data: Any, count: int, loaded: Any, device: str) -> Iterator[tuple[list[Sample], Tensor]]:
    """Samples with their preprocessed images."""
    for start in range(0, min(count, len(data)), BATCH):
        samples = [data[i] for i in range(start, min(start + BATCH, count, len(data)))]
        yield samples, torch.stack([loaded.preprocess(s.image) for s in samples]).to(device)


def resized_masks(samples: list[Sample], size: tuple[int, int], device: str) -> Tensor:
    """Masks in the size of the preprocessed images, shape (b, height, width)."""
    resized = []
    for sample in samples:
        mask = torch.from_numpy(np.array(sample.mask))[None, None].float()
        resized.append(torch.nn.functional.interpolate(mask, size=size, mode="nearest")[0, 0].long())
    return torch.stack(resized).to(device)


def score_scenes(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the scenes model: class-discrimination accuracy and relevance mass."""
    loaded = vitrail.load(SCENES)
    loaded.module.to(args.device)
    methods = forms(blocks=5)
    rows = []
    for half, split in enumerate(("val", "test")):
        data = Scenes(split=split, pairs=True, count=args.scenes)
        accuracy: dict[str, list[Any]] = {form: [] for form in methods}
        mass: dict[str, list[Any]] = {form: [] for form in methods}
        for start in range(0, args.scenes, BATCH):
            indices = range(start, min(start + BATCH, args.scenes))
            scenes, images = [data[i] for i in indices], data.batch(indices)[0].to(args.device)
            targets = [list(scene.classes) for scene in scenes]
            found = vitrail.explain(loaded, images, methods=list(methods.values()), target=targets)
            for form, method in methods.items():
                for maps, scene in zip(found[method].maps.cpu().numpy(), scenes, strict=True):
                    own_accuracy, own_mass = class_discrimination(maps, scene.masks)
                    accuracy[form].append(own_accuracy.mean())
                    mass[form].append(own_mass.mean())
        for form in methods:
            for name, values in (("wins", accuracy[form]), ("mass", mass[form])):
                rows.append(_row(SCENES, form, half, f"pairs, {name}", interval(np.array(values)), len(values)))
    return rows


def score_photographs(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of a model of photographs: segmentation and LeRF area minus MoRF area."""
    loaded = vitrail.load(f"timm:{name}", args.assets / "weights" / f"{name}.safetensors")
    loaded.module.to(args.device)
    squashed = replace(loaded, preprocess=replace(loaded.preprocess, squash=True))  # so that masks fit
    methods = list(forms())
    scores = {form: SegmentationScores() for form in methods}
    for samples, images in batches(MaskFolder(args.assets / "pets"), args.pets, squashed, args.device):
        masks = resized_masks(samples, loaded.preprocess.size, args.device)
        for form, found in vitrail.explain(loaded, images, methods=methods).items():
            scores[form].add([s.id for s in samples], score_segmentation(found.maps[:, 0], masks))
    parts = []
    evaluate = Evaluator(loaded, PRESETS, batch=args.batch, precision=torch.bfloat16)
    for samples, images in batches(ImageNet(args.assets / "imagenet"), args.images, loaded, args.device):
        maps = {form: found.maps[:, 0] for form, found in vitrail.explain(loaded, images, methods=methods).items()}
        labels = torch.tensor([s.label for s in samples], device=args.device)
        parts.append(evaluate(images, maps, labels=labels, ids=[s.id for s in samples]))
    records = PerturbationRecords.join(parts)
    rows = []
    for form in methods:
        rows += _segmentation_rows(name, form, scores[form])
        for preset in PRESETS:
            rows += _perturbation_rows(name, form, records, preset)
    return rows


def _segmentation_rows(model: str, form: str, scores: SegmentationScores) -> Iterator[dict[str, Any]]:
    """Pixel accuracy, mAP and mIoU with the mean as threshold; mIoU is a ratio of sums over the images."""
    folds = np.array([fold_of(i) for i in scores.ids])
    regions = scores.regions().at(0)
    accuracy = regions.intersection.sum((1, 2)) / regions.labelled
    for half in (0, 1):
        rows = folds == half
        count = int(rows.sum())
        yield _row(model, form, half, "pixel accuracy", interval(accuracy[rows]), count)
        yield _row(model, form, half, "mAP", interval(scores.column("ap")[rows]), count)
        yield _row(model, form, half, "mIoU", interval(scores.ratios()[rows], mean_ratio), count)


def _perturbation_rows(model: str, form: str, records: PerturbationRecords, name: str) -> Iterator[dict[str, Any]]:
    """LeRF area minus MoRF area of a preset."""
    preset = find_presets(name)[0]
    scores = records.sample_scores(preset, form)
    folds = np.array([fold_of(i) for i in scores.ids])
    areas = (scores.column(preset.label(f"{curve}({preset.fills[0]})")) for curve in ("negative", "positive"))
    difference = np.subtract(*areas)
    for half in (0, 1):
        values = difference[folds == half]
        yield _row(model, form, half, f"gap, {name}", interval(values), len(values))


def _row(model: str, form: str, half: int, score: str, found: Interval, images: int) -> dict[str, Any]:
    return {"model": model, "form": form, "half": HALVES[half], "score": score,
            "value": round(found.value, 5), "low": round(found.low, 5), "high": round(found.high, 5),
            "images": images}  # fmt: skip


def rank_forms(rows: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """Forms sorted by their mean rank over all scores and models, on the half for the choice."""
    ranks: dict[str, list[float]] = {}
    columns = {(r["model"], r["score"]) for r in rows}
    for column in columns:
        own = [r for r in rows if (r["model"], r["score"]) == column and r["half"] == HALVES[0]]
        for rank, row in enumerate(sorted(own, key=lambda r: -r["value"])):
            ranks.setdefault(row["form"], []).append(rank)
    return sorted((float(np.mean(r)), form) for form, r in ranks.items())


def rows_of_other_models(table: Path, models: list[str]) -> list[dict[str, Any]]:
    """Rows of the table that are of other models."""
    if not table.exists():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] not in models]
    return [{**row, **{name: float(row[name]) for name in ("value", "low", "high")}} for row in rows]


def main() -> None:
    """Score every form on all models, and write table and manifest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=[*PHOTOGRAPHS, SCENES], default=[*PHOTOGRAPHS, SCENES])
    parser.add_argument("--assets", type=Path, default=None, help="needed for photographs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pets", type=int, default=300)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--scenes", type=int, default=500, help="scenes with two objects in each half")
    parser.add_argument("--batch", type=int, default=512, help="most images in a forward pass of the evaluator")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.assets is None and set(args.models) != {SCENES}:
        parser.error("models of photographs need --assets, a folder with weights and images")
    warnings.simplefilter("ignore")
    rows = rows_of_other_models(args.out, args.models)
    for name in args.models:
        rows += score_scenes(args) if name == SCENES else score_photographs(name, args)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    order = rank_forms(rows)
    manifest = args.out.with_suffix(".json")
    settings = {"device": args.device, "pets": args.pets, "images": args.images, "scenes": args.scenes,
                "versions": versions()}  # fmt: skip
    measured = json.loads(manifest.read_text(encoding="utf-8"))["measured"] if manifest.exists() else {}
    content = {"first": order[0][1], "order": order[:20], "measured": measured | dict.fromkeys(args.models, settings)}
    manifest.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for rank, form in order[:10]:
        print(f"{rank:6.2f}  {form}")


if __name__ == "__main__":
    main()
