"""Speed and memory of explanations as ratios to the bare model's own passes, measured in the same run.

    python benchmarks/speed.py --device cpu --batches 8 --out benchmarks/results/speed-cpu.json

Bare passes: "forward" is the fused model without gradients; "forward_backward" adds the gradient of one logit at every
parameter, as training does; "forward_input_gradient" freezes the parameters and asks for the gradient at the image, the
least a gradient method could cost. Weights are random: they change no timing.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch

import vitrail
from vitrail.explanation import versions
from vitrail.inside.anatomy import read
from vitrail.inside.capture import passing
from vitrail.inside.feed import Feed

SIX = ["raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"]


class Clock:
    """Times calls and, on CUDA, the memory they take beyond what was there."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def once(self, call: Callable[[], Any]) -> float:
        """Seconds one call takes."""
        self.sync()
        started = time.perf_counter()
        result = call()
        self.sync()
        taken = time.perf_counter() - started
        del result
        return taken

    def peak(self, call: Callable[[], Any]) -> float | None:
        """Largest memory in use during a call beyond what was in use before, in MiB; None off CUDA."""
        if self.device.type != "cuda":
            return None
        self.sync()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        result = call()
        self.sync()
        peak = (torch.cuda.max_memory_allocated(self.device) - before) / 2**20
        del result
        return peak

    def compare(self, calls: dict[str, Callable[[], Any]]) -> dict[str, dict[str, Any]]:
        """Median time and peak memory of several calls, taken in turns so that noise falls on all alike."""
        for call in calls.values():
            call()
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.repeats):
            for name, call in calls.items():
                times[name].append(self.once(call))
        return {
            name: {
                "seconds": statistics.median(taken),
                "fastest": min(taken),
                "peak_mib": self.peak(calls[name]),
            }
            for name, taken in times.items()
        }


def bare_calls(model: torch.nn.Module, images: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """The model's own passes."""

    def forward() -> Any:
        with torch.no_grad():
            return model(images)

    def forward_backward() -> None:
        model(images)[:, 0].sum().backward()
        model.zero_grad(set_to_none=True)

    def forward_input_gradient() -> Any:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        pixels = images.detach().requires_grad_()
        found = torch.autograd.grad(model(pixels)[:, 0].sum(), pixels)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return found

    return {
        "bare forward": forward,
        "bare forward_backward": forward_backward,
        "bare forward_input_gradient": forward_input_gradient,
    }


def parts(model: torch.nn.Module, images: torch.Tensor, clock: Clock) -> dict[str, float]:
    """Where the time of all six together goes."""
    feed = Feed((images,))
    anatomy = read(model, feed)
    registry = vitrail.methods()
    needs = [registry[name].needed(registry[name].options) for name in SIX]
    spent: dict[str, list[float]] = {}
    for _ in range(clock.repeats + 1):
        clock.sync()
        started = time.perf_counter()
        with passing(model, feed, anatomy, needs) as one:

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--batches", type=int, nargs="+", default=[8])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alone", nargs="*", default=SIX, help="methods to measure by themselves as well")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    results = [measure(args, batch, getattr(torch, dtype)) for dtype in args.dtypes for batch in args.batches]
    cuda = torch.device(args.device).type == "cuda"
    manifest = {
        "model": args.model,
        "device": torch.cuda.get_device_name(0) if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
        "repeats": args.repeats,
        "statistic": "median of repeats taken in turns",
        "versions": versions(),
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"manifest": manifest, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
