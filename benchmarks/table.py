"""How long a paper's perturbation table takes: explaining and scoring, images a second, and 50,000 of them.

    python benchmarks/table.py --device cuda --out benchmarks/results/table-h200.json

All methods of a single pass (attention, gradient, relevance) and the controls explain the predicted and the true class
of synthetic pictures, each class once; the `chefer21` protocol removes the most and the least relevant pixels first.
Three set-ups: "converted" has the model in bfloat16 and lets relevance, which goes back to single precision, multiply
by TF32; "plan, tf32" and "plan, float32" are what `vitrail bench` does with `precision = "bfloat16"` and either
`matmul`: maps in single precision, forwards of the test under autocast. No files are read. Weights are random, so the
predicted class is seldom the label: labels are made to agree with the prediction in four pictures of five, as a trained
model's do.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from typing import Any

import timm
import torch
from clock import Clock, parser, save
from torch import Tensor

import vitrail
from vitrail.methods.registry import METHODS
from vitrail.scores.evaluator import Evaluator

METHODS_OF_A_PASS = [m.name for m in METHODS.values() if m.family in ("attention", "gradient", "relevance")]
CONTROLS = ["random", "centre", "edges"]
NAMES = [*METHODS_OF_A_PASS, *CONTROLS]
WHOLE = 50_000
#: By name: the model's precision, how single-precision matrices are multiplied, and the forwards of the test.
SETUPS: dict[str, tuple[torch.dtype, str, torch.dtype | None]] = {
    "converted": (torch.bfloat16, "high", None),
    "plan, tf32": (torch.float32, "high", torch.bfloat16),
    "plan, float32": (torch.float32, "highest", torch.bfloat16),
}


def measure(setup: str, args: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    """Seconds of explaining and of scoring in one of the set-ups."""
    dtype, products, cast = SETUPS[setup]
    torch.set_float32_matmul_precision(products)
    torch.manual_seed(0)
    model = timm.create_model(args.model).to(clock.device, dtype).eval()
    images = torch.randn(args.images, 3, 224, 224, device=clock.device, dtype=dtype)
    with torch.inference_mode():
        predicted = model(images).argmax(1)
    labels = torch.where(torch.arange(args.images, device=clock.device) % 5 == 0, (predicted + 1) % 1000, predicted)
    differ = (labels != predicted).nonzero()[:, 0]

    def maps(some: Tensor, classes: Tensor) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {name: [] for name in NAMES}
        for piece in some.split(args.explain_batch):
            found = vitrail.explain(model, images[piece], methods=NAMES, target=classes[piece, None])
            for name in NAMES:
                parts[name].append(found[name].maps[:, 0])
        return {name: torch.cat(own) for name, own in parts.items()}

    def explained() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        own = maps(torch.arange(args.images, device=clock.device), predicted)
        others = maps(differ, labels)
        return own, {name: own[name].index_copy(0, differ, others[name]) for name in NAMES}

    own, others = explained()
    evaluate = Evaluator(model, ["chefer21"], batch=args.batch, precision=cast)
    forwards = evaluate(images, own, labels=labels, label_maps=others).forwards.total / args.images
    spent: dict[str, list[float]] = {"explain": [], "score": []}
    for _ in range(args.repeats):
        spent["explain"].append(clock.once(explained))
        spent["score"].append(clock.once(lambda: evaluate(images, own, labels=labels, label_maps=others)))
    seconds = {name: statistics.median(taken) for name, taken in spent.items()}
    rate = args.images / sum(seconds.values())
    hours = WHOLE / rate / 3600
    print(f"{setup}: {len(NAMES)} methods, {forwards:.0f} forwards an image: {rate:.2f} images/s, {hours:.2f} h for "
          f"{WHOLE:,}; explaining {seconds['explain'] / sum(seconds.values()):.0%}", flush=True)  # fmt: skip
    return {"forwards_per_image": forwards, "seconds": seconds, "images_per_second": rate, "hours_for_50000": hours}


def main() -> None:
    """Measure and write the results with what is needed to repeat them."""
    options = parser(__doc__, repeats=3)
    options.add_argument("--setups", nargs="+", choices=list(SETUPS), default=list(SETUPS))
    options.add_argument("--images", type=int, default=320)
    options.add_argument("--batch", type=int, default=256, help="pictures in a forward pass of the evaluator")
    options.add_argument("--explain-batch", type=int, default=64)
    args = options.parse_args()
    warnings.simplefilter("ignore")
    clock = Clock(torch.device(args.device), args.repeats)
    results: dict[str, Any] = {"methods": NAMES}
    for setup in args.setups:
        results[setup] = measure(setup, args, clock)
        save(args, results)


if __name__ == "__main__":
    main()
