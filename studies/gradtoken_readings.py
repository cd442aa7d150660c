"""Which reading of GradToken's Eq. 5 is the authors'? Segmentation with both, beside the published ablation.

    python studies/gradtoken_readings.py --models vit-b16 --data imagenet-segmentation --root FILE --count 0
    python studies/gradtoken_readings.py --assets DIR --count 120 --pairs 60 --out readings.json

FILE is ImageNet-Segmentation's gtsegs_ijcv.mat. The gradient at the class token's query passes the softmax of the last
block. "jacobian" is its derivative, as autograd computes it; "elementwise" multiplies each entry by A (1 − A), which is
another reading of the paper's notation. The paper's ablation (Tables 3 and 4) was measured with ViT-B/16 on
ImageNet-Segmentation: the reading whose rows are closer to the published ones is the authors'. Any other model or data
shows how far the two readings are apart, no more.

Segmentation: the predicted class is explained; pixel accuracy and mIoU with the best of ten thresholds, chosen on the
evaluated images as in the paper, mAP without threshold, all in percent. With --pairs, two images of different labels
are put side by side, each squeezed to half the width, and both labels are explained: class-discrimination accuracy is
the share of maps with more relevance per pixel on the target's mask than on the other one.

The values of each image (pixel counts at each threshold, average precision) and pair are kept in files beside the
results, NAME-MODEL.parquet, and the rows are computed from them. Rows of other models and variants stay.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F
from masked_images import MaskedBatch, choose_indices, complete_arguments, masked_options, measure_models, read_batches
from score_values import add_scores, methods_of, scores_of
from torch import Tensor
from value_tables import Values

import vitrail
from vitrail.bench.papers import find_table
from vitrail.data import Dataset
from vitrail.models import LoadedModel
from vitrail.scores import SegmentationScores, SelectivityScores, score_segmentation, score_selectivity

IGNORE = 255
READINGS = ("jacobian", "elementwise")
VARIANTS = ("0", "1", "2", "3", "4", "i")
#: Scores of each image and of each pair that are kept, and what their names begin with in the file.
SEGMENTATION, SEGMENTATION_SCORES = "segmentation ", ("foreground", "background", "true", "false", "ap", "flat")
PAIRS, PAIR_SCORES = "pairs ", ("share", "flat")
METRICS = {"PAcc (%)": "best_pixel_accuracy", "mAP (%)": "map", "mIoU (%)": "best_miou"}


def spec(variant: str, reading: str) -> str:
    """Method spec of a variant under a reading."""
    return f"gradtoken:{variant}" if reading == "jacobian" else f"gradtoken:{variant},softmax={reading}"


def published() -> dict[str, list[float | None]]:
    """The paper's row of each variant, in the order of ``METRICS``."""
    rows: dict[str, list[float | None]] = {}
    for key in ("gradtoken_table3", "gradtoken_table4"):
        table = find_table(key)
        for name, specs in table.methods.items():
            found = {n.metric: n.value for n in table.numbers if n.method == name}
            rows.setdefault(specs[0].partition(":")[2], [found.get(metric) for metric in METRICS])
    return rows


def summarise(values: Values) -> dict[str, dict[str, dict[str, float]]]:
    """Rows of segmentation and of pairs by method, from the values of each image and pair; in percent."""
    tables: dict[str, dict[str, dict[str, float]]] = {"segmentation": {}, "pairs": {}}
    for s in methods_of(values, SEGMENTATION):
        found = scores_of(SegmentationScores, values, s, SEGMENTATION).summary()
        row = {metric: 100 * found[name] for metric, name in METRICS.items()}
        tables["segmentation"][s] = row | {"constant": found["flat"], "images": found["images"]}
    for s in methods_of(values, PAIRS):
        found = scores_of(SelectivityScores, values, s, PAIRS).summary()
        row = {"accuracy": 100 * found["share"], "constant": found["flat"], "maps": 2 * found["images"]}
        tables["pairs"][s] = row
    return {name: rows for name, rows in tables.items() if rows}


def segmentation(loaded: LoadedModel, data: Dataset, args: argparse.Namespace, specs: list[str]) -> Values:
    """Values of each image by every variant and reading."""
    scores = {s: SegmentationScores() for s in specs}
    indices = choose_indices(data, args.count)
    started = time.perf_counter()
    for batch in read_batches(data, indices, loaded.preprocess, args.batch):
        found = vitrail.explain(loaded, batch.images.to(args.device), methods=specs)
        masks = batch.masks.to(args.device)
        for s in specs:
            scores[s].add(batch.ids, score_segmentation(found[s].maps[:, 0], masks))
        done = len(scores[specs[0]])
        print(f"  {done}/{len(indices)} images, {time.perf_counter() - started:.0f} s", flush=True)
    values: Values = {}
    for s in specs:
        add_scores(values, s, scores[s], SEGMENTATION_SCORES, SEGMENTATION)
    return values


