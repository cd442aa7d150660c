"""Which form of leadlight? Chosen on one half of the images, reported on the other, with intervals.

    python benchmarks/leadlight.py --assets DIR --device cuda --out benchmarks/results/leadlight.csv

DIR holds ``weights/{vit,deit}_tiny_patch16_224.safetensors``, ``pets`` (photographs with masks) and ``imagenet``
(validation images). Every form (source of the relevance, share of the spread part, first block of the mean) explains
the predicted class. Scored are segmentation of the pets (mean threshold) and, on ImageNet, the gap between removing the
least and the most relevant pixels first, filled with black and with the mean colour. Images go to one half or the other
by their name. On pairs of scenes, whose classes are both asked for, scored are how often the asked object gets more
relevance a pixel than the other one, and the share of relevance on it; the val split is the one half, the test split
the other. Forms are ordered by their mean rank over all scores and models on the first half.

Depths are those of twelve blocks; for a model of L blocks depth d stands for 1 + (d − 1)·L/12, rounded down. Models
named by --models are measured, rows of others are kept as the table has them, and what they were measured with.
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
from pairs import selectivity
from torch import Tensor

import vitrail
from vitrail.cli.demo import mask_of, pixels
from vitrail.data import ImageNet, MaskFolder, Sample, Scenes
from vitrail.explanation import versions
from vitrail.scores.evaluator import Evaluator
from vitrail.scores.perturbation import PerturbationRecords
from vitrail.scores.presets import find_presets
from vitrail.scores.segmentation import SegmentationScores, fold_of, score_segmentation
from vitrail.scores.statistics import Interval, interval, mean_ratio

PHOTOGRAPHS = ("vit_tiny_patch16_224", "deit_tiny_patch16_224")
SCENES = "scenes"
SOURCES = ("transformer_mm", "vtranm", "last")
SHARES = (0.25, 0.5, 0.75, 1.0)
DEPTHS = (1, 4, 7, 10)
REFERENCES = ("transformer_mm", "vtranm", "vtranm:af+l", "gradtoken", "rollout", "centre", "random")
GAPS = ("chefer21", "chefer21-mean")
BATCH = 50


def forms(blocks: int = 12) -> dict[str, str]:
    """Every form of leadlight, and what it is compared with: as the table names it, and as this model is asked."""
    made = {}
    for source, share, depth in product(SOURCES, SHARES, DEPTHS):
        form = f"leadlight:source={source},mix={share},depth="
        first = 1 + (depth - 1) * blocks // 12
        wide = source != "last" and share in (0.5, 0.75) and depth in (4, 7)
        for score in ("logit", "prob") if wide else ("logit",):
            made[f"{form}{depth},score={score}"] = f"{form}{first},score={score}"
    return {**made, **{name: name for name in ("leadlight:source=last,mix=0,score=logit", *REFERENCES)}}


def batches(data: Any, count: int, about: Any, device: str) -> Iterator[tuple[list[Sample], Tensor]]:
    """Samples with their pictures as the model takes them."""
    for start in range(0, min(count, len(data)), BATCH):
        samples = [data[i] for i in range(start, min(start + BATCH, count, len(data)))]
        yield samples, torch.stack([about.preprocess(s.image) for s in samples]).to(device)


def masks_of(samples: list[Sample], about: Any, device: str) -> Tensor:
    """The masks, cut as the pictures are, shape (b, height, width)."""
    size = about.preprocess.size
    cut = []
    for sample in samples:
        mask = torch.from_numpy(np.array(sample.mask))[None, None].float()
        cut.append(torch.nn.functional.interpolate(mask, size=size, mode="nearest")[0, 0].long())
    return torch.stack(cut).to(device)


def score_pairs(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the scenes model: how well the asked object of two is told from the other."""
    about = vitrail.load(SCENES)
    about.module.to(args.device)
    labels = forms(blocks=5)
    rows = []
    for which, split in enumerate(("val", "test")):
        data = Scenes(split=split, pairs=True, count=args.scenes)
        wins: dict[str, list[Any]] = {label: [] for label in labels}
        mass: dict[str, list[Any]] = {label: [] for label in labels}
        for start in range(0, args.scenes, BATCH):
            scenes = [data[i] for i in range(start, min(start + BATCH, args.scenes))]
            images = torch.stack([pixels(scene) for scene in scenes]).to(args.device)
            masks = [np.stack([mask_of(scene, c) for c in scene.classes]) for scene in scenes]
            targets = [list(scene.classes) for scene in scenes]
            found = vitrail.explain(about, images, methods=list(labels.values()), target=targets)
            for label, asked in labels.items():
                for own, own_masks in zip(found[asked].maps.cpu().numpy(), masks, strict=True):
                    won, share = selectivity(own, own_masks)
                    wins[label].append(won.mean())
                    mass[label].append(share.mean())
        for label in labels:
            for what, values in (("wins", wins[label]), ("mass", mass[label])):
                rows.append(_row(SCENES, label, which, f"pairs, {what}", interval(np.array(values)), len(values)))
    return rows


