"""Throughput of the perturbation evaluator as a ratio to the bare model's inference, measured in the same run.

    python benchmarks/evaluator.py --device cuda --out benchmarks/results/evaluator-h200.json

Maps are given, so ranking, masking, forward passes and records are measured. The bare model runs on the same number of
images, in batches of the same size that are already on the device. "bfloat16" converts the model; "autocast" leaves it
in float32 and runs both under autocast. Weights and maps are random, which does not change the time. One image in five
has a label that differs from the prediction and needs maps of both classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import timm
import torch
from common import Timer, labels_with_errors, save_speed, speed_parser

from vitrail.scores import Evaluator, rank


def run_bare(
    model: torch.nn.Module, images: torch.Tensor, count: int, batch: int, autocast: torch.dtype | None
) -> None:
    """Run the bare model on ``count`` images."""
    context = nullcontext() if autocast is None else torch.autocast(images.device.type, autocast)
    with torch.inference_mode(), context:
        for start in range(0, count, batch):
            model(images[: min(batch, count - start)])


def measure(args: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Throughput in one precision."""
    device = torch.device(args.device)
    autocast = torch.bfloat16 if precision == "autocast" else None
    dtype = torch.float32 if precision in ("autocast", "float32") else getattr(torch, precision)
    model = timm.create_model(args.model, num_classes=1000).to(device, dtype).eval()
    side = model.patch_embed.img_size[0]
    images = torch.randn(max(args.images, args.batch), 3, side, side, device=device, dtype=dtype)
    evaluated = images[: args.images]
    with torch.inference_mode():
        predicted = torch.cat([model(part).argmax(1) for part in evaluated.split(args.batch)])
    labels = labels_with_errors(predicted)
    specific, specific_label, agnostic = torch.rand(3, args.images, side, side, device=device).unbind(0)
    maps = {"class-specific": specific, "class-agnostic": agnostic}
    label_maps = {"class-specific": specific_label, "class-agnostic": agnostic}
    evaluate = Evaluator(model, args.presets, batch=args.batch, precision=autocast)

    def run() -> Any:
        return evaluate(evaluated, maps, labels=labels, label_maps=label_maps)

    count = run().forwards.total
    timer = Timer(device, args.repeats)
    calls: dict[str, Callable[[], Any]] = {
        "bare model": lambda: run_bare(model, images, count, args.batch, autocast),
        "evaluator": run,
        "ranking one method": lambda: rank(specific),
    }
    rows = timer.compare(calls)
    for name in ("bare model", "evaluator"):
        rows[name]["pictures_per_second"] = count / rows[name]["seconds"]
    ratio = rows["bare model"]["seconds"] / rows["evaluator"]["seconds"]
    fastest = rows["bare model"]["fastest"] / rows["evaluator"]["fastest"]
    print(f"{precision:10s} bare {rows['bare model']['pictures_per_second']:9.1f} images/s  evaluator "
          f"{rows['evaluator']['pictures_per_second']:9.1f} images/s  ratio {ratio:.3f} (fastest {fastest:.3f})  "
          f"ranking {rows['ranking one method']['seconds'] * 1e3:.2f} ms", flush=True)  # fmt: skip
    return {"precision": precision, "pictures": count, "rows": rows, "ratio": ratio, "ratio_fastest": fastest}


def main() -> None:
    """Measure, and write results and manifest."""
    parser = speed_parser(__doc__, repeats=3)
    parser.add_argument("--presets", nargs="+", default=["chefer21"])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "autocast"])
    args = parser.parse_args()
    torch.manual_seed(0)
    save_speed(args, [measure(args, precision) for precision in args.precisions])


if __name__ == "__main__":
    main()
