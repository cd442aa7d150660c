"""Class discrimination on scenes with two objects of different classes.

    python studies/pairs.py --out studies/results/pairs-scenes.json

Both classes of each held-out scene are explained. Class-discrimination accuracy ("wins" in the results) is the share of
maps whose positive relevance per pixel is higher on the target object than on the other one; relevance mass ("mass") is
the share of the positive relevance on the target object. Intervals are 95 % bootstrap intervals over scenes, computed
from the values of each scene, which a file beside the results keeps (``pairs-scenes.parquet``). Rows of other methods
that the results have already stay; the manifest has the runs, each with its methods. A class-agnostic method has an
accuracy of one half by construction.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from study import joined_runs, manifest, options, read_json, save_json
from value_tables import Values, save_values, values_path

import vitrail
from vitrail.data import Scenes
from vitrail.errors import MapWarning
from vitrail.scores import interval

BATCH = 50
#: Class-discrimination accuracy and relevance mass, as the results name them.
SCORES = ("wins", "mass")


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


def summarise(values: Values) -> dict[str, dict[str, list[float]]]:
    """Mean and 95 % bootstrap interval over scenes of each score, by method."""
    rows: dict[str, dict[str, list[float]]] = {}
    for score in SCORES:
        for method, own in values.get(score, {}).items():
            rows.setdefault(method, {})[score] = [round(v, 6) for v in interval(own)]
    return rows


def measure(name: str, count: int, methods: list[str], device: str, most: int) -> tuple[dict[str, Any], Values]:
    """Scores of all methods on one model, and the values of each scene: means over its two maps."""
    loaded = vitrail.load(name)
    loaded.module.to(device)
    data = Scenes(split="test", pairs=True, count=count)
    values: Values = {score: {m: [] for m in methods} for score in SCORES}
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
                for score, own in zip(SCORES, class_discrimination(maps, scene.masks), strict=True):
                    values[score][m].append(float(own.mean()))
    rows = {m: {**row, "flat_maps": constant_maps[m]} for m, row in summarise(values).items()}
    result = {"model": name, "scenes": count, "both_classes_in_top_two": both_in_top_two / count, "methods": rows}
    return result, values


def main() -> None:
    """Measure, and write results and manifest."""
    parser = options(__doc__, models=["scenes"], methods=list(vitrail.methods()), batch=BATCH)
    parser.add_argument("--count", type=int, default=500, help="number of scenes")
    args = parser.parse_args()
    warnings.simplefilter("ignore", MapWarning)
    before = read_json(args.out, {"manifest": {"runs": []}, "results": []})
    kept = {result["model"]: result for result in before["results"]}
    for name in args.models:
        result, values = measure(name, args.count, args.methods, args.device, args.batch)
        print(f"{name}: both classes in the top two for {result['both_classes_in_top_two']:.1%}")
        for m, row in result["methods"].items():
            a, s = row["wins"], row["mass"]
            print(f"  {m:24s} class-discrimination accuracy {a[0]:.1%} [{a[1]:.1%}, {a[2]:.1%}]  relevance mass "
                  f"{s[0]:.1%} [{s[1]:.1%}, {s[2]:.1%}]  constant maps {row['flat_maps']}")  # fmt: skip
        if name in kept and kept[name]["scenes"] == args.count:
            result["methods"] = {**kept[name]["methods"], **result["methods"]}
        kept[name] = result
        stay = [run for run in before["manifest"]["runs"] if set(run["methods"]) & result["methods"].keys()]
        runs = joined_runs(stay, manifest(args.device), args.methods)
        about = {"split": "test, pairs", "interval": "95 % bootstrap over scenes", "runs": runs}
        if args.out is not None:  # after each model, for interrupted runs
            save_json(args.out, {"manifest": about, "results": list(kept.values())})
            save_values(values_path(args.out, name), values)


if __name__ == "__main__":
    main()
