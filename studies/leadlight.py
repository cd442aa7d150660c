"""Choose leadlight's form on one half of the images and report on the other, with three models and with scenes.

    python studies/leadlight.py --assets DIR --device cuda --out out/leadlight

DIR has ``weights/{vit_tiny_patch16_224,deit_tiny_patch16_224,vit_small_patch14_dinov2}.safetensors``, ``pets``
(photographs with masks) and ``imagenet`` (validation images). A hash of the image id decides the half; of scenes, the
val split is the first half and the test split the second. All maps explain the predicted class, those of scenes each of
the two classes in the image.

Five scores of photographs: pixel accuracy, mAP and mIoU on pets (threshold: the mean of the map), and on ImageNet the
area under the accuracy with the least relevant pixels removed first minus the area with the most relevant first
("SRG"), with black and with the mean colour as fill. The choice uses the levels 0, 10, 30, 50, 70 and 90 %, the report
those of ``chefer21``. Forward passes of perturbed images run under bfloat16 autocast on a GPU. Two scores of scenes:
class-discrimination accuracy and relevance mass.

**The rule of the choice** (written before any form was measured here):

1. Floor: on val pairs, neither class-discrimination accuracy nor relevance mass may be significantly lower than those
   of the first form (spreading by attention). That is, the upper end of the paired 95 % bootstrap interval of the
   difference is at least zero.
2. Candidates are ordered by their mean rank over 15 columns: five scores on the first halves, three models. Ranks are
   among all candidates, also those below the floor.
3. Of the candidates within one rank of the first, the one with the fewest ingredients (maps of the source, kinds of
   vectors, further rounds, a gate) is chosen; if several have as few, the one with the better mean rank.

The report scores the chosen form, the next three, the first form and all methods of at most two passes on the second
halves. "Behind" means that a paired permutation test against the best method of at most two passes, corrected by Holm,
gives p < 0.05. Methods that a model has values of are skipped when the script is run again; ``--minutes`` bounds the
time of one run.

The candidates come in two rounds. The second was added after the choice of the first, from what was seen on the first
halves, and the rule was applied again to all candidates.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from leadlight_forms import FIRST_FORM, FORMER, Form, candidates, maps_of_forms
from numpy.typing import NDArray
from study import SINGLE_PASS_METHODS, Clock, manifest, options, save_csv, save_json
from torch import Tensor

import vitrail
from vitrail.data import ImageNet, MaskFolder, Sample, Scenes
from vitrail.models import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.scores import (
    Curve,
    Evaluator,
    LevelGrid,
    MethodValues,
    PerturbationRecords,
    Preset,
    SegmentationScores,
    difference,
    find_presets,
    fold_of,
    interval,
    mean_ratio,
    rank_methods,
    score_segmentation,
)

PHOTOGRAPHS = ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch14_dinov2")
#: Models whose head was fitted on images resized without keeping the aspect ratio.
SQUASHED = ("vit_small_patch14_dinov2",)
SCENES = "scenes"
CONTROLS = ("centre", "random")
#: Methods of at most two passes, and one of more, which is left out of the comparison with the best.
REFERENCES = (
    *(name for name in SINGLE_PASS_METHODS if name != "leadlight"),
    "vtranm:af+l", "gradtoken:3", "gradient_x_input", "bi_attn:token", *CONTROLS,
)  # fmt: skip
MORE_PASSES = ("bi_attn:token",)
SCORES = ("pixel accuracy", "mAP", "mIoU", "SRG, black", "SRG, mean colour")
PAIRS = ("class-discrimination accuracy", "relevance mass")
#: Columns of several numbers per image, and how they become a score.
COMBINED = {"mIoU": mean_ratio}
CHOICE, REPORT = "choice", "report"
BATCH = 50
MapFunction = Callable[[LoadedModel, Tensor, Any], dict[str, Tensor]]
Array = NDArray[np.float64]


def presets(stage: str) -> dict[str, Preset]:
    """By score, the perturbation preset: fewer levels for the choice."""
    found = dict(zip(SCORES[3:], find_presets(["chefer21", "chefer21-mean"]), strict=True))
    if stage == REPORT:
        return found
    grid = LevelGrid((0, 10, 30, 50, 70, 90))
    return {
        score: replace(p, name=f"few-{p.name}", curves=tuple(Curve(c.name, c.order, c.fill, grid) for c in p.curves))
        for score, p in found.items()
    }


class Values:
    """Values per image of all methods, by model and score, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrays: dict[str, Any] = dict(np.load(path)) if path.exists() else {}

    def methods(self, model: str) -> list[str]:
        """Methods that have been scored on a model."""
        return self.arrays[f"{model}|methods"].tolist() if f"{model}|methods" in self.arrays else []

    def put(self, model: str, scores: dict[str, dict[str, MethodValues]]) -> None:
        """Add methods of a model and write the file."""
        for score, new in scores.items():
            by_method = (self.get(model, score) if self.methods(model) else {}) | new
            if len({own.ids for own in by_method.values()}) > 1:
                raise SystemExit(f"{self.path} has values of other images: give the same numbers of images")
            self.arrays[f"{model}|{score}"] = np.stack([own.table for own in by_method.values()])
            self.arrays[f"{model}|{score}|ids"] = np.array(next(iter(by_method.values())).ids)
        self.arrays[f"{model}|methods"] = np.array([*self.methods(model), *next(iter(scores.values()))])
        np.savez_compressed(self.path, **self.arrays)

    def get(self, model: str, score: str) -> dict[str, MethodValues]:
        """Values of all methods."""
        methods = self.arrays[f"{model}|methods"].tolist()
        ids = tuple(self.arrays[f"{model}|{score}|ids"].tolist())
        combine = {"score": COMBINED[score]} if score in COMBINED else {}
        tables = self.arrays[f"{model}|{score}"]
        return {m: MethodValues(ids, table, **combine) for m, table in zip(methods, tables, strict=True)}


