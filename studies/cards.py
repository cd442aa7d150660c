"""Measurements for the cards of the methods that other committed results do not hold.

    python studies/cards.py --assets DIR --device cuda --minutes 5 --out studies/results/cards.json

Every registered method with its default options, on 40 ImageNet images with three models and on scenes with two objects
with the embedded model; methods of many forward passes on fewer images, see ``--work``. Similarities are Spearman's
rank correlations between patch values, means over the images, of the default map with

- ``repeat``, ``seed``: the same call, and the call with another seed;
- ``options``: every variant and other values of options;
- ``noise``: the map of the image with small noise, drawn as in `Explanation.check`;
- ``label``: the map of the second likeliest class; on scenes of the other object;
- ``other image``: the map of another image, as a reference for what follows;
- ``head``, ``last block``, ``all``: the map after the parameters of the head, of head and last block, and of the whole
  model were drawn at random.

``completeness`` is the relative error of the map's sum for methods whose values sum to a difference of the score, and
``over_forward_backward`` the time over that of a forward and backward pass of the bare model on the same images.
``perturbation`` has scores per image of methods that the tables of three models do not have, with the controls on the
same images, and ``regions`` what the mIoU on pets is computed from; ``pairs`` is the class discrimination of methods
that pairs-scenes.json does not have.

The values of each image behind the similarities, errors and pairs are kept in files beside the results,
NAME-MODEL.parquet, and the numbers are computed from them.

Methods are measured from cheap to expensive, on all models in turn. Rows are written one by one, and a second run
continues where the first one stopped. Times of a run beside other work mean nothing: ``--times`` measures those of the
given methods again and nothing else. ``--explainers`` has the explainers that studies/vit_shapley.py trained.
"""

from __future__ import annotations

import argparse
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pairs
import torch
from card_measurements import PHOTOGRAPHS, SCENES, Model, measure, measure_time
from card_values import PAIRS
from study import RESULTS, ROOT, Clock, manifest, options, read_csv, read_json, save_json
from value_tables import Values, save_values, values_path

import vitrail
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.data import Scenes
from vitrail.errors import VitrailError
from vitrail.methods.cost import size_of
from vitrail.methods.registry import METHODS, find
from vitrail.scores.sensitivity import RADIUS

#: Tables of results on three models.
TABLES = ("three_models_single", "three_models")
#: Methods whose scores in the tables are those of fewer forward passes.
STAND_INS = {"rise": "rise:masks=1000"}
CONTROLS = ("random", "centre", "edges")
#: Most seconds of one run of a method on CUDA; a slower one goes on with fewer images.
SLOW = 3.0


