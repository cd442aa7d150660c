"""Float32 matrix products from float16 products: their error, and what methods cost with and without them.

    python benchmarks/split_products.py --device cuda --out benchmarks/results/split-products-h200.json

- products: error against float64 and time of single linear maps, for float32, TF32 and split products
- maps: rank correlation and largest difference to maps in float64, ViT-Tiny, float32 with and without split products;
  here every linear map is split
- calls: time with and without, ViT-B/16; integrated gradients also against Captum where it is installed

"plain" switches split products off only (``VITRAIL_SPLIT_PRODUCTS=0``). Weights are random unless a file is given.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import timm
import torch
import torch.nn.functional as F
from common import Timer, bare_passes, save_speed, speed_parser
from torch import Tensor

import vitrail
from vitrail.fast import split_products
from vitrail.fast.split_products import SWITCH, split_linear
from vitrail.scores.agreement import spearman

SHAPES = [(768, 2304), (768, 768), (768, 3072), (3072, 768), (192, 768)]
SHARED = ["raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"]
COMPARED = ["integrated_gradients", "smoothgrad", "transformer_mm", "vtranm", "gradtoken", "leadlight", "occlusion"]


@contextmanager
def without_split() -> Iterator[None]:
    """Switch split products off."""
    os.environ[SWITCH] = "0"
    try:
        yield
    finally:
        del os.environ[SWITCH]


@contextmanager
def every_map() -> Iterator[None]:
    """Split linear maps of any size: those of a small model too."""
    before, split_products.FEWEST_PRODUCTS = split_products.FEWEST_PRODUCTS, 1
    try:
        yield
    finally:
        split_products.FEWEST_PRODUCTS = before


def off(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same call without split products."""

    def run() -> Any:
        with without_split():
            return call()

    return run


def measure_products(args: argparse.Namespace, timer: Timer) -> list[dict[str, Any]]:
    """Errors and times of linear maps of 50 images."""
    found = []
    for k, n in SHAPES:
        x, w = torch.randn(50 * 197, k, device=args.device), torch.randn(n, k, device=args.device) / k**0.5
        x[:, : k // 16] *= 30  # some channels are much larger than others
        b = torch.randn(n, device=args.device)
        exact = F.linear(x.double(), w.double(), b.double())
        row: dict[str, Any] = {"in": k, "out": n}
        ways: dict[str, Callable[..., Tensor]] = {"float32": F.linear, "tf32": F.linear}
        if x.is_cuda:
            ways["split"] = split_linear
        for name, call in ways.items():
            torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
            error = (call(x, w, b).double() - exact).abs()
            row[name] = {
                "ms": 1e3 * timer.median(partial(call, x, w, b)),
                "largest_error": float(error.max() / exact.abs().max()),
                "mean_error": float(error.mean() / exact.abs().mean()),
            }
        torch.set_float32_matmul_precision("highest")
        print(k, n, {name: {a: f"{v:.2e}" for a, v in row[name].items()} for name in ways},
              flush=True)  # fmt: skip
        found.append(row)
    return found


def measure_maps(args: argparse.Namespace) -> dict[str, Any]:
    """Maps in float32, with and without, against float64."""
    model = timm.create_model(args.small, pretrained=False).eval()
    if args.weights:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(args.weights))
    model = model.to(args.device)
    images = torch.randn(16, 3, 224, 224, device=args.device)
    found: dict[str, Any] = {}
    for name in COMPARED:

        def grids(own: torch.nn.Module, dtype: torch.dtype, name: str = name) -> Tensor:
            return vitrail.explain(own, images.to(dtype), name, target=0).grid.double()

        with every_map():
            split = grids(model, torch.float32)
        with without_split():
            plain = grids(model, torch.float32)
        exact = grids(model.double(), torch.float64)
        model = model.float()
        span = exact.abs().amax((-2, -1), keepdim=True)
        row = {
            label: {
                "largest_difference": float(((grid - exact) / span).abs().max()),
                "rank_correlation": float(spearman(grid.flatten(2).cpu(), exact.flatten(2).cpu()).mean()),
            }
            for label, grid in (("split", split), ("plain", plain))
        }
        found[name] = row
        print(name, row, flush=True)
    return found


def measure_calls(args: argparse.Namespace, timer: Timer) -> dict[str, Any]:
    """Calls with and without."""
    model = timm.create_model(args.model).to(args.device).eval()
    one = torch.randn(1, 3, 224, 224, device=args.device)
    many = torch.randn(args.batch, 3, 224, 224, device=args.device)
    bare = bare_passes(model, many)
    calls: dict[str, Callable[[], Any]] = {
        "F": bare["bare forward"],
        "F+B": bare["bare forward_backward"],
        "six together": lambda: vitrail.explain(model, many, methods=SHARED, target=0),
        "transformer_mm": lambda: vitrail.explain(model, many, "transformer_mm", target=0),
        "leadlight": lambda: vitrail.explain(model, many, "leadlight", target=0),
        "integrated_gradients, one image": lambda: vitrail.explain(model, one, "integrated_gradients", target=0),
        "scorecam, one image": lambda: vitrail.explain(model, one, "scorecam", target=0),
        "rise, one image, 512 masks": lambda: vitrail.explain(model, one, "rise", target=0, masks=512, seed=0),
    }
    for name in [name for name in calls if name not in ("F", "F+B")]:
        calls[f"{name}, plain"] = off(calls[name])
    if find_spec("captum") is not None:
        from captum.attr import IntegratedGradients

        captum = IntegratedGradients(model)
        calls["Captum, one image"] = lambda: captum.attribute(one.clone().requires_grad_(), target=0, n_steps=50)
    rows = timer.compare(calls)
    for name, row in rows.items():
        row["over F+B"] = row["seconds"] / rows["F+B"]["seconds"]
        print(f"{name:44s} {1e3 * row['seconds']:9.2f} ms  × F+B {row['over F+B']:6.2f}", flush=True)
    if "Captum, one image" in rows:
        ratio = rows["integrated_gradients, one image"]["seconds"] / rows["Captum, one image"]["seconds"]
        rows["integrated_gradients, one image"]["over Captum"] = ratio
        print(f"integrated gradients over Captum: {ratio:.3f}", flush=True)
    return rows


def main() -> None:
    """Measure, and write results and manifest."""
    parser = speed_parser(__doc__, repeats=5)
    parser.add_argument("--small", default="vit_tiny_patch16_224", help="model of the comparison of maps")
    parser.add_argument("--weights", default=None, help="its weights, a safetensors file")
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    timer = Timer(torch.device(args.device), args.repeats)
    results: dict[str, Any] = {"products": measure_products(args, timer)}
    save_speed(args, results)
    results["maps"] = measure_maps(args)
    save_speed(args, results)
    results["calls"] = measure_calls(args, timer)
    save_speed(args, results)


if __name__ == "__main__":
    main()
