"""Causal overdetermination on images of ImageNet: share of images of which almost every mask of ViT-CX suffices.

    python studies/overdetermination.py --assets DIR --device cuda --out studies/results/overdetermination.json

The masks of ViT-CX as in its paper and as in its authors' program, predicted class, images squashed, spread evenly over
the classes. Published for ViT-B/16: 20.95 % of the images have a mean impact μ above 0.9, with a mean variance of
0.036. Mean, variance and number of masks of each image are kept in files beside the results, NAME-MODEL.parquet, and
the rows are computed from them. Rows of other models and methods stay.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from model_halves import MODELS, load
from score_values import add_scores, methods_of, scores_of
from study import Clock, manifest, options, read_json, save_json
from value_tables import Values, save_values, values_path

import vitrail
from vitrail.data import ImageNet
from vitrail.scores import OverdeterminationScores, interval, score_overdetermination
from vitrail.scores.overdetermination import THRESHOLD

METHODS = ["vit_cx", "vit_cx:paper"]
CHUNK = 10


def summarise(values: Values) -> dict[str, dict[str, Any]]:
    """The row of each method from the mean, variance and number of masks of each image."""
    rows = {}
    for method in methods_of(values):
        scores = scores_of(OverdeterminationScores, values, method)
        rows[method] = {key: None if math.isnan(value) else value for key, value in scores.summary().items()}
        over = (scores.column("mean") > THRESHOLD).astype(float)[:, None]
        rows[method]["share_interval"] = list(interval(over))
    return rows


def main() -> None:
    """Measure each model and method, and write after each batch of images."""
    parser = options(
        __doc__, assets=..., images=300, batch=512, minutes=8.0, models=list(MODELS), methods=METHODS, out=...
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    clock, results = Clock(args.minutes), read_json(args.out, {"rows": {}})
    results["manifest"] = manifest(args.device, images=args.images, threshold=THRESHOLD, matmul="tf32")
    data = ImageNet(args.assets / "imagenet")
    chosen = [i * len(data) // args.images for i in range(args.images)]
    loaded = {name: load(name, args) for name in args.models}
    scores = {(name, method): OverdeterminationScores() for name in args.models for method in args.methods}
    for start in range(0, len(chosen), CHUNK):
        samples = [data[i] for i in chosen[start : start + CHUNK]]
        for (name, method), own in scores.items():
            model, squashed = loaded[name]
            images = torch.stack([squashed(s.image) for s in samples]).to(args.device)
            kept = vitrail.explain(model, images, method, batch_size=args.batch, keep=True).intermediates
            own.add(
                [s.id for s in samples], score_overdetermination([one[0] for part in kept["impact"] for one in part])
            )
        values: dict[str, Values] = {name: {} for name in args.models}
        for (name, method), own in scores.items():
            add_scores(values[name], method, own, own.columns)
        for name, found in values.items():
            results["rows"].setdefault(name, {}).update(summarise(found))
        save_json(args.out, results)
        for name, found in values.items():
            save_values(values_path(args.out, name), found)
        if clock.is_over(f"image {start + CHUNK}"):
            break


if __name__ == "__main__":
    main()
