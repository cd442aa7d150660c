"""Speed and memory of explanations as ratios to the bare model's own passes, measured in the same run.

    python benchmarks/speed.py --device cpu --batches 8 --out benchmarks/results/speed-cpu.json

Bare passes: "forward" is the fused model without gradients; "forward_backward" adds the gradient of one logit at every
parameter, as training does; "forward_input_gradient" freezes the parameters and asks for the gradient at the image, the
least a gradient method could cost. Weights are random: they change no timing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import timm
import torch
from clock import Clock, bare_calls, parser, save

import vitrail
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure

SIX = ["raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"]


def parts(model: torch.nn.Module, images: torch.Tensor, clock: Clock) -> dict[str, float]:
    """Where the time of all six together goes."""
    model_inputs = ModelInputs((images,))
    structure = read_structure(model, model_inputs)
    registry = vitrail.methods()
    needs = [registry[name].needed(registry[name].options) for name in SIX]
    spent: dict[str, list[float]] = {}
    for _ in range(clock.repeats + 1):
        clock.sync()
        started = time.perf_counter()
        with forward_pass(model, model_inputs, structure, needs) as one:

            def lap(name: str) -> None:
                nonlocal started
                clock.sync()
                spent.setdefault(name, []).append(time.perf_counter() - started)
                started = time.perf_counter()

            lap("forward, opened")
            logit = one.trace(one.output[:, 0], keep_graph=True)
            lap("backward of the logit")
            prob = one.trace(one.output.softmax(-1)[:, 0])
            lap("backward of the probability")
            with torch.no_grad():
                for name in SIX:
                    registry[name].apply([prob if name == "vtranm" else logit], registry[name].options)
                    lap(name)
    return {name: statistics.median(taken[1:]) for name, taken in spent.items()}


def measure(args: argparse.Namespace, batch: int, dtype: torch.dtype) -> dict[str, Any]:
    """All figures for one batch size and precision."""
    device = torch.device(args.device)
    model = timm.create_model(args.model).to(device, dtype).eval()
    images = torch.randn(batch, 3, 224, 224, device=device, dtype=dtype)
    clock = Clock(device, args.repeats)
    calls = bare_calls(model, images)
    calls["six together"] = lambda: vitrail.explain(model, images, methods=SIX, target=0)
    for name in args.alone:
        calls[name] = lambda name=name: vitrail.explain(model, images, name, target=0)
    found = clock.compare(calls)
    forward = found["bare forward"]["seconds"]
    both = found["bare forward_backward"]["seconds"]
    least = found["bare forward_input_gradient"]["seconds"]
    for name, row in found.items():
        row["over_forward"] = row["seconds"] / forward
        row["over_forward_backward"] = row["seconds"] / both
        row["over_forward_input_gradient"] = row["seconds"] / least
        print(f"{batch:4d} {dtype!s:15s} {name:28s} {row['seconds'] * 1e3:9.2f} ms  ×F {row['over_forward']:5.2f}"
              f"  ×FB {row['over_forward_backward']:5.2f}  ×FBx {row['over_forward_input_gradient']:5.2f}"
              f"  peak {row['peak_mib'] or 0:8.1f} MiB", flush=True)  # fmt: skip
    spent = parts(model, images, clock)
    print("     where six go: " + ", ".join(f"{k} {v * 1e3:.2f} ms" for k, v in spent.items()), flush=True)
    return {"batch": batch, "dtype": str(dtype), "rows": found, "where_six_go_seconds": spent}


def main() -> None:
    """Measure and write the results with what is needed to repeat them."""
    options = parser(__doc__, repeats=5)
    options.add_argument("--batches", type=int, nargs="+", default=[8])
    options.add_argument("--dtypes", nargs="+", default=["float32"])
    options.add_argument("--alone", nargs="*", default=SIX, help="methods to measure by themselves as well")
    args = options.parse_args()
    torch.manual_seed(0)
    save(args, [measure(args, batch, getattr(torch, dtype)) for dtype in args.dtypes for batch in args.batches])


if __name__ == "__main__":
    main()
