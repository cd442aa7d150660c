"""Shared by the benchmarks: the run, models, passes of the bare model, interleaved timing, profiles, results."""

from __future__ import annotations

import gc
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from vitrail.methods.registry import METHODS
from vitrail.pipeline.provenance import versions

Calls = dict[str, Callable[[], Any]]
Rows = dict[str, dict[str, Any]]
#: Attention and gradient methods, which share one forward pass.
SHARED_PASS_METHODS = tuple(m.name for m in METHODS.values() if m.family in ("attention", "gradient"))
#: The same and the relevance methods, which take a pass of their own for each rule set.
SINGLE_PASS_METHODS = tuple(m.name for m in METHODS.values() if m.family in ("attention", "gradient", "relevance"))
SIX = ("raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken")
BASE, TINY, LARGE = "vit_base_patch16_224", "vit_tiny_patch16_224", "vit_large_patch14_dinov2"
#: Precision of the model and of float32 matrix products on a GPU.
PRECISIONS = {
    "float64": (torch.float64, "highest"), "float32": (torch.float32, "highest"), "tf32": (torch.float32, "high"),
    "bfloat16": (torch.bfloat16, "highest"), "bfloat16+tf32": (torch.bfloat16, "high"),
}  # fmt: skip
#: By its short name, a pass of the bare model that ratios refer to.
BARE = {"F": "forward", "F+B": "forward_backward", "F+Bx": "forward_input_gradient"}


@dataclass
class Run:
    """Options of the command line that all cases share.

    Attributes:
        device: Where models run.
        repeats: Interleaved measurements of each call; None for the number of the case.
        tiny: Use a model of three blocks and small numbers, to rehearse a case.
        profile: Also print the kernels and Python functions that take most of the time of each call.
        assets: Folder with ``weights`` and ``imagenet``.
        save: Called with results while a case is under way, so that an interrupted run keeps them.
    """

    device: torch.device
    repeats: int | None = None
    tiny: bool = False
    profile: bool = False
    assets: Path | None = None
    save: Callable[[Any], None] = field(default=lambda _: None)

    def count(self, number: int, tiny: int = 2) -> int:
        """A number of images or repeats, or a small one for a rehearsal."""
        return min(number, tiny) if self.tiny else number

    def timer(self, repeats: int) -> Timer:
        """Timer with the repeats of the case, of the command line, or of a rehearsal."""
        return Timer(self.device, self.repeats or self.count(repeats, 1))

    def model(self, name: str = BASE, precision: str = "float32", tokens: int | None = None) -> nn.Module:
        """A timm model with random weights, which do not change time or memory; sets the precision of products.

        With a number of tokens, the model takes images of that size, and noise on its weights keeps attention from
        being constant.
        """
        dtype, matmul = PRECISIONS[precision]
        torch.set_float32_matmul_precision(matmul)
        torch.manual_seed(0)
        options: dict[str, Any] = {"num_classes": 1000} | ({"dynamic_img_size": True} if tokens else {})
        if self.tiny:
            name = TINY
            options |= {"embed_dim": 24, "depth": 3, "num_heads": 3, "img_size": 32, "patch_size": 8}
        with self.device:
            model = timm.create_model(name, **options)
        if tokens:
            model.set_input_size(img_size=model.patch_embed.patch_size[0] * round((tokens - 1) ** 0.5))
        for parameter in model.parameters() if tokens else ():
            parameter.data += 0.02 * torch.randn_like(parameter)
        return model.to(self.device, dtype).eval()

    def images(self, model: nn.Module, count: int) -> Tensor:
        """Random images of the model's size and precision."""
        weight = next(model.parameters())
        return torch.randn(count, 3, *model.patch_embed.img_size, device=self.device, dtype=weight.dtype)


@dataclass(frozen=True)
class Prepared:
    """A call of something that is prepared anew each time, which is not part of its time or peak memory.

    Attributes:
        prepare: Returns what is called with.
        call: The measured call.
    """

    prepare: Callable[[], Any]
    call: Callable[[Any], Any]

    def __call__(self) -> Any:
        """Prepare and call."""
        return self.call(self.prepare())


def prepared(call: Callable[[], Any]) -> Callable[[], Any]:
    """What is to be measured of a call, after its preparation."""
    return partial(call.call, call.prepare()) if isinstance(call, Prepared) else call


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
        call = prepared(call)
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
        call = prepared(call)
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

    def compare(
        self, calls: Calls, first: Callable[[str], Any] | None = None, limit: float = inf
    ) -> tuple[Rows, dict[str, str]]:
        """Median and fastest time and peak memory of calls, repeats interleaved; and why calls failed.

        Each call runs twice before: the first reads the model, the second may record the pass.

        Args:
            calls: The calls by name.
            first: Runs the call of a name for the first time; None to run it as it is.
            limit: A call that takes more seconds than this the first time runs only once more.
        """
        failed: dict[str, str] = {}
        repeats = dict.fromkeys(calls, self.repeats)
        for name, call in calls.items():
            try:
                taken = self.seconds(call if first is None else partial(first, name))
                if taken > limit:
                    repeats[name] = 1
                else:
                    call()
            except Exception as error:  # noqa: BLE001 - the failure of one method does not end the run
                failed[name] = repr(error)[:300]
                print(f"{name} failed: {failed[name]}", flush=True)
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
        working = {name: call for name, call in calls.items() if name not in failed}
        times: dict[str, list[float]] = {name: [] for name in working}
        for i in range(self.repeats):
            for name, call in working.items():
                if i < repeats[name]:
                    times[name].append(self.seconds(call))
        rows: Rows = {}
        for name, own in times.items():
            peak = self.peak_mib(working[name]) if repeats[name] == self.repeats else None
            rows[name] = {"seconds": statistics.median(own), "fastest": min(own), "peak_mib": peak}
        return rows, failed


