"""Class discrimination on scenes with two objects of different classes.

    python studies/pairs.py --out studies/results/pairs-scenes.json

Both classes of each held-out scene are explained. Class-discrimination accuracy ("wins" in the results) is the share of
maps whose positive relevance per pixel is higher on the target object than on the other one; relevance mass ("mass") is
the share of the positive relevance on the target object. Intervals are 95 % bootstrap intervals over scenes. A
class-agnostic method has an accuracy of one half by construction.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from study import manifest, options, save_json

import vitrail
from vitrail.data import Scenes
from vitrail.errors import MapWarning

BATCH = 50


def class_discrimination(maps: NDArray[Any], masks: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Class-discrimination accuracy and relevance mass of the two maps of a scene, shape (2,) each.

    Unlike `vitrail.scores.score_selectivity`, which compares signed relevance, this compares positive relevance.

    Args:
        maps: Maps of the two classes, shape (2, height, width).
        masks: Masks of the two objects, shape (2, height, width).
    """
    accuracy, mass = np.zeros(2), np.zeros(2)
    for k in range(2):
        positive = np.clip(maps[k], 0, None)
        per_pixel = [positive[mask].mean() for mask in masks]
        target, other = per_pixel[k], per_pixel[1 - k]
        accuracy[k] = 0.5 if target == other else float(target > other)
        mass[k] = positive[masks[k]].sum() / max(positive.sum(), 1e-12)
    return accuracy, mass


def bootstrap(values: NDArray[Any], rng: np.random.Generator, draws: int = 2000) -> tuple[float, float, float]:
    """Mean over scenes and its 95 % bootstrap interval; values have shape (scenes, 2)."""
    scenes = values.mean(1)
    means = scenes[rng.integers(0, len(scenes), (draws, len(scenes)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(scenes.mean()), float(low), float(high)


def measure(name: str, count: int, methods: list[str], device: str, most: int) -> dict[str, Any]:
    """Scores of all methods on one model."""
    loaded = vitrail.load(name)
    loaded.module.to(device)
    data = Scenes(split="test", pairs=True, count=count)
    accuracy: dict[str, list[NDArray[Any]]] = {m: [] for m in methods}
    mass: dict[str, list[NDArray[Any]]] = {m: [] for m in methods}
    constant_maps = dict.fromkeys(methods, 0)
    both_in_top_two = 0
    for start in range(0, count, BATCH):
        indices = range(start, min(start + BATCH, count))
        scenes = [data[i] for i in indices]
        targets = [list(scene.classes) for scene in scenes]
        images = data.batch(indices)[0].to(device)
        found = vitrail.explain(loaded, images, methods=methods, target=targets, batch_size=most)
        top = found[methods[0]].logits.cpu().topk(2).indices.sort(-1).values
        both_in_top_two += int((top == torch.tensor(targets).sort(-1).values).all(-1).sum())
        for m in methods:
            constant_maps[m] += int(found[m].constant.sum())
            for maps, scene in zip(found[m].maps.cpu().numpy(), scenes, strict=True):
                own_accuracy, own_mass = class_discrimination(maps, scene.masks)
                accuracy[m].append(own_accuracy)
                mass[m].append(own_mass)
    rng = np.random.default_rng(0)
    rows = {
        m: {
            "wins": bootstrap(np.stack(accuracy[m]), rng),
            "mass": bootstrap(np.stack(mass[m]), rng),
            "flat_maps": constant_maps[m],
        }
        for m in methods
    }
    return {"model": name, "scenes": count, "both_classes_in_top_two": both_in_top_two / count, "methods": rows}


def main() -> None:
    """Measure, and write results and manifest."""
    parser = options(__doc__, models=["scenes"], methods=list(vitrail.methods()), batch=BATCH)
    parser.add_argument("--count", type=int, default=500, help="number of scenes")
    args = parser.parse_args()
    warnings.simplefilter("ignore", MapWarning)
    results = []
    for name in args.models:
        results.append(result := measure(name, args.count, args.methods, args.device, args.batch))
        print(f"{result['model']}: both classes in the top two for {result['both_classes_in_top_two']:.1%}")
        for m, row in result["methods"].items():
            a, s = row["wins"], row["mass"]
            print(f"  {m:24s} class-discrimination accuracy {a[0]:.1%} [{a[1]:.1%}, {a[2]:.1%}]  relevance mass "
                  f"{s[0]:.1%} [{s[1]:.1%}, {s[2]:.1%}]  constant maps {row['flat_maps']}")  # fmt: skip
        about = manifest(args.device, split="test, pairs", interval="95 % bootstrap over scenes")
        save_json(args.out, {"manifest": about, "results": results})  # after each model, for interrupted runs


if __name__ == "__main__":
    main()
