"""Time of a paper's perturbation table on 50,000 images: explaining and scoring.

    python benchmarks/table.py --device cuda --out benchmarks/results/table-h200.json

All methods of a single pass (attention, gradient, relevance) and the controls explain the predicted and the true class
of synthetic images; `chefer21` removes the most and the least relevant pixels first. Three set-ups: "converted" has the
model in bfloat16, with relevance in float32 with TF32; "plan, tf32" and "plan, float32" are `vitrail bench` with
`precision = "bfloat16"` and either `matmul`: maps in float32, forward passes of the test under autocast. Weights are
random. Labels agree with the prediction for four images in five, about as often as those of a trained model.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from typing import Any

import timm
import torch
from common import SINGLE_PASS_METHODS, Timer, labels_with_errors, save_speed, speed_parser
from torch import Tensor

import vitrail
from vitrail.scores import Evaluator

NAMES = [*SINGLE_PASS_METHODS, "random", "centre", "edges"]
TABLE_IMAGES = 50_000
#: By name: precision of the model, of float32 matrix products, and of autocast in the perturbation test.
SETUPS: dict[str, tuple[torch.dtype, str, torch.dtype | None]] = {
    "converted": (torch.bfloat16, "high", None),
    "plan, tf32": (torch.float32, "high", torch.bfloat16),
    "plan, float32": (torch.float32, "highest", torch.bfloat16),
}


def measure(setup: str, args: argparse.Namespace, timer: Timer) -> dict[str, Any]:
    """Seconds of explaining and of scoring in one set-up."""
    dtype, matmul, autocast = SETUPS[setup]
    torch.set_float32_matmul_precision(matmul)
    torch.manual_seed(0)
    model = timm.create_model(args.model).to(timer.device, dtype).eval()
    images = torch.randn(args.images, 3, 224, 224, device=timer.device, dtype=dtype)
    with torch.inference_mode():
        predicted = model(images).argmax(1)
    labels = labels_with_errors(predicted)
    differing = (labels != predicted).nonzero()[:, 0]

    def maps_of(rows: Tensor, classes: Tensor) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {name: [] for name in NAMES}
        for chunk in rows.split(args.explain_batch):
            found = vitrail.explain(model, images[chunk], methods=NAMES, target=classes[chunk, None])
            for name in NAMES:
                parts[name].append(found[name].maps[:, 0])
        return {name: torch.cat(own) for name, own in parts.items()}

    def explain() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        maps = maps_of(torch.arange(args.images, device=timer.device), predicted)
        of_label = maps_of(differing, labels)
        return maps, {name: maps[name].index_copy(0, differing, of_label[name]) for name in NAMES}

    maps, label_maps = explain()
    evaluate = Evaluator(model, ["chefer21"], batch=args.batch, precision=autocast)
    forwards = evaluate(images, maps, labels=labels, label_maps=label_maps).forwards.total / args.images
    times: dict[str, list[float]] = {"explain": [], "score": []}
    for _ in range(args.repeats):
        times["explain"].append(timer.seconds(explain))
        times["score"].append(timer.seconds(lambda: evaluate(images, maps, labels=labels, label_maps=label_maps)))
    seconds = {name: statistics.median(taken) for name, taken in times.items()}
    rate = args.images / sum(seconds.values())
    hours = TABLE_IMAGES / rate / 3600
    print(f"{setup}: {len(NAMES)} methods, {forwards:.0f} forward passes per image: {rate:.2f} images/s, {hours:.2f} h "
          f"for {TABLE_IMAGES:,}; explaining {seconds['explain'] / sum(seconds.values()):.0%}", flush=True)  # fmt: skip
    return {"forwards_per_image": forwards, "seconds": seconds, "images_per_second": rate, "hours_for_50000": hours}


def main() -> None:
    """Measure, and write results and manifest."""
    parser = speed_parser(__doc__, repeats=3)
    parser.add_argument("--setups", nargs="+", choices=list(SETUPS), default=list(SETUPS))
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--batch", type=int, default=256, help="most images in a forward pass of the evaluator")
    parser.add_argument("--explain-batch", type=int, default=64)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    timer = Timer(torch.device(args.device), args.repeats)
    results: dict[str, Any] = {"methods": NAMES}
    for setup in args.setups:
        results[setup] = measure(setup, args, timer)
        save_speed(args, results)


if __name__ == "__main__":
    main()
