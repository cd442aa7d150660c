"""Shared by the benchmarks: timing, passes of the bare model, lists of methods, JSON results with a manifest."""

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

import torch
from torch import Tensor

from vitrail.methods.registry import METHODS
from vitrail.pipeline.provenance import versions

#: Attention and gradient methods, which share one forward pass.
SHARED_PASS_METHODS = [m.name for m in METHODS.values() if m.family in ("attention", "gradient")]
#: The same and the relevance methods, which take a pass of their own for each rule set.
SINGLE_PASS_METHODS = [m.name for m in METHODS.values() if m.family in ("attention", "gradient", "relevance")]


class Timer:
    """Measures the time of calls and, on CUDA, their peak memory."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def sync(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], Any]) -> float:
        """Time of one call in seconds."""
        self.sync()
        started = time.perf_counter()
        result = call()
        self.sync()
        taken = time.perf_counter() - started
        del result
        return taken

    def median(self, call: Callable[[], Any]) -> float:
        """Median time of repeated calls in seconds, after one warm-up call."""
        return statistics.median([self.seconds(call) for _ in range(self.repeats + 1)][1:])

    def peak_mib(self, call: Callable[[], Any]) -> float | None:
        """Peak memory of a call beyond what was in use before, in MiB; None off CUDA."""
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
        """Median time, fastest time and peak memory of several calls; repeats are interleaved."""
        for call in calls.values():
            call()
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(self.repeats):
            for name, call in calls.items():
                times[name].append(self.seconds(call))
        return {
            name: {
                "seconds": statistics.median(taken),
                "fastest": min(taken),
                "peak_mib": self.peak_mib(calls[name]),
            }
            for name, taken in times.items()
        }


def bare_passes(model: torch.nn.Module, images: Tensor) -> dict[str, Callable[[], Any]]:
    """Passes of the bare model: forward, gradient of one logit at all parameters, and at the image only."""

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
        gradient = torch.autograd.grad(model(pixels)[:, 0].sum(), pixels)
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        return gradient

    return {
        "bare forward": forward,
        "bare forward_backward": forward_backward,
        "bare forward_input_gradient": forward_input_gradient,
    }


def add_ratios(rows: dict[str, dict[str, Any]]) -> None:
    """Add the ratio of each call's time to those of `bare_passes`, and print the rows."""
    for name, row in rows.items():
        for bare in ("forward", "forward_backward", "forward_input_gradient"):
            row[f"over_{bare}"] = row["seconds"] / rows[f"bare {bare}"]["seconds"]
        print(f"{name:34s} {row['seconds'] * 1e3:9.2f} ms  ×F {row['over_forward']:6.2f}  ×F+B "
              f"{row['over_forward_backward']:6.2f}  ×F+Bx {row['over_forward_input_gradient']:6.2f}  peak "
              f"{(row['peak_mib'] or 0) / 1024:6.2f} GiB", flush=True)  # fmt: skip


def labels_with_errors(predicted: Tensor, classes: int = 1000) -> Tensor:
    """Labels that differ from the prediction for one image in five, about as often as those of a trained model."""
    wrong = torch.arange(len(predicted), device=predicted.device) % 5 == 0
    return torch.where(wrong, (predicted + 1) % classes, predicted)


def speed_parser(description: str | None, repeats: int) -> argparse.ArgumentParser:
    """Argument parser with the options of every speed benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="vit_base_patch16_224")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--out", type=Path, default=None)
    return parser


def device_name(device: str) -> str:
    """Name of the GPU, or the device as given."""
    return torch.cuda.get_device_name(0) if torch.device(device).type == "cuda" else device


def save_speed(args: argparse.Namespace, results: Any) -> None:
    """Write the results of a speed benchmark with its options and versions, if ``--out`` is given."""
    cuda = torch.device(args.device).type == "cuda"
    manifest = {k: v for k, v in vars(args).items() if k not in ("out", "device")} | {
        "device": device_name(args.device) if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
        "statistic": "median of interleaved repeats",
        "versions": versions(),
    }
    save_json(args.out, {"manifest": manifest, "results": results})


def save_json(path: Path | None, content: Any) -> None:
    """Write JSON, and make its folder; without a path, do nothing."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