def bare_passes(model: nn.Module, images: Tensor) -> Calls:
    """Passes of the bare model: forward, gradient of one logit at all parameters, and at the image only."""

    def forward() -> Any:
        with torch.no_grad():
            return model(images)

    def forward_backward() -> None:
        model(images)[:, 0].sum().backward()
        model.zero_grad(set_to_none=True)

    def forward_input_gradient() -> Any:
        model.requires_grad_(False)
        pixels = images.detach().requires_grad_()
        gradient = torch.autograd.grad(model(pixels)[:, 0].sum(), pixels)
        model.requires_grad_(True)
        return gradient

    passes = {"F": forward, "F+B": forward_backward, "F+Bx": forward_input_gradient}
    return {f"bare {BARE[short]}": call for short, call in passes.items()}


def add_ratios(rows: Rows, references: Mapping[str, str]) -> None:
    """Add ``over_KEY``, the ratio of each row's time to that of a reference row, and print the rows."""
    for name, row in rows.items():
        for key, reference in references.items():
            row[f"over_{key}"] = row["seconds"] / rows[reference]["seconds"]
        ratios = "  ".join(f"×{key} {row[f'over_{key}']:6.2f}" for key in references)
        peak = "" if row["peak_mib"] is None else f"  peak {row['peak_mib'] / 1024:6.2f} GiB"
        print(f"{name:44s} {row['seconds'] * 1e3:9.2f} ms  {ratios}{peak}", flush=True)


def profile_call(call: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """Milliseconds of kernels and their number, by a profile of one call; on the CPU, of operators.

    ``before_ms`` is the time from the call to its first kernel, ``after_ms`` from its last kernel to the return, and
    ``idle_ms`` the time between in which no kernel runs. ``kernels`` has the ten that take longest.
    """
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        began = time.time_ns()
        call()
        if cuda:
            torch.cuda.synchronize(device)
        ended = time.time_ns()
    events = sorted((e.start_ns(), e.start_ns() + e.duration_ns(), e.name())
                    for e in seen.profiler.kineto_results.events()
                    if ("cuda" in str(e.device_type()).lower()) == cuda)  # fmt: skip
    busy, end = 0, 0
    by_name: dict[str, int] = {}
    for start, stop, name in events:
        by_name[name] = by_name.get(name, 0) + stop - start
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
    longest = sorted(by_name.items(), key=lambda item: -item[1])[:10]
    first = events[0][0] if events else began
    return {
        "kernel_ms": sum(by_name.values()) / 1e6, "launches": len(events), "before_ms": (first - began) / 1e6,
        "idle_ms": (end - first - busy) / 1e6 if events else 0.0, "after_ms": (ended - end) / 1e6 if events else 0.0,
        "kernels": {name[:110]: spent / 1e6 for name, spent in longest},
    }  # fmt: skip


def print_profile(name: str, call: Callable[[], Any], device: torch.device) -> None:
    """Print the longest kernels of a call, and the Python functions that take most of its time."""
    import cProfile
    import pstats

    found = profile_call(call, device)
    print(f"== {name}: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items() if k != "kernels"))
    for kernel, spent in found["kernels"].items():
        print(f"    {spent:8.2f} ms  {kernel}")
    profiler = cProfile.Profile()
    profiler.runcall(call)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(15)


def labels_with_errors(predicted: Tensor, classes: int = 1000) -> Tensor:
    """Labels that differ from the prediction for one image in five, about as often as those of a trained model."""
    wrong = torch.arange(len(predicted), device=predicted.device) % 5 == 0
    return torch.where(wrong, (predicted + 1) % classes, predicted)


def device_label(device: torch.device) -> str:
    """Short name of a device for file names: "cpu", or that of the GPU, such as "h200"."""
    if device.type != "cuda":
        return device.type
    return re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(device).lower()).split("nvidia-")[-1].split("-")[0]


def save_results(path: Path | None, run: Run, settings: Mapping[str, Any], results: Any) -> None:
    """Write results with a manifest: settings of the case, device, versions, load of the machine."""
    if path is None:
        return
    cuda = run.device.type == "cuda"
    manifest = {
        **settings, "repeats": run.repeats, "tiny": run.tiny,
        "device": torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "system": platform.system(),
        "statistic": "median of interleaved repeats", "versions": versions(),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"manifest": manifest, "results": results}
    path.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")


def parse_value(text: str, default: Any) -> Any:
    """A setting given as text, of the type of its default; tuples are separated by semicolons or commas."""
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "yes")
    if isinstance(default, tuple):
        parts: Sequence[str] = text.split(";") if ";" in text else text.split(",")
        return tuple(parse_value(part, default[0] if default else "") for part in parts if part)
    return text if default is None else type(default)(text)