def batches(data: Any, indices: Sequence[int], preprocess: Any, device: str) -> Iterator[tuple[list[Sample], Tensor]]:
    """Samples with their preprocessed images."""
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, len(indices), BATCH):
            samples = list(pool.map(data.__getitem__, indices[start : start + BATCH]))
            images = torch.stack(list(pool.map(preprocess, [s.image for s in samples])))
            yield samples, images.to(device)


def half_of(data: Any, count: int, half: int) -> list[int]:
    """Indices of one half of the first images, by a hash of their ids."""
    return [i for i in range(min(count, len(data))) if fold_of(data.ids[i]) == half]


def resized_masks(samples: list[Sample], size: tuple[int, int], device: str) -> Tensor:
    """Masks in the size of the preprocessed images, shape (b, height, width)."""
    resized = []
    for sample in samples:
        mask = torch.from_numpy(np.array(sample.mask))[None, None].float()
        resized.append(torch.nn.functional.interpolate(mask, size=size, mode="nearest")[0, 0].long())
    return torch.stack(resized).to(device)


def load_photographs_model(name: str, args: argparse.Namespace) -> LoadedModel:
    """A model with its weights, on the device."""
    loaded = vitrail.load(f"timm:{name}", args.assets / "weights" / f"{name}.safetensors")
    loaded.module.to(args.device)
    assert isinstance(loaded.preprocess, Preprocess)
    return replace(loaded, preprocess=replace(loaded.preprocess, squash=name in SQUASHED))


def score_photographs(name: str, stage: str, maps_of: MapFunction, args: argparse.Namespace) -> dict[str, Any]:
    """Values of all methods on photographs: segmentation, and LeRF area minus MoRF area."""
    loaded, half, started = load_photographs_model(name, args), [CHOICE, REPORT].index(stage), time.perf_counter()
    assert isinstance(loaded.preprocess, Preprocess)
    squashed = replace(loaded.preprocess, squash=True)  # so that masks fit
    pets, images_of = MaskFolder(args.assets / "pets"), ImageNet(args.assets / "imagenet")
    segmented: dict[str, SegmentationScores] = {}
    for samples, images in batches(pets, half_of(pets, args.pets, half), squashed, args.device):
        masks = resized_masks(samples, squashed.size, args.device)
        for method, maps in maps_of(loaded, images, None).items():
            own = segmented.setdefault(method, SegmentationScores())
            own.add([s.id for s in samples], score_segmentation(maps[:, 0], masks))
    print(f"  pets {time.perf_counter() - started:.0f} s", flush=True)
    chosen = presets(stage)
    precision = torch.bfloat16 if args.device == "cuda" else None
    evaluate = Evaluator(loaded, chosen.values(), batch=args.batch, precision=precision)
    parts, forwards, explaining = [], 0, 0.0
    for samples, images in batches(images_of, half_of(images_of, args.images, half), loaded.preprocess, args.device):
        before = time.perf_counter()
        own_maps = {method: maps[:, 0] for method, maps in maps_of(loaded, images, None).items()}
        explaining += time.perf_counter() - before
        labels = torch.tensor([s.label for s in samples], device=args.device)
        parts.append(evaluate(images, own_maps, labels=labels, ids=[s.id for s in samples]))
        forwards += parts[-1].forwards.total
        taken = time.perf_counter() - started
        print(f"  {len(parts)} batches, {forwards} forwards, {taken:.0f} s, explaining {explaining:.0f} s", flush=True)
    records = PerturbationRecords.join(parts)
    scores: dict[str, dict[str, MethodValues]] = {score: {} for score in SCORES}
    for method, own in segmented.items():
        ids, regions = tuple(own.ids), own.regions().at(0)
        accuracy = regions.intersection.sum((1, 2)) / regions.labelled
        tables = (accuracy[:, None], own.column("ap")[:, None], own.ratios())
        for score, table in zip(SCORES, tables, strict=False):
            scores[score][method] = MethodValues(ids, table)
        for score, preset in chosen.items():
            areas = records.sample_scores(preset, method)
            lerf, morf = (
                areas.column(preset.label(f"{curve}({preset.fills[0]})")) for curve in ("negative", "positive")
            )
            scores[score][method] = MethodValues(tuple(areas.ids), (lerf - morf)[:, None])
    return scores


