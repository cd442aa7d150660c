"""Speed and memory of six methods as ratios to passes of the bare model, measured in the same run.

    python benchmarks/speed.py --device cpu --batches 8 --out benchmarks/results/speed-cpu.json

Bare passes: "forward" is the fused model without gradients; "forward_backward" adds the gradient of one logit at all
parameters, as in training; "forward_input_gradient" freezes the parameters and computes the gradient at the image only,
the lower bound of a gradient method. Weights are random, which does not change the time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import timm
import torch
from common import Timer, add_ratios, bare_passes, save_speed, speed_parser

import vitrail
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure

SIX = ["raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"]


def profile(model: torch.nn.Module, images: torch.Tensor, timer: Timer) -> dict[str, float]:
    """Median seconds of each step of all six methods together."""
    model_inputs = ModelInputs((images,))
    structure = read_structure(model, model_inputs)
    registry = vitrail.methods()
    needs = [registry[name].needed(registry[name].options) for name in SIX]
    spent: dict[str, list[float]] = {}
    for _ in range(timer.repeats + 1):
        timer.sync()
        started = time.perf_counter()
        with forward_pass(model, model_inputs, structure, needs) as one:

            def lap(name: str) -> None:
                nonlocal started
                timer.sync()
                spent.setdefault(name, []).append(time.perf_counter() - started)
                started = time.perf_counter()

            lap("forward, opened")  # the key in committed results: the forward pass with explicit attention
            logit = one.trace(one.output[:, 0], keep_graph=True)
            lap("backward of the logit")
            prob = one.trace(one.output.softmax(-1)[:, 0])
            lap("backward of the probability")
            with torch.no_grad():
                for name in SIX:
                    registry[name].apply(prob if name == "vtranm" else logit, registry[name].options)
                    lap(name)
    return {name: statistics.median(taken[1:]) for name, taken in spent.items()}


def measure(args: argparse.Namespace, batch: int, dtype: torch.dtype) -> dict[str, Any]:
    """Times and ratios for one batch size and precision."""
    device = torch.device(args.device)
    model = timm.create_model(args.model).to(device, dtype).eval()
    images = torch.randn(batch, 3, 224, 224, device=device, dtype=dtype)
    timer = Timer(device, args.repeats)
    calls = bare_passes(model, images)
    calls["six together"] = lambda: vitrail.explain(model, images, methods=SIX, target=0)
    for name in args.alone:
        calls[name] = lambda name=name: vitrail.explain(model, images, name, target=0)
    rows = timer.compare(calls)
    print(f"batch {batch}, {dtype}")
    add_ratios(rows)
    steps = profile(model, images, timer)
    print("steps of six together: " + ", ".join(f"{k} {v * 1e3:.2f} ms" for k, v in steps.items()), flush=True)
    return {"batch": batch, "dtype": str(dtype), "rows": rows, "where_six_go_seconds": steps}


def main() -> None:
    """Measure, and write results and manifest."""
    parser = speed_parser(__doc__, repeats=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[8])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--alone", nargs="*", default=SIX, help="methods to measure alone as well")
    args = parser.parse_args()
    torch.manual_seed(0)
    save_speed(args, [measure(args, batch, getattr(torch, dtype)) for dtype in args.dtypes for batch in args.batches])


if __name__ == "__main__":
    main()
