"""How far maps move with the precision they are made in: rank correlation with maps in double precision.

    python benchmarks/precision.py --weights vit_tiny_patch16_224.safetensors --images IMAGENET --device cuda \
        --out benchmarks/results/precision-h200.json

Every method of a single pass explains the predicted class of the same pictures with one model in float64, in float32,
in float32 with products by TF32 (a GPU's only), and with weights and activations in bfloat16 (without and with TF32
where a method goes back to single precision, as relevance does). Reported is the mean over pictures of Spearman's
correlation between grids, and its lowest tenth.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from table import METHODS_OF_A_PASS
from torch import Tensor

import vitrail
from vitrail.data import ImageNet
from vitrail.explanation import versions

#: By name: the model's precision, and how torch multiplies single-precision matrices on a GPU.
KINDS: dict[str, tuple[torch.dtype, str]] = {
    "float32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "bfloat16": (torch.bfloat16, "highest"),
    "bfloat16, tf32": (torch.bfloat16, "high"),
}
BATCH = 20


def ranks(grid: Tensor) -> Tensor:
    """Ranks of the patches of each map, centred, shape (b, patches)."""
    order = grid.flatten(1).double().argsort(1).argsort(1).double()
    return order - order.mean(1, keepdim=True)


def grids(about: Any, images: Tensor, classes: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Maps on the grid by method, from a model in this precision; pixels are averaged over patches."""
    about.module.to(dtype)
    found = {}
    for start in range(0, len(images), BATCH):
        some = slice(start, start + BATCH)
        made = vitrail.explain(about, images[some].to(dtype), methods=METHODS_OF_A_PASS, target=classes[some, None])
        for name, one in made.items():
            grid = one.grid[:, 0]
            if grid.shape[-1] > 14:
                grid = torch.nn.functional.adaptive_avg_pool2d(grid, 14)
            found.setdefault(name, []).append(grid.cpu())
    return {name: torch.cat(parts) for name, parts in found.items()}


def main() -> None:
    """Measure and write the results with what is needed to repeat them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="ImageNet's validation folder")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    about = vitrail.load(f"timm:{args.model}", args.weights)
    about.module.to(args.device)
    data = ImageNet(args.images)
    every = range(0, len(data), max(1, len(data) // args.count))[: args.count]
    images = torch.stack([about.preprocess(data[i].image) for i in every]).to(args.device)
    with torch.inference_mode():
        classes = about.module(images).argmax(1)
    state = {name: t.clone() for name, t in about.module.state_dict().items()}
    exact = {name: ranks(grid) for name, grid in grids(about, images, classes, torch.float64).items()}
    results: dict[str, dict[str, Any]] = {name: {} for name in exact}
    cuda = torch.device(args.device).type == "cuda"
    for kind, (dtype, products) in KINDS.items():
        if products == "high" and not cuda:
            continue
        about.module.float().load_state_dict(state)  # rounded weights do not come back by themselves
        torch.set_float32_matmul_precision(products)
        for name, grid in grids(about, images, classes, dtype).items():
            own, other = ranks(grid), exact[name]
            alike = (own * other).sum(1) / (own.norm(dim=1) * other.norm(dim=1))
            results[name][kind] = {"mean": round(float(alike.mean()), 4), "tenth": round(float(alike.quantile(0.1)), 4)}
    for name, row in results.items():
        print(f"{name:26s}" + "  ".join(f"{k} {v['mean']:.3f} ({v['tenth']:.3f})" for k, v in row.items()), flush=True)
    if args.out:
        manifest = {"model": args.model, "pictures": len(images), "target": "predicted class", "reference": "float64",
                    "device": torch.cuda.get_device_name(0) if cuda else "cpu", "versions": versions()}  # fmt: skip
        args.out.write_text(json.dumps({"manifest": manifest, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
