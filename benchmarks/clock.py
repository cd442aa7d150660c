"""What benchmarks share: a clock, the bare model's own passes, and results with what it takes to repeat them."""

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

from vitrail.explanation import versions


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


def parser(text: str | None, repeats: int) -> argparse.ArgumentParser:
    """Options that every measurement of speed takes."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cpu")
    made.add_argument("--model", default="vit_base_patch16_224")
    made.add_argument("--repeats", type=int, default=repeats)
    made.add_argument("--out", type=Path, default=None)
    return made


def save(args: argparse.Namespace, results: Any) -> None:
    """Write the results with every option and the versions, if there is a place to write them to."""
    if not args.out:
        return
    cuda = torch.device(args.device).type == "cuda"
    manifest = {k: v for k, v in vars(args).items() if k not in ("out", "device")} | {
        "device": torch.cuda.get_device_name(0) if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
        "statistic": "median of repeats taken in turns",
        "versions": versions(),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"manifest": manifest, "results": results}, indent=1) + "\n", encoding="utf-8")