def score_scenes(stage: str, maps_of: MapFunction, args: argparse.Namespace) -> dict[str, Any]:
    """Values of all methods on scenes with two objects: class-discrimination accuracy and relevance mass."""
    loaded = vitrail.load(SCENES)
    loaded.module.to(args.device)
    data = Scenes(split="val" if stage == CHOICE else "test", pairs=True, count=args.scenes)
    tables: dict[str, dict[str, list[Tensor]]] = {score: {} for score in PAIRS}
    for start in range(0, args.scenes, BATCH):
        indices = range(start, min(start + BATCH, args.scenes))
        scenes, images = [data[i] for i in indices], data.batch(indices)[0].to(args.device)
        masks = torch.from_numpy(np.stack([scene.masks for scene in scenes])).to(args.device).double()
        for method, maps in maps_of(loaded, images, [list(scene.classes) for scene in scenes]).items():
            positive = maps.double().clamp_min(0)
            on_object = torch.einsum("bkhw,bjhw->bkj", positive, masks)  # of map k, on object j
            per_pixel = on_object / masks.sum((2, 3))[:, None]
            target, other = per_pixel.diagonal(dim1=1, dim2=2), per_pixel.flip(2).diagonal(dim1=1, dim2=2)
            accuracy = torch.where(target == other, 0.5, (target > other).double())
            mass = on_object.diagonal(dim1=1, dim2=2) / positive.sum((2, 3)).clamp_min(1e-12)
            for score, values in zip(PAIRS, (accuracy, mass), strict=True):
                tables[score].setdefault(method, []).append(values.mean(1).cpu())
    ids = tuple(f"{i:05d}" for i in range(args.scenes))
    return {
        score: {method: MethodValues(ids, torch.cat(own)[:, None].numpy()) for method, own in by_method.items()}
        for score, by_method in tables.items()
    }


def mean_ranks(values: Values, methods: Sequence[str]) -> dict[str, float]:
    """Mean rank of methods over all scores and models of photographs; 1 is the best, equal scores share a rank."""
    columns = []
    for model in PHOTOGRAPHS:
        for score in SCORES:
            own = values.get(model, score)
            scores = np.array([float(own[m].score(own[m].table.mean(0))) for m in methods])
            columns.append([1 + (scores > s).sum() + ((scores == s).sum() - 1) / 2 for s in scores])
    return dict(zip(methods, np.mean(columns, 0).tolist(), strict=True))


def choose_form(values: Values) -> tuple[Form, list[dict[str, Any]]]:
    """Apply the rule of the choice; the chosen form, and a row for each candidate, best mean rank first."""
    forms = {str(form): form for form in candidates()}
    ranks = mean_ranks(values, list(forms))
    rows = []
    for name in sorted(forms, key=ranks.__getitem__):
        row: dict[str, Any] = {"form": name, "mean_rank": round(ranks[name], 3), "ingredients": forms[name].ingredients}
        for score in PAIRS:
            own = values.get(SCENES, score)
            row[score] = round(float(own[name].table.mean()), 5)
            row[f"{score}, to first form"] = difference(own[name].table, own[str(FIRST_FORM)].table)
        row["passes"] = all(row[f"{score}, to first form"].high >= 0 for score in PAIRS)
        rows.append(row)
    passing = [row for row in rows if row["passes"]] or rows
    near = [row for row in passing if row["mean_rank"] <= passing[0]["mean_rank"] + 1]
    chosen = min(near, key=lambda row: (row["ingredients"], row["mean_rank"]))
    return forms[chosen["form"]], rows


