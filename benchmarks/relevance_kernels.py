"""Time and kernels of the relevance methods, and how far their maps are from those of the plain path and of float64.

    python benchmarks/relevance_kernels.py --device cuda --out benchmarks/results/relevance-kernels-h200.json

- time: milliseconds an image in float32 with TF32 products, time of all kernels and number of launches, with and
  without ``VITRAIL_PLAIN=1``, which switches the Triton kernels of the rules off and every other fast path as well
  (recorded passes, products with attention that is never written)
- kernels: those that take most of the time on the fast path, printed only
- difference: largest difference of the maps in exact float32 products from those in float64, relative to their range,
  on the fast and on the plain path

Weights are random, which does not change the time. About 60 s on a GPU.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import warnings
from functools import partial
from typing import Any

import timm
import torch
from common import Timer, save_speed, speed_parser

import vitrail
from vitrail.fast import kernel_runs

METHODS = ["lrp", "partial_lrp", "transformer_attribution", "conservative_lrp", "attnlrp", "abslrp"]


def kernels(call: Any, device: torch.device) -> dict[str, tuple[float, int]]:
    """Milliseconds and launches of each kernel of a call, slowest first; on the CPU of each operator."""
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        call()
        if cuda:
            torch.cuda.synchronize(device)
    found = {}
    for event in seen.key_averages():
        spent = event.self_device_time_total if cuda else event.self_cpu_time_total
        if spent > 0:
            found[event.key] = (spent / 1e3, event.count)
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def short(name: str) -> str:
    """The part of a kernel's name that says what it computes."""
    name = re.sub(r"at::native::|\(anonymous namespace\)::|void |std::array<.*", "", name)
    return re.sub(r"cutlass::Kernel2<|::Params\)?|>\(int.*", "", name)[:110]


def measure(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Time, kernels and launches of one method on both paths."""
    device, row = torch.device(args.device), {}
    model = timm.create_model(args.model).to(device).eval()
    images = torch.randn(args.batch, 3, *model.patch_embed.img_size, device=device)
    call = partial(vitrail.explain, model, images, name, target=0)
    for path in ("plain", "fast"):
        os.environ["VITRAIL_PLAIN"] = "1" if path == "plain" else "0"
        call()
        milliseconds = Timer(device, args.repeats).median(call) * 1e3 / args.batch
        seen = kernels(call, device)
        spent, launches = sum(t for t, _ in seen.values()), sum(n for _, n in seen.values())
        peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        row[path] = {"ms_per_image": milliseconds, "kernel_ms": spent, "launches": launches, "peak_gib": peak}
        print(f"{name:26s}{path:6s} {milliseconds:7.3f} ms/image  kernels {spent:7.1f} ms  launches {launches:6d}  "
              f"peak {peak or 0:5.1f} GiB", flush=True)  # fmt: skip
    for kernel, (spent, count) in list(seen.items())[: args.rows]:
        print(f"    {spent:8.2f} ms {count:5d}  {short(kernel)}", flush=True)
    return row


def difference(args: argparse.Namespace, name: str) -> dict[str, float]:
    """Distance of float32 maps from those in float64, relative to their range."""
    device = torch.device(args.device)
    torch.manual_seed(0)
    model = timm.create_model(args.small).to(device).eval()
    images = torch.randn(2, 3, *model.patch_embed.img_size, device=device)
    maps = {}
    for path in ("fast", "plain"):
        os.environ["VITRAIL_PLAIN"] = "1" if path == "plain" else "0"
        maps[path] = vitrail.explain(model, images, name, target=0).grid.double()
    exact = vitrail.explain(model.double(), images.double(), name, target=0).grid
    span = exact.abs().amax()
    found = {f"{path} to float64": float((t - exact).abs().amax() / span) for path, t in maps.items()}
    found["fast to plain"] = float((maps["fast"] - maps["plain"]).abs().amax() / span)
    print(f"{name:26s}" + "  ".join(f"{k} {v:.1e}" for k, v in found.items()), flush=True)
    return found


def main() -> None:
    """Measure, and write results and manifest."""
    parser = speed_parser(__doc__, repeats=3)
    parser.add_argument("--small", default="vit_tiny_patch16_224", help="model of the comparison with float64")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16, help="kernels to print for each method")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.WARNING)
    results: dict[str, Any] = {"difference": {}, "time": {}}
    torch.set_float32_matmul_precision("highest")
    for name in args.methods:
        results["difference"][name] = difference(args, name)
    torch.set_float32_matmul_precision("high")
    for name in args.methods:
        results["time"][name] = measure(args, name)
        save_speed(args, results)  # after each method, so that an interrupted run keeps its results
    print("failed:", kernel_runs._failed or "none", flush=True)  # noqa: SLF001


if __name__ == "__main__":
    main()
