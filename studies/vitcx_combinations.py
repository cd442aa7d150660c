"""ViT-CX between its paper and its program: six combinations, number of masks, times, mask similarity.

    python studies/vitcx_combinations.py --assets DIR --count 300 --device cuda --out vitcx-combinations.json
    python studies/vitcx_combinations.py --models timm:vit_base_patch16_224.augreg_in21k_ft_in1k --root MASKS

The paper's text and the authors' program differ in the feature maps, in how a cluster becomes a mask, and in the noise.
The six combinations lead from one to the other, one change at a time; --every adds the remaining ones, --methods has
others. The predicted class of images with masks is explained. For each combination:

- deletion ↓ and insertion ↑ (preset ``vitcx``: mean colour; insertion also into the blurred image), pixel accuracy ↑
  and mIoU ↑ (threshold: the map's mean), with 95 % bootstrap intervals over images;
- number of masks and seconds for an image, each as mean and standard deviation over images (one image at a time);
- mSim, the mean cosine between two masks of an image before clustering, and the same after it;
- causal overdetermination: share of images whose impacts have a mean μ above 0.9, and the mean variance among them.

The values of each image behind these numbers are kept in files beside the results, NAME-MODEL.parquet, and the rows are
computed from them. Rows of other models and combinations stay.

Published, for ViT-B/16 on ImageNet: 63 ± 11 masks, mSim 0.92 before clustering, 20.95 % of the images with μ > 0.9,
with a mean variance of 0.036.
"""

from __future__ import annotations

import argparse
import math
import statistics
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from masked_images import MaskedBatch, choose_indices, complete_arguments, masked_options, measure_models, read_batches
from score_values import add_scores, methods_of, scores_of
from study import Clock, timed
from torch import Tensor
from value_tables import Values

import vitrail
from vitrail.bench.papers import find_table
from vitrail.data import Dataset
from vitrail.models import LoadedModel
from vitrail.scores import (
    Evaluator,
    OverdeterminationScores,
    SampleScores,
    SegmentationScores,
    find_presets,
    interval,
    mean_ratio,
    score_overdetermination,
    score_segmentation,
)

#: From the paper's text to the authors' program: feature maps, mask of a cluster, noise.
COMBINATIONS = (
    ("attention", "mean", "shared"),
    ("skip", "mean", "shared"),
    ("block", "mean", "shared"),
    ("norm1", "mean", "shared"),
    ("norm1", "sum", "shared"),
    ("norm1", "sum", "per_mask"),
)
EVERY = tuple(product(("attention", "skip", "block", "norm1"), ("mean", "sum"), ("shared", "per_mask")))
PRESET = "vitcx"
#: What names of scores begin with in the file of values, and the counts that are kept.
SEGMENTATION, CAUSATION = "segmentation ", "impact "
SEGMENTATION_SCORES = ("foreground", "background", "true", "false", "flat")


def spec(combination: tuple[str, str, str]) -> str:
    """Method spec of a combination."""
    return "vit_cx:" + ",".join(f"{n}={v}" for n, v in zip(("features", "cluster", "noise"), combination, strict=True))


NAMES = {spec(COMBINATIONS[0]): "paper", spec(COMBINATIONS[-1]): "released"}


def summarise(values: Values) -> dict[str, dict[str, Any]]:
    """The numbers of each combination from the values of each image, as JSON values."""
    rows = {}
    for s in methods_of(values):
        segmentation, curves = scores_of(SegmentationScores, values, s, SEGMENTATION), find_presets(PRESET)[0].scores
        regions = segmentation.regions()
        correct = np.stack([regions.intersection[:, 0].sum(1), regions.labelled], 1)
        causation = scores_of(OverdeterminationScores, values, s, CAUSATION).summary()
        seconds = values["seconds"][s]
        rows[s] = {
            **{name: list(interval(values[name][s])) for name in curves},
            "pixel_accuracy": list(interval(correct, lambda mean: mean[..., 0] / mean[..., 1])),
            "miou": list(interval(segmentation.ratios(), mean_ratio)),
            "flat": int(segmentation.column("flat").sum()),
            "masks": [causation["masks"], causation["masks_std"]],
            "seconds": [statistics.fmean(seconds), statistics.pstdev(seconds)],
            "msim": {when: statistics.fmean(values[f"msim {when}"][s]) for when in ("before", "after")},
            "overdetermined": causation["share"],
            "variance": None if math.isnan(causation["variance"]) else causation["variance"],
            "mean_impact": causation["mean"],
            "images": len(segmentation),
        }
    return rows


