"""Time and peak memory of methods on large inputs, against passes of the bare model measured in the same run.

    python benchmarks/large.py --device cuda --out benchmarks/results/large-h200.json

Each method is measured twice: "rows" computes products with attention row by row at every size, "plain" keeps the
matrices of all blocks (`VITRAIL_PLAIN=1`). The model is a ViT-L/14 with random weights, which do not change time or
memory. Results are written after each size; sizes that would start after ``--seconds`` are left out. ``--check N``
compares the maps of both at N tokens.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import timm
import torch
from common import Timer, add_ratios, bare_passes, save_speed, speed_parser
from torch import Tensor

import vitrail
from vitrail.capture import attention_storage
from vitrail.capture.structure import forget

METHODS = ["leadlight", "transformer_mm", "vtranm", "gradtoken"]
#: Precision, tokens and batch sizes, and ways.
RUNS = ["bfloat16:1370x8,197x64,197x1:rows,plain", "tf32:1370x8:rows,plain"]
PRECISIONS = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


@contextmanager
def way(name: str) -> Iterator[None]:
    """Compute row by row whatever the size, or keep matrices."""
    before = attention_storage.ROWWISE_FROM, attention_storage.mean_is_smaller
    os.environ["VITRAIL_PLAIN"] = "1" if name == "plain" else "0"
    attention_storage.ROWWISE_FROM, attention_storage.mean_is_smaller = {"half": 0, "other": 0}, lambda *_: False
    try:
        yield
    finally:
        attention_storage.ROWWISE_FROM, attention_storage.mean_is_smaller = before
        del os.environ["VITRAIL_PLAIN"]


def explaining(model: torch.nn.Module, images: Tensor, method: str, name: str) -> Callable[[], Any]:
    """A call that explains images in one way."""

    def call() -> Tensor:
        with way(name):
            return vitrail.explain(model, images, method, target=0).grid

    return call


def make_model(args: argparse.Namespace, precision: str) -> torch.nn.Module:
    """The model with random weights of a size at which attention is neither flat nor one-hot."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.manual_seed(0)
    with torch.device(args.device):
        model = timm.create_model(args.model, num_classes=1000, dynamic_img_size=True)
        for parameter in model.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
    return model.to(PRECISIONS[precision]).eval()


def images_of(args: argparse.Namespace, model: torch.nn.Module, tokens: int, batch: int) -> Tensor:
    """Random images of as many patches as give this number of tokens, with position embeddings of that size."""
    patch = model.patch_embed.patch_size[0]
    side = patch * round((tokens - 1) ** 0.5)
    model.set_input_size(img_size=side)
    weight = next(model.parameters())
    return torch.randn(batch, 3, side, side, device=args.device, dtype=weight.dtype)


def measure(
    args: argparse.Namespace, precision: str, model: torch.nn.Module, tokens: int, batch: int, ways: list[str]
) -> Any:
    """Times, ratios and peak memory for one size."""
    images = images_of(args, model, tokens, batch)
    timer = Timer(torch.device(args.device), args.repeats)
    calls = bare_passes(model, images)
    calls |= {f"{m} {name}": explaining(model, images, m, name) for m in args.methods for name in ways}
    failed, peaks = {}, {}
    for name, call in list(calls.items()):
        try:
            call()
            peaks[name] = timer.peak_mib(call)
        except torch.cuda.OutOfMemoryError:
            failed[name] = "out of memory"
            del calls[name]
            torch.cuda.empty_cache()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(timer.repeats):
        for name, call in calls.items():
            times[name].append(timer.seconds(call))
    rows = {n: {"seconds": median(t), "fastest": min(t), "peak_mib": peaks[n]} for n, t in times.items()}
    print(f"{precision}, {tokens} tokens, batch {batch}", flush=True)
    add_ratios(rows)
    if failed:
        print("out of memory: " + ", ".join(failed), flush=True)
    forget(model)
    first = timer.peak_mib(explaining(model, images, args.methods[0], "rows"))
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
    return {
        "precision": precision, "tokens": tokens, "batch": batch, "rows": rows, "failed": failed,
        "weights_mib": weights, "first_call_peak_mib": first,
    }  # fmt: skip


def compare_maps(args: argparse.Namespace, precision: str, model: torch.nn.Module, tokens: int) -> Any:
    """How far maps computed row by row are from those with matrices: largest difference over largest value."""
    images, found = images_of(args, model, tokens, 2), {}
    for method in args.methods:
        rows, plain = (explaining(model, images, method, name)().double().flatten(1) for name in ("rows", "plain"))
        difference = ((rows - plain).abs().amax(1) / plain.abs().amax(1).clamp_min(1e-300)).max()
        ranks = torch.stack([rows, plain]).argsort(-1).argsort(-1).double()
        ranks = ranks - ranks.mean(-1, keepdim=True)
        spearman = (ranks[0] * ranks[1]).sum(-1) / (ranks[0].norm(dim=-1) * ranks[1].norm(dim=-1))
        found[method] = {"difference": float(difference), "spearman": float(spearman.min())}
        print(f"{precision}, {tokens} tokens, {method}: {found[method]}", flush=True)
    return {"precision": precision, "tokens": tokens, "agreement": found}


def main() -> None:
    """Measure, and write results and manifest after each size."""
    parser = speed_parser(__doc__, repeats=3)
    parser.set_defaults(model="vit_large_patch14_dinov2")
    parser.add_argument("--runs", nargs="+", default=RUNS, help="precision:tokens x batch,…:way,…")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--check", type=int, default=0, help="compare the maps at this number of tokens")
    args = parser.parse_args()
    results: list[Any] = []
    started = time.perf_counter()
    known = model = None
    for run in args.runs:
        precision, sizes, ways = run.split(":")
        if precision != known:
            del model
            known, model = precision, make_model(args, precision)
            if args.check:
                results.append(compare_maps(args, precision, model, args.check))
                save_speed(args, results)
        for size in sizes.split(","):
            if time.perf_counter() - started > args.seconds:
                print(f"left out for lack of time: {precision} {size}", flush=True)
                continue
            tokens, batch = map(int, size.split("x"))
            results.append(measure(args, precision, model, tokens, batch, ways.split(",")))
            save_speed(args, results)
    print(f"{time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