def report_rows(values: Values, stage: str) -> Iterator[dict[str, Any]]:
    """A row for each model, score and method: value, interval; in the report, difference to the best of few passes."""
    for model in (*PHOTOGRAPHS, SCENES):
        if not values.methods(model):
            continue
        for score in PAIRS if model == SCENES else SCORES:
            own = values.get(model, score)
            compared = {m: v for m, v in own.items() if m not in MORE_PASSES}
            ranked = rank_methods(compared, "up", CONTROLS) if stage == REPORT else {}
            for method, given in own.items():
                found = ranked.get(method)
                value, low, high = interval(given.table, given.score) if found is None else found.value
                test = None if found is None else found.to_best
                factor = 1 if score.startswith("SRG") else 100  # areas are in points already
                yield {
                    "model": model, "half": stage, "score": score, "method": method, "images": len(given.ids),
                    "value": round(factor * value, 3), "low": round(factor * low, 3), "high": round(factor * high, 3),
                    "to_best": "" if test is None else round(factor * test.difference.value, 3),
                    "p_to_best": "" if test is None else round(test.p_holm, 4),
                }  # fmt: skip


def map_function(forms: Sequence[Form], references: Sequence[str]) -> MapFunction:
    """Maps of some forms and of some methods."""

    def maps_of(loaded: LoadedModel, images: Tensor, target: Any) -> dict[str, Tensor]:
        found = dict(zip(map(str, forms), maps_of_forms(loaded, images, forms, target), strict=True)) if forms else {}
        if references:
            explanations = vitrail.explain(loaded, images, methods=list(references), target=target)
            found |= {name: explanations[name].maps for name in references}
        return found

    return maps_of


def main() -> None:
    """Choose on the first halves, report on the second, and write values, tables and manifest."""
    parser = options(__doc__, assets=..., images=800, batch=512, minutes=8.0, out=...)
    parser.add_argument("--pets", type=int, default=300)
    parser.add_argument("--scenes", type=int, default=300, help="scenes with two objects in each half")
    parser.add_argument("--skip-tables", action="store_true", help="write values only; run again for the tables")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    clock = Clock(args.minutes)
    settings = manifest(args.device, pets=args.pets, images=args.images, scenes=args.scenes)
    chosen: Form | None = None
    for stage in (CHOICE, REPORT):
        values = Values(args.out / f"{stage}.npz")
        forms, references = [*candidates(), *FORMER], ()
        if stage == REPORT:
            chosen, order = choose_form(Values(args.out / f"{CHOICE}.npz"))
            by_name = {str(form): form for form in candidates()}
            near = [by_name[row["form"]] for row in order if row["passes"]][:4]
            forms, references = list(dict.fromkeys([chosen, *near, *FORMER])), REFERENCES
            print(f"chosen: {chosen}", flush=True)
        for model in (SCENES, *PHOTOGRAPHS):
            there = values.methods(model)
            left = [form for form in forms if str(form) not in there], [m for m in references if m not in there]
            if not any(left):
                continue
            if clock.is_over(f"{stage} of {model}"):
                return
            print(f"{stage}: {model}, {sum(map(len, left))} methods, {clock}", flush=True)
            maps_of = map_function(*left)
            found = score_scenes(stage, maps_of, args) if model == SCENES else None
            values.put(model, found or score_photographs(model, stage, maps_of, args))
        if stage == CHOICE:
            chosen, order = choose_form(values)
            content = {"chosen": str(chosen), "form": vars(chosen), "settings": settings, "order": order}
            save_json(args.out / "choice.json", content)
            for row in order[:12]:
                print(f"{row['mean_rank']:6.2f} {'passes' if row['passes'] else 'below floor':12s} {row['form']}")
        elif not args.skip_tables:
            rows = [*report_rows(Values(args.out / f"{CHOICE}.npz"), CHOICE), *report_rows(values, REPORT)]
            save_csv(args.out / "leadlight.csv", rows, list(rows[0]))
            for row in rows:
                if row["half"] == REPORT and row["method"] in (str(chosen), str(FIRST_FORM)):
                    print(*row.values())
    print(f"finished after {clock}", flush=True)


if __name__ == "__main__":
    main()