def explain_batch(
    loaded: LoadedModel, batch: MaskedBatch, images: Tensor, s: str, evaluate: Evaluator, args: argparse.Namespace
) -> dict[str, Any]:
    """Values of the images of a batch with one combination, by score."""
    maps, seconds = [], []
    for image in images:
        explain = partial(vitrail.explain, loaded, image[None], s, batch_size=args.evaluations)
        e, spent = timed(explain, args.device)
        seconds.append(spent)
        maps.append(e.maps[0, 0])
    stacked = torch.stack(maps)
    kept = vitrail.explain(loaded, images, s, batch_size=args.evaluations, keep=True).intermediates
    impacts = [one[0] for piece in kept["impact"] for one in piece]
    similarity = [one for piece in kept["similarity"] for one in piece]
    counted = score_segmentation(stacked, batch.masks.to(args.device))
    # The first threshold is the mean of the map; the others are not shown.
    segmented = {name: v[:, :1] if v.dim() == 2 else v for name, v in counted.items() if name in SEGMENTATION_SCORES}
    records = evaluate(images, {"map": stacked}, ids=batch.ids)
    preset = find_presets(PRESET)[0]
    order = [records.sample_scores(preset, "map").ids.index(i) for i in batch.ids]
    return {
        **{name: own[order] for name, own in records.scores(preset, "map").items()},
        **{f"{SEGMENTATION}{name}": own for name, own in segmented.items()},
        **{f"{CAUSATION}{name}": own for name, own in score_overdetermination(impacts).items()},
        "seconds": seconds,
        **{f"msim {when}": [one[when]["mean"] for one in similarity] for when in ("before", "after")},
    }


def measure(
    loaded: LoadedModel, data: Dataset, specs: list[str], args: argparse.Namespace
) -> tuple[dict[str, Any], Values]:
    """Explain and score all images with all combinations; the rows, and the values of each image."""
    indices = choose_indices(data, args.count)
    measured = {s: SampleScores() for s in specs}
    evaluate = Evaluator(loaded, PRESET, batch=args.evaluations)
    clock, done = Clock(args.minutes), 0
    for batch in read_batches(data, indices, loaded.preprocess, args.batch):
        images = batch.images.to(args.device)
        if not done:  # the first call also recognises the structure of the model
            vitrail.explain(loaded, images[:1], specs[0], batch_size=args.evaluations)
        for s, own in measured.items():
            own.add(batch.ids, explain_batch(loaded, batch, images, s, evaluate, args))
        done += len(images)
        print(f"  {done}/{len(indices)} images, {clock}", flush=True)
        if clock.is_over("the next images"):
            break
    values: Values = {}
    for s, own in measured.items():
        add_scores(values, s, own, own.columns)
    rows = [{"spec": s, "name": NAMES.get(s, ""), **row} for s, row in summarise(values).items()]
    return {"images": done, "combinations": rows}, values


def show(result: dict[str, Any]) -> None:
    """Print one line for each combination."""
    print(f"{result['model']}: {result['images']} images; published for ViT-B/16: {published()}")
    head = ("combination", "deletion ↓", "insertion ↑", "pixel acc. ↑", "mIoU ↑", "masks", "seconds", "mSim", "μ > 0.9")
    print("  " + " | ".join(head))
    for row in result["combinations"]:
        variance = "" if row["variance"] is None else f", variance {row['variance']:.3f}"
        cells = [
            row["spec"].removeprefix("vit_cx:") + (f" ({row['name']})" if row["name"] else ""),
            f"{row['deletion(mean)'][0]:.3f}", f"{row['insertion(mean)'][0]:.3f}",
            f"{100 * row['pixel_accuracy'][0]:.1f} %", f"{100 * row['miou'][0]:.1f} %",
            "{:.1f} ± {:.1f}".format(*row["masks"]), "{:.3f} ± {:.3f}".format(*row["seconds"]),
            f"{row['msim']['before']:.3f}", f"{100 * row['overdetermined']:.1f} %{variance}",
        ]  # fmt: skip
        print("  " + " | ".join(cells), flush=True)


def published() -> str:
    """The paper's number of masks, deletion and insertion for ViT-B/16."""
    numbers = [n for n in find_table("vitcx_table1").numbers if n.model == "ViT-B/16" and n.method == "ViT-CX"]
    found = {n.metric: n.value for n in numbers}
    return (
        f"{found['Number of masks, mean']:.0f} ± {found['Number of masks, std']:.0f} masks, deletion "
        f"{found['Deletion AUC']}, insertion {found['Insertion AUC']}"
    )


def main() -> None:
    """Measure each model, print the table, and write results and manifest after each."""
    parser = masked_options(__doc__, 300)
    parser.add_argument("--every", action="store_true", help="all sixteen combinations instead of six")
    parser.add_argument("--methods", nargs="+", help="other combinations, as specs of vit_cx")
    parser.add_argument("--evaluations", type=int, default=128, help="most images in a forward pass")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop a model after this time")
    args = complete_arguments(parser)
    specs = args.methods or [spec(c) for c in dict.fromkeys([*COMBINATIONS, *(EVERY if args.every else ())])]
    measure_models(
        args, lambda loaded, data: measure(loaded, data, specs, args), show, evaluations=args.evaluations,
        target="the predicted class", preset=PRESET, interval="95 % bootstrap over images",
        times="one image at a time",
    )  # fmt: skip


if __name__ == "__main__":
    main()
