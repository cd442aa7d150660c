"""Verdicts of `Explanation.check` where the truth is known, and on photographs with three models.

    python studies/trust.py --assets DIR --device cuda --out studies/results/trust.json

Scenes of the test split with two objects: right maps are the mask of the target object and the maps of methods that
tell the two objects apart; wrong maps are the same maps inverted, shuffled, or of the other object, and noise. The area
under the ROC curve is that of the check's statistic, with right maps as positives; its interval is a bootstrap over
scenes. Photographs (pets; the 20 on which the statistic was chosen, with ViT-Tiny and DeiT-Tiny, are left out): share
of each verdict by method and model, and of maps of one method that pass after they were inverted or shuffled. Rows of
other models and methods that the file has already stay.

All numbers are computed from the values of each map, which files beside the results keep: ``trust-scenes.parquet`` has
statistic, p-value and whether it passes by kind and source of the map, two objects for each scene;
``trust-MODEL.parquet`` has the verdict (a score of zeros and ones for each), statistic, p-value and similarities of
each photograph by method. `studies/recompute.py` compares both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from check_values import PASS, removal_values, summarise_scenes, summarise_verdicts, verdict_values
from study import Clock, manifest, options, read_json, save_json
from torch import Tensor
from value_tables import (
    Values,
    in_single_precision,
    refuse_other_examples,
    save_values,
    values_path,
    write_values,
)

import vitrail
from vitrail.data import MaskFolder, Scenes
from vitrail.errors import MapWarning
from vitrail.trust import patch_values

RIGHT = ("leadlight", "attnlrp", "transformer_mm")
METHODS = ("leadlight", "transformer_mm", "attnlrp", "vtranm", "gradsam", "gradtoken", "gradtoken:3", "rollout",
           "raw_attention", "gradcam", "centre", "random")  # fmt: skip
#: The statistic was chosen on this many pets, the first of the same permutation.
CHOICE = 20
MODELS = ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch14_dinov2")


def with_map(explanation: Any, values: Tensor, image: int, k: int) -> Any:
    """An explanation with one map replaced, shape (rows, columns)."""
    grid, maps = explanation.grid.clone(), explanation.maps.clone()
    grid = grid if grid.shape[-2:] == values.shape else grid.new_zeros(*grid.shape[:2], *values.shape)
    grid[image, k] = values.to(grid)
    maps[image, k] = F.interpolate(values[None, None].to(maps), size=maps.shape[-2:])[0, 0]
    return replace(explanation, grid=grid, maps=maps, constant=torch.zeros_like(explanation.constant))


def scene_maps(explanations: Any, masks: Any, b: int, k: int, seed: int) -> Iterator[tuple[str, str, Any]]:
    """(kind, name, explanation) of right and wrong maps for one object of a scene."""
    generator = torch.Generator().manual_seed(seed)
    first = explanations[RIGHT[0]]
    size: tuple[int, int] = tuple(first.grid.shape[-2:])
    truth = [F.adaptive_avg_pool2d(torch.tensor(mask)[None, None].float(), size)[0, 0] for mask in masks]
    maps = {
        "truth": truth,
        **{m: [patch_values(e, b, i, size).cpu() for i in range(2)] for m, e in explanations.items()},
    }
    for name, (own, other) in ((n, (v[k], v[1 - k])) for n, v in maps.items()):
        order = torch.randperm(own.numel(), generator=generator)
        yield "right", name, with_map(first, own, b, k)
        yield "inverted", name, with_map(first, -own, b, k)
        yield "shuffled", name, with_map(first, own.flatten()[order].view(size), b, k)
        yield "other object", name, with_map(first, other, b, k)
    yield "noise", "noise", with_map(first, torch.rand(size, generator=generator), b, k)


def study_scenes(count: int, device: str) -> tuple[dict[str, Any], Values]:
    """ROC curve area and share of maps that pass, by kind of map, and the values of each map."""
    loaded = vitrail.load("scenes")
    loaded.module.to(device)
    data = Scenes(split="test", pairs=True, count=count)
    targets = [list(data[i].classes) for i in range(count)]
    found = vitrail.explain(loaded, data.batch(range(count))[0].to(device), methods=list(RIGHT), target=targets)
    values = in_single_precision(removal_values(
        (f"{kind}: {name}", explanation.check(b, k, tests=["removal"]))
        for b in range(count) for k in range(2)
        for kind, name, explanation in scene_maps(found, data[b].masks, b, k, 2 * b + k)
    ))  # fmt: skip
    return summarise_scenes(values), values


def study_photographs(
    name: str, methods: Sequence[str], assets: Path, count: int, device: str
) -> tuple[dict[str, Any], Values]:
    """Shares of verdicts, and of inverted and shuffled maps of the first method that pass; the values of each image."""
    loaded = load(name, assets, device)
    data = MaskFolder(assets / "pets")
    unused = np.random.default_rng(0).permutation(len(data))[CHOICE:]
    chosen = [data[int(i)] for i in unused[:count]]
    images = torch.stack([loaded.preprocess(s.image) for s in chosen]).to(device)
    found = vitrail.explain(loaded, images, methods=list(methods), batch_size=25)
    checks: dict[str, list[Any]] = {m: [] for m in methods}
    wrong: dict[str, list[bool]] = {f"{methods[0]} inverted": [], f"{methods[0]} shuffled": []}
    for b in range(len(chosen)):
        for method, check in found.check(b, 0).items():
            checks[method].append(check)
        first = found[methods[0]]
        own = first.grid[b, 0]
        order = torch.randperm(own.numel(), generator=torch.Generator().manual_seed(b)).to(own.device)
        for kind, changed in zip(wrong, (-own, own.flatten()[order].view_as(own)), strict=True):
            wrong[kind].append(with_map(first, changed, b, 0).check(b, 0, tests=["removal"]).p_value <= PASS)
    values = in_single_precision(verdict_values(checks, wrong))
    rows, passes = summarise_verdicts(values)
    return {"model": name, "images": len(chosen), "methods": rows, "wrong_maps_pass": passes}, values


def load(name: str, assets: Path, device: str) -> Any:
    """A model of the assets with 1,000 classes at 224 pixels."""
    import timm
    from safetensors.torch import load_file

    size = {"img_size": 224} if "dinov2" in name else {}
    module = timm.create_model(name, num_classes=1000, **size)
    weights = load_file(assets / "weights" / f"{name}.safetensors")
    module.load_state_dict({key: value.float() for key, value in weights.items()})
    about = vitrail.models.describe(module.eval().to(device), name)
    mean, std = ((0.5,) * 3,) * 2 if name.startswith("vit_tiny") else ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return replace(about, preprocess=vitrail.Preprocess((224, 224), mean, std))


def main() -> None:
    """Measure, and write results and manifest after each part."""
    parser = options(__doc__, assets=None, images=50, models=list(MODELS), methods=list(METHODS))
    parser.add_argument("--scenes", type=int, default=60)
    args = parser.parse_args()
    warnings.simplefilter("ignore", MapWarning)
    results: dict[str, Any] = {**read_json(args.out, {}), "manifest": manifest(args.device)}
    clock = Clock()
    models = args.models if args.assets else ()
    for name in models:
        images = min(args.images, len(MaskFolder(args.assets / "pets")) - CHOICE)
        before = results.get(name, {"images": images, "methods": {}})
        refuse_other_examples(name, before["images"], images, before["methods"], args.methods)
    if args.scenes:
        found, values = study_scenes(args.scenes, args.device)
        results["scenes"] = {**found, "manifest": results["manifest"]}
        print(f"scenes: ROC AUC {found['roc_auc']:.3f}, {clock}", flush=True)
        save_json(args.out, results)
        if args.out is not None:
            write_values(values_path(args.out, "scenes"), values)
    for name in models:
        new, values = study_photographs(name, args.methods, args.assets, args.images, args.device)
        before = results.get(name, {})
        same = before.get("images") == new["images"]
        kept = {key: {**before[key], **new[key]} for key in ("methods", "wrong_maps_pass") if same}
        results[name] = {**new, **kept}
        faithful = {m: round(r["verdicts"]["faithful"], 2) for m, r in results[name]["methods"].items()}
        print(f"{name}: faithful {faithful}, {clock}", flush=True)
        save_json(args.out, results)
        if args.out is not None:
            (save_values if same else write_values)(values_path(args.out, name), values)


if __name__ == "__main__":
    main()
