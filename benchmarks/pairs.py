"""Class selectivity on pairs of objects: does the asked object get more relevance than the other one?

    python benchmarks/pairs.py --out benchmarks/results/pairs-scenes.json

For each held-out scene with two objects of different classes both are asked for. "wins" is the share of cases in which
relevance per pixel is higher on the asked object than on the other; "mass" is the share of all relevance that lies on
the asked object. Intervals are 95 % bootstrap intervals over scenes. A class-blind method wins half the time by
construction, since both objects of a scene are asked for.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import vitrail
from vitrail.data.scenes import Scenes
from vitrail.errors import MapWarning
from vitrail.explanation import versions

BATCH = 50


def selectivity(maps: NDArray[Any], masks: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Wins and mass for one scene: maps (2, h, w) for the two targets, masks (2, h, w) of the two objects."""
    wins, mass = np.zeros(2), np.zeros(2)
    for k in range(2):
        positive = np.clip(maps[k], 0, None)
        per_pixel = [positive[mask].mean() for mask in masks]
        mine, other = per_pixel[k], per_pixel[1 - k]
        wins[k] = 0.5 if mine == other else float(mine > other)
        mass[k] = positive[masks[k]].sum() / max(positive.sum(), 1e-12)
    return wins, mass


def interval(values: NDArray[Any], rng: np.random.Generator, draws: int = 2000) -> tuple[float, float, float]:
    """Mean over scenes and its 95 % bootstrap interval; scenes, not cases, are drawn."""
    scenes = values.mean(1)
    means = scenes[rng.integers(0, len(scenes), (draws, len(scenes)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(scenes.mean()), float(low), float(high)


def measure(name: str, count: int, methods: list[str], device: str, most: int) -> dict[str, Any]:
    """All methods on one model."""
    about = vitrail.load(name)
    about.module.to(device)
    data = Scenes(split="test", pairs=True, count=count)
    wins: dict[str, list[NDArray[Any]]] = {m: [] for m in methods}
    mass: dict[str, list[NDArray[Any]]] = {m: [] for m in methods}
    flat = dict.fromkeys(methods, 0)
    both = 0
    for start in range(0, count, BATCH):
        scenes = [data[i] for i in range(start, min(start + BATCH, count))]
        targets = [list(scene.classes) for scene in scenes]
        images = torch.stack([scene.to_tensor() for scene in scenes]).to(device)
        found = vitrail.explain(about, images, methods=methods, target=targets, batch_size=most)
        top = found[methods[0]].logits.cpu().topk(2).indices.sort(-1).values
        both += int((top == torch.tensor(targets).sort(-1).values).all(-1).sum())
        masks = [np.stack([scene.class_mask(c) for c in scene.classes]) for scene in scenes]
        for m in methods:
            maps = found[m].maps.cpu().numpy()
            flat[m] += int(found[m].constant.sum())
            for i in range(len(scenes)):
                w, s = selectivity(maps[i], masks[i])
                wins[m].append(w)
                mass[m].append(s)
    rng = np.random.default_rng(0)
    rows = {
        m: {"wins": interval(np.stack(wins[m]), rng), "mass": interval(np.stack(mass[m]), rng), "flat_maps": flat[m]}
        for m in methods
    }
    return {"model": name, "scenes": count, "both_classes_in_top_two": both / count, "methods": rows}


def main() -> None:
    """Measure and write the table with what is needed to repeat it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["scenes", "scenes-gap"])
    parser.add_argument("--methods", nargs="+", default=list(vitrail.methods()))
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=BATCH, help="most pictures in a pass")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    warnings.simplefilter("ignore", MapWarning)
    results = []
    for name in args.models:
        results.append(result := measure(name, args.count, args.methods, args.device, args.batch))
        print(f"{result['model']}: both classes in the top two for {result['both_classes_in_top_two']:.1%}")
        for m, row in result["methods"].items():
            w, s = row["wins"], row["mass"]
            print(f"  {m:24s} wins {w[0]:.1%} [{w[1]:.1%}, {w[2]:.1%}]  mass {s[0]:.1%} [{s[1]:.1%}, {s[2]:.1%}]"
                  f"  flat {row['flat_maps']}")  # fmt: skip
        if args.out:  # after each, so that a run that is cut short leaves what it has
            args.out.parent.mkdir(parents=True, exist_ok=True)
            manifest = {"split": "test, pairs", "interval": "95 % bootstrap over scenes", "device": args.device,
                        "versions": versions()}  # fmt: skip
            whole = {"manifest": manifest, "results": results}
            args.out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
