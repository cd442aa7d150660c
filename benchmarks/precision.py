"""Effect of numerical precision on maps: rank correlation with maps in double precision.

    python benchmarks/precision.py --weights vit_tiny_patch16_224.safetensors --images IMAGENET --device cuda \
        --out benchmarks/results/precision-h200.json

Every method of a single pass explains the predicted class of the same images in float64, in float32, in float32 with
TF32 (GPU only), and in bfloat16: without and with TF32, which matters for methods that compute in float32, such as most
relevance methods, and with ``VITRAIL_PLAIN=1``, where all relevance is in float32 and attention is kept as matrices.
With ``--batch 100`` attention is computed row by row on a GPU, as that of large inputs is. Reported is Spearman's
correlation between grids: the mean over images and the 10th percentile. Variants of a method that is measured as well
(``--methods lrp lrp:stable``) are also compared with it, both in float64.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from common import SINGLE_PASS_METHODS, device_name, save_json
from torch import Tensor

import vitrail
from vitrail.data import ImageNet
from vitrail.pipeline.provenance import versions

#: By name: precision of the model, of float32 matrix products on a GPU, and ``VITRAIL_PLAIN``.
PRECISIONS: dict[str, tuple[torch.dtype, str, str]] = {
    "float32": (torch.float32, "highest", "0"),
    "tf32": (torch.float32, "high", "0"),
    "bfloat16": (torch.bfloat16, "highest", "0"),
    "bfloat16, tf32": (torch.bfloat16, "high", "0"),
    "bfloat16, plain": (torch.bfloat16, "highest", "1"),
}


def centred_ranks(grid: Tensor) -> Tensor:
    """Centred ranks of the patches of each map, shape (b, patches)."""
    order = grid.flatten(1).double().argsort(1).argsort(1).double()
    return order - order.mean(1, keepdim=True)


def agreement(one: Tensor, two: Tensor) -> dict[str, float]:
    """Correlation of centred ranks, shape (b, patches): mean over images and 10th percentile."""
    rho = (one * two).sum(1) / (one.norm(dim=1) * two.norm(dim=1))
    return {"mean": round(float(rho.mean()), 4), "tenth": round(float(rho.quantile(0.1)), 4)}


def patch_grids(
    loaded: Any, images: Tensor, classes: Tensor, dtype: torch.dtype, methods: list[str], batch: int
) -> dict[str, Tensor]:
    """Patch grids by method, from the model in a precision; pixel maps are averaged over patches."""
    loaded.module.to(dtype)
    grids: dict[str, list[Tensor]] = {}
    for start in range(0, len(images), batch):
        rows = slice(start, start + batch)
        found = vitrail.explain(loaded, images[rows].to(dtype), methods=methods, target=classes[rows, None])
        for name, explanation in found.items():
            grid = explanation.grid[:, 0]
            if grid.shape[-1] > 14:
                grid = torch.nn.functional.adaptive_avg_pool2d(grid, 14)
            grids.setdefault(name, []).append(grid.cpu())
    return {name: torch.cat(parts) for name, parts in grids.items()}


def main() -> None:
    """Measure, and write results and manifest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="folder of ImageNet's validation images")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--methods", nargs="+", default=SINGLE_PASS_METHODS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    loaded = vitrail.load(f"timm:{args.model}", args.weights)
    loaded.module.to(args.device)
    data = ImageNet(args.images)
    indices = range(0, len(data), max(1, len(data) // args.count))[: args.count]
    images = torch.stack([loaded.preprocess(data[i].image) for i in indices]).to(args.device)
    with torch.inference_mode():
        classes = loaded.module(images).argmax(1)
    state = {name: t.clone() for name, t in loaded.module.state_dict().items()}
    grids = patch_grids(loaded, images, classes, torch.float64, args.methods, min(args.batch, 20))
    exact = {name: centred_ranks(grid) for name, grid in grids.items()}
    results: dict[str, dict[str, Any]] = {name: {} for name in exact}
    for name, ranks in exact.items():
        method, _, variant = name.partition(":")
        if variant and method in exact:
            results[name][f"{method} in float64"] = agreement(ranks, exact[method])
    cuda = torch.device(args.device).type == "cuda"
    for precision, (dtype, matmul, plain) in PRECISIONS.items():
        if (matmul == "high" and not cuda) or precision not in args.precisions:
            continue
        loaded.module.float().load_state_dict(state)  # restores weights that were rounded
        torch.set_float32_matmul_precision(matmul)
        os.environ["VITRAIL_PLAIN"] = plain
        for name, grid in patch_grids(loaded, images, classes, dtype, args.methods, args.batch).items():
            results[name][precision] = agreement(centred_ranks(grid), exact[name])
    for name, row in results.items():
        print(f"{name:26s}" + "  ".join(f"{k} {v['mean']:.3f} ({v['tenth']:.3f})" for k, v in row.items()), flush=True)
    manifest = {"model": args.model, "pictures": len(images), "batch": args.batch, "target": "predicted class",
                "reference": "float64", "device": device_name(args.device), "versions": versions()}  # fmt: skip
    save_json(args.out, {"manifest": manifest, "results": results})


if __name__ == "__main__":
    main()