def side_by_side(first: MaskedBatch, second: MaskedBatch) -> tuple[Tensor, Tensor]:
    """Images of two batches in one, shape (b, 3, height, width), and the two masks, shape (b, 2, height, width)."""
    height, width = first.images.shape[2:]
    half = (height, width // 2)
    left, right = (F.interpolate(b.images, half, mode="bilinear", antialias=True) for b in (first, second))
    objects = [((b.masks > 0) & (b.masks < IGNORE))[:, None].float() for b in (first, second)]
    objects = [F.interpolate(own, half)[:, 0] for own in objects]
    masks = [F.pad(objects[0], (0, width - half[1])), F.pad(objects[1], (half[1], 0))]
    return torch.cat([left, right], -1), torch.stack(masks, 1)


def discrimination(loaded: LoadedModel, data: Dataset, args: argparse.Namespace, specs: list[str]) -> Values:
    """Class discrimination of each pair of images by every variant and reading."""
    scores = {s: SelectivityScores() for s in specs}
    # The first image comes from the first half of the data set, the second from the other: classes are sorted.
    indices = choose_indices(data, 2 * args.pairs)
    halves = indices[: args.pairs], indices[args.pairs :]
    both = (read_batches(data, half, loaded.preprocess, args.batch) for half in halves)
    for first, second in zip(*both, strict=True):
        images, masks = side_by_side(first, second)
        rows = [i for i in range(len(images)) if first.labels[i] != second.labels[i] and first.labels[i] >= 0]
        if not rows:
            continue
        targets = [[first.labels[i], second.labels[i]] for i in rows]
        found = vitrail.explain(loaded, images[rows].to(args.device), methods=specs, target=targets)
        for s in specs:
            ids = [f"{first.ids[i]}+{second.ids[i]}" for i in rows]
            scores[s].add(ids, score_selectivity(found[s].maps, masks[rows].to(args.device)))
        print(f"  {len(scores[specs[0]])}/{args.pairs} pairs", flush=True)
    values: Values = {}
    for s in specs:
        add_scores(values, s, scores[s], PAIR_SCORES, PAIRS)
    return values


def show(result: dict[str, Any], paper: dict[str, list[float | None]], comparable: bool) -> None:
    """Print the published row of each variant beside both readings, and their distance where it can be compared."""
    print(f"{result['model']}: {result['images']} images; pixel accuracy / mAP / mIoU, %")
    print(f"  {'variant':9s} {'published (ViT-B)':>20s} {'jacobian':>20s} {'elementwise':>20s}   pairs: both readings")
    measured = [v for v in VARIANTS if spec(v, READINGS[0]) in result["segmentation"]]
    for v in measured:
        cells = [" / ".join("–" if x is None else f"{x:.2f}" for x in paper[v])]
        cells += [" / ".join(f"{result['segmentation'][spec(v, r)][m]:.2f}" for m in METRICS) for r in READINGS]
        pairs = result.get("pairs", {})
        both = [pairs[spec(v, r)]["accuracy"] for r in READINGS if spec(v, r) in pairs]
        accuracy = ", ".join(f"{a:.1f} %" for a in both) or "–"
        print(f"  {v:9s} {cells[0]:>20s} {cells[1]:>20s} {cells[2]:>20s}   {accuracy}", flush=True)
    if comparable and measured == list(VARIANTS):
        distance = {r: mean_distance(result["segmentation"], paper, r) for r in READINGS}
        text = ", ".join(f"{r} {value:.2f}" for r, value in distance.items())
        print(f"  mean distance to the published numbers, points: {text}", flush=True)


def mean_distance(rows: dict[str, dict[str, float]], paper: dict[str, list[float | None]], reading: str) -> float:
    """Mean absolute difference to the published numbers over variants and metrics."""
    pairs = [(rows[spec(v, reading)][m], x) for v in VARIANTS for m, x in zip(METRICS, paper[v], strict=True)]
    known = [abs(own - x) for own, x in pairs if x is not None]
    return sum(known) / len(known)


def main() -> None:
    """Measure each model, print the table, and write results and manifest after each."""
    parser = masked_options(__doc__, 120)
    parser.add_argument("--pairs", type=int, default=0, help="number of image pairs for class discrimination")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    args, paper = complete_arguments(parser), published()
    specs = [spec(v, r) for v in args.variants for r in READINGS]

    def measure(loaded: LoadedModel, data: Dataset) -> tuple[dict[str, Any], Values]:
        values = segmentation(loaded, data, args, specs)
        values |= discrimination(loaded, data, args, specs) if args.pairs else {}
        return {"images": len(choose_indices(data, args.count)), **summarise(values)}, values

    def table(result: dict[str, Any]) -> None:
        base = result["model"].startswith("timm:vit_base_patch16_224")
        show(result, paper, comparable=base and args.data == "imagenet-segmentation")

    target = "the predicted class; for pairs, both labels"
    measure_models(args, measure, table, pairs=args.pairs, target=target, published=paper)


if __name__ == "__main__":
    main()