def measure_pairs(name: str, args: argparse.Namespace) -> tuple[dict[str, Any], Values]:
    """Class discrimination on scenes as in studies/pairs.py, on fewer for expensive methods, and values of each."""
    each = 3.0 + METHODS[name].cost(find(name)[2], size_of_scenes(), 2).forwards
    count = int(min(args.pairs, max(2 * args.least, 10 * args.work // each)))
    found, values = pairs.measure(SCENES, count, [name], args.device, args.batch)
    return {"scenes": count, **found["methods"][name]}, {f"{PAIRS}{score}": own for score, own in values.items()}


def size_of_scenes() -> Any:
    """Size of the embedded model."""
    loaded = vitrail.load(SCENES)
    return size_of(read_structure(loaded.module, ModelInputs((Scenes(split="test", count=1).batch([0])[0],))))


def committed(score: str) -> dict[str, set[str]]:
    """Methods whose values of a score are in the committed tables of three models, by model."""
    found: dict[str, set[str]] = {}
    for table in TABLES:
        for row in read_csv(ROOT / "results" / f"{table}.csv"):
            if row["score"] == score:
                found.setdefault(row["model"], set()).add(row["method"])
    return found


def ordered(names: Sequence[str], models: Sequence[Model]) -> list[tuple[Model, str]]:
    """Models and methods, cheap methods first, so that a run that stops early has all models."""

    def cost(name: str) -> float:
        return METHODS[name].cost(find(name)[2], models[0].size, 1).forwards

    return [(model, name) for name in sorted(names, key=cost) for model in models]


def main() -> None:
    """Measure what is missing in the file, and write it after every row."""
    parser = options(__doc__, assets=None, images=40, batch=512, minutes=5.0, models=[*PHOTOGRAPHS, SCENES],
                     methods=list(METHODS), out=...)  # fmt: skip
    parser.add_argument("--times", action="store_true", help="measure times only, of rows that the file has")
    parser.add_argument("--explainers", type=Path, help="folder with the explainers of ViT Shapley")
    parser.add_argument("--option-images", type=int, default=16, help="most images for the values of options")
    parser.add_argument("--scored-images", type=int, default=24, help="images of an expensive method that is scored")
    parser.add_argument("--least", type=int, default=4, help="fewest images of an expensive method")
    parser.add_argument("--pairs", type=int, default=500, help="most scenes for class discrimination")
    parser.add_argument("--work", type=float, default=5000.0, help="forward passes of one run of an expensive method")
    parser.add_argument("--slow", type=float, default=SLOW, help="seconds of a run that goes on with fewer images")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    clock, results = Clock(args.minutes), read_json(args.out, {})
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows, found_pairs = results.setdefault("rows", {}), results.setdefault("pairs", {})
    settings = ("images", "option_images", "least", "work", "slow", "batch")
    about = {"matmul": "tf32", "similarity": "Spearman", "noise": RADIUS}
    results["manifest"] = manifest(args.device, **about, **{name: getattr(args, name) for name in settings})
    known = {kind: committed(score) for kind, score in (("perturbation", "srg(tokens)"), ("regions", "miou"))}
    models = [Model(name, args) for name in args.models if name == SCENES or args.assets]
    for model, name in ordered(args.methods, models):
        own = rows.setdefault(model.name, {})
        if args.times and own.get(name, {}).get("images") and not clock.is_over(f"the time of {name} on {model.name}"):
            try:
                own[name] |= measure_time(model, name, own[name]["images"], 3)[1]
            except VitrailError as error:  # such as an explainer that is not there
                print(f"{model.name} {name}: {error}", flush=True)
                continue
            print(f"{model.name} {name}: {own[name]['over_forward_backward']}, {clock} in total", flush=True)
            save_json(args.out, results)
        if args.times or own.get(name, {}).get("images"):
            continue
        if clock.is_over(f"{name} on {model.name}"):
            break
        given = {kind for kind, by_model in known.items() if STAND_INS.get(name, name) in by_model.get(model.name, ())}
        scored = {"perturbation", "regions"} - (set() if name in CONTROLS else given)
        try:
            row, values = measure(model, name, scored)
            # Values first: a run that is stopped between the two measures the row again.
            save_values(values_path(args.out, model.name), {test: {name: found} for test, found in values.items()})
            own[name] = row
        except VitrailError as error:
            own[name] = {"images": 0, "refused": {"method": str(error)}}
        except Exception:  # noqa: BLE001 - a row that fails must not end a run on a machine with a time limit
            print(f"{model.name} {name} failed:\n{traceback.format_exc()}", flush=True)
            continue
        save_json(args.out, results)
        shown = {k: v.get("rho") for k, v in own[name].items() if isinstance(v, dict) and "rho" in v}
        print(f"{model.name} {name}: {own[name]['images']} images, {clock} in total, {shown}", flush=True)
    measured = read_json(RESULTS / "pairs-scenes.json", None)["results"]
    done = {name for result in measured if result["model"] == SCENES for name in result["methods"]}
    for name in args.methods if SCENES in args.models and not args.times else ():
        if name not in done and name not in found_pairs and not clock.is_over(f"pairs of {name}"):
            found_pairs[name], found = measure_pairs(name, args)
            save_values(values_path(args.out, SCENES), found)
            save_json(args.out, results)
            print(f"pairs {name}: {found_pairs[name]}, {clock} in total", flush=True)


if __name__ == "__main__":
    main()