def score(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of one model: form, half, score, value, interval."""
    about = vitrail.load(f"timm:{name}", args.assets / "weights" / f"{name}.safetensors")
    about.module.to(args.device)
    stretched = replace(about, preprocess=replace(about.preprocess, squash=True))  # so that masks fit
    labels = list(forms())
    tallies = {label: SegmentationScores() for label in labels}
    for samples, images in batches(MaskFolder(args.assets / "pets"), args.pets, stretched, args.device):
        masks = masks_of(samples, about, args.device)
        for label, found in vitrail.explain(about, images, methods=labels).items():
            tallies[label].add([s.id for s in samples], score_segmentation(found.maps[:, 0], masks))
    parts = []
    evaluate = Evaluator(about, GAPS, batch=args.batch, precision=torch.bfloat16)
    for samples, images in batches(ImageNet(args.assets / "imagenet"), args.images, about, args.device):
        maps = {label: found.maps[:, 0] for label, found in vitrail.explain(about, images, methods=labels).items()}
        truth = torch.tensor([s.label for s in samples], device=args.device)
        parts.append(evaluate(images, maps, labels=truth, ids=[s.id for s in samples]))
    records = PerturbationRecords.join(parts)
    rows = []
    for label in labels:
        rows += _segmentation_rows(name, label, tallies[label])
        for preset in GAPS:
            rows += _gap_rows(name, label, records, preset)
    return rows


def _segmentation_rows(model: str, form: str, tally: SegmentationScores) -> Iterator[dict[str, Any]]:
    """Pixel accuracy, mAP and mIoU with the mean as threshold; the last is a ratio of sums over the images."""
    halves = np.array([fold_of(i) for i in tally.ids])
    regions = tally.regions().at(0)
    right = regions.intersection.sum((1, 2)) / regions.labelled
    for which in (0, 1):
        here = halves == which
        count = int(here.sum())
        yield _row(model, form, which, "pixel accuracy", interval(right[here]), count)
        yield _row(model, form, which, "mAP", interval(tally.column("ap")[here]), count)
        yield _row(model, form, which, "mIoU", interval(tally.ratios()[here], mean_ratio), count)


def _gap_rows(model: str, form: str, records: PerturbationRecords, preset: str) -> Iterator[dict[str, Any]]:
    """Area under removing the least relevant first, minus that under the most relevant first."""
    protocol = find_presets(preset)[0]
    tally = records.tally(protocol, form)
    halves = np.array([fold_of(i) for i in tally.ids])
    areas = (tally.column(protocol.label(f"{word}({protocol.fills[0]})")) for word in ("negative", "positive"))
    gap = np.subtract(*areas)
    for which in (0, 1):
        here = gap[halves == which]
        yield _row(model, form, which, f"gap, {preset}", interval(here), len(here))


def _row(model: str, form: str, which: int, what: str, found: Interval, images: int) -> dict[str, Any]:
    return {"model": model, "form": form, "half": ("choice", "report")[which], "score": what,
            "value": round(found.value, 5), "low": round(found.low, 5), "high": round(found.high, 5),
            "images": images}  # fmt: skip


def choose(rows: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """Forms by their mean rank over all scores and models, on the half for choosing."""
    ranks: dict[str, list[float]] = {}
    cells = {(r["model"], r["score"]) for r in rows}
    for cell in cells:
        here = [r for r in rows if (r["model"], r["score"]) == cell and r["half"] == "choice"]
        for place, row in enumerate(sorted(here, key=lambda r: -r["value"])):
            ranks.setdefault(row["form"], []).append(place)
    return sorted((float(np.mean(r)), form) for form, r in ranks.items())


def kept(table: Path, models: list[str]) -> list[dict[str, Any]]:
    """Rows that the table has of other models than these."""
    if not table.exists():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] not in models]
    return [{**row, **{name: float(row[name]) for name in ("value", "low", "high")}} for row in rows]


def main() -> None:
    """Score every form on both models and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=[*PHOTOGRAPHS, SCENES], default=[*PHOTOGRAPHS, SCENES])
    parser.add_argument("--assets", type=Path, default=None, help="needed for photographs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pets", type=int, default=300)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--scenes", type=int, default=500, help="pairs in each half")
    parser.add_argument("--batch", type=int, default=512, help="pictures in a forward pass of the evaluator")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.assets is None and set(args.models) != {SCENES}:
        parser.error("--assets: where are the weights and the photographs?")
    warnings.simplefilter("ignore")
    rows = kept(args.out, args.models)
    for name in args.models:
        rows += score_pairs(args) if name == SCENES else score(name, args)
    with args.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    order = choose(rows)
    manifest = args.out.with_suffix(".json")
    now = {"device": args.device, "pets": args.pets, "images": args.images, "scenes": args.scenes,
           "versions": versions()}  # fmt: skip
    measured = json.loads(manifest.read_text(encoding="utf-8"))["measured"] if manifest.exists() else {}
    about = {"first": order[0][1], "order": order[:20], "measured": measured | dict.fromkeys(args.models, now)}
    manifest.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    for place, form in order[:10]:
        print(f"{place:6.2f}  {form}")


if __name__ == "__main__":
    main()
