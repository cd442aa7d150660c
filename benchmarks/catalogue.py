"""Cost of all methods as ratios to passes of the bare model, measured in the same run.

    python benchmarks/catalogue.py --device cuda --out benchmarks/results/catalogue-h200.json

- single: attention and gradient methods together, and each rule set of relevance alone, over one forward and backward
  pass (gradient of one logit at all parameters).
- vit_cx: time of ViT-CX on top of its own 2K + 1 forward passes.
- rise: share of the model's throughput that RISE with 4,000 masks reaches, and its memory.

Weights are random. This changes only the number of ViT-CX's masks, so its threshold is searched for the number of a
trained model (63 on average in the paper, for ViT-B/16).
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import timm
import torch
from common import SHARED_PASS_METHODS, Timer, add_ratios, bare_passes, save_speed, speed_parser

import vitrail

RULE_SETS = {
    "orig": ["lrp", "partial_lrp"],
    "ours": ["transformer_attribution"],
    "conservative": ["conservative_lrp"],
    "attnlrp": ["attnlrp"],
    "abslrp": ["abslrp"],
}
RISE_MASKS = 4000
#: Number of ViT-CX's masks per image of a trained model.
VIT_CX_MASKS = 63


def measure_single_pass(model: torch.nn.Module, timer: Timer, batch: int) -> dict[str, Any]:
    """Attention and gradient methods together, and each rule set alone, over passes of the bare model."""
    images = torch.randn(batch, 3, 224, 224, device=timer.device)
    calls = bare_passes(model, images)
    every = [*SHARED_PASS_METHODS, *(name for names in RULE_SETS.values() for name in names)]
    groups = {"attention and gradient together": SHARED_PASS_METHODS, **RULE_SETS, "all together": every}
    for label, names in groups.items():
        calls[label] = lambda names=names: vitrail.explain(model, images, methods=names, target=0)
    rows = timer.compare(calls)
    print(f"batch {batch}")
    add_ratios(rows)
    return {"batch": batch, "methods": len(every), "rows": rows}


def measure_vit_cx(model: torch.nn.Module, timer: Timer, batch: int, most: int) -> dict[str, Any]:
    """ViT-CX over its own 2K + 1 forward passes per image, in batches of the same size."""
    images = torch.randn(batch, 3, 224, 224, device=timer.device)
    low, high = 0.01, 0.3  # thresholds with more and with fewer masks
    for _ in range(12):
        delta = (low + high) / 2
        found = vitrail.explain(model, images, "vit_cx", delta=delta, target=0, keep=True, batch_size=most)
        counts = [int(k) for k in found.intermediates["count"][0]]
        if abs(sum(counts) / batch - VIT_CX_MASKS) <= 3:
            break
        low, high = (delta, high) if sum(counts) / batch > VIT_CX_MASKS else (low, delta)

    def forwards() -> None:
        with torch.inference_mode():
            for count in counts:
                model(images[:1])
                for start in range(0, count, most):
                    masked = torch.empty(min(most, count - start), 3, 224, 224, device=timer.device).normal_()
                    model(masked)
                    model(masked)

    rows = timer.compare(
        {
            "its forwards alone": forwards,
            "vit_cx": lambda: vitrail.explain(model, images, "vit_cx", delta=delta, target=0, batch_size=most),
        }
    )
    overhead = rows["vit_cx"]["seconds"] / rows["its forwards alone"]["seconds"] - 1
    print(f"vit_cx, {batch} images, batches of {most}, masks {counts}: {100 * overhead:.1f} % over its forward passes")
    return {"batch": batch, "most": most, "delta": delta, "masks": counts, "on_top": overhead, "rows": rows}


def measure_rise(model: torch.nn.Module, timer: Timer, most: int, converted: bool) -> dict[str, Any]:
    """RISE for one image over the bare model's inference in bfloat16, converted or under autocast."""
    dtype = torch.bfloat16 if converted else torch.float32
    model = model.to(dtype)
    batch = torch.randn(most, 3, 224, 224, device=timer.device, dtype=dtype)

    def bare() -> None:
        with torch.inference_mode(), torch.autocast(timer.device.type, torch.bfloat16, enabled=not converted):
            for start in range(0, RISE_MASKS, most):
                model(batch[: min(most, RISE_MASKS - start)])

    precision = {} if converted else {"precision": "bfloat16"}
    rows = timer.compare({
        "bare model": bare,
        "rise": lambda: vitrail.explain(
            model, batch[:1], "rise", masks=RISE_MASKS, batch_size=most, target=0, **precision
        ),
    })  # fmt: skip
    ratio = rows["bare model"]["seconds"] / rows["rise"]["seconds"]
    print(f"rise, batches of {most}, {'converted' if converted else 'autocast'}: {ratio:.3f} of the throughput, "
          f"peak {(rows['rise']['peak_mib'] or 0) / 1024:.2f} GiB", flush=True)  # fmt: skip
    return {"most": most, "converted": converted, "throughput": ratio, "masks": RISE_MASKS, "rows": rows}


def main() -> None:
    """Measure, and write results and manifest."""
    parser = speed_parser(__doc__, repeats=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 64], help="batch sizes of single")
    parser.add_argument("--most", type=int, nargs="+", default=[64, 128], help="batch sizes of vit_cx and rise")
    parser.add_argument(
        "--parts", nargs="+", choices=["single", "vit_cx", "rise"], default=["single", "vit_cx", "rise"]
    )
    args: argparse.Namespace = parser.parse_args()
    torch.manual_seed(0)
    timer = Timer(torch.device(args.device), args.repeats)
    model = timm.create_model(args.model).to(args.device).eval()
    results: dict[str, list[dict[str, Any]]] = {"single": [], "vit_cx": [], "rise": []}

    def keep(part: str, row: dict[str, Any]) -> None:
        results[part].append(row)
        save_speed(args, results)  # after each, so that an interrupted run keeps its results

    for batch in args.batches if "single" in args.parts else ():
        keep("single", measure_single_pass(model, timer, batch))
    for batch, most in product((1, 4), args.most if "vit_cx" in args.parts else ()):
        keep("vit_cx", measure_vit_cx(model, timer, batch, most))
    for converted, most in product((False, True), args.most if "rise" in args.parts else ()):
        keep("rise", measure_rise(model, timer, most, converted))


if __name__ == "__main__":
    main()
