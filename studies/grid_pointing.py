"""Score methods by protocols of other papers, and forms of leadlight by the rule below, on three models.

    python studies/grid_pointing.py pack --assets DIR --models vit-t --out PACKED
    python studies/grid_pointing.py run --assets PACKED --models vit-t --device cuda --out DIR
    python studies/grid_pointing.py photo --assets DIR --models vit-t --photo FILE --out FILE

``pack`` copies what a run of some models needs into a smaller folder of the same layout. ``--assets`` has ``weights``
(timm weights of the models), ``imagenet/val`` (images of ImageNet by class) and ``pets`` (images, masks, labels.csv).

Protocols: grid pointing game (the images are classified correctly with a probability of at least 0.8, squashed, four
to a grid), DiFull and DiPart; ROAD, SaCo, monotonicity and infidelity of the predicted class; SRG (LeRF minus MoRF area
of the accuracy, presets chefer21 and chefer21-mean); segmentation of pets; class discrimination on scenes; and the
check of single maps. A hash of the image id divides images into halves; of scenes, ``val`` is the first and ``test``
the second.

Leadlight's third form. On parts of the first halves (24 scenes; of ViT-Tiny and DINOv2-S 16 pets and 8 grids each;
neither SRG nor the check) about 45 forms were tried that compare the class with its 4 or 8 likeliest others, one by
one, and forms that compare what speaks for the class with what speaks against it, from the negative gradient of the
same backward pass; with vtranm, transformer_mm or both as source; with equal weights or weights by the probability;
before or after the spreading; with exponents 1 to 3. Chosen: what speaks for and against the class, weighted by its
probability, before the spreading, exponent 1, vtranm as source, the averages shifted to a minimum of zero. It is
``leadlight``; the former default is ``leadlight:object``.

The rule, fixed before the second halves were measured (``--half 1``): the form stays the default if on every model
(1) its cell_share is at least that of transformer_mm, of raw relevance and of maps, (2) its mIoU is at most 2.5 points
below leadlight:object, (3) its SRG is not significantly below leadlight:object (95 % interval of the paired difference,
bootstrap, includes zero or lies above), (4) the four corners have at most 2 % of the relevance on pets, and if (5)
class discrimination on scenes and the share of maps that pass the check are not below those of leadlight:object on the
same images. Goals beyond the rule, reported whatever they are: class discrimination of 95 %, 90 % that pass the check.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from study import SINGLE_PASS_METHODS, Clock, manifest, save_json, timed
from torch import Tensor

import vitrail
from vitrail.capture.removal import TokenDropper
from vitrail.data import ImageNet, MaskFolder, Scenes
from vitrail.data.image_grids import draw_grids
from vitrail.errors import DataWarning, MapWarning, NotApplicableError
from vitrail.methods.postprocess import upsample
from vitrail.models.preprocess import Preprocess
from vitrail.scores import (
    Evaluator,
    PerturbationRecords,
    SegmentationScores,
    difference,
    find_presets,
    fold_of,
    interval,
    mean_ratio,
    score_segmentation,
    score_selectivity,
)
from vitrail.scores.disconnected import DisconnectedGrid
from vitrail.scores.grid_pointing import compose_grids, score_grid_pointing
from vitrail.scores.infidelity import patch_effects, score_infidelity
from vitrail.scores.monotonicity import score_monotonicity
from vitrail.scores.road import score_road
from vitrail.scores.saco import score_saco

MODELS = {
    "vit-t": "vit_tiny_patch16_224", "deit-t": "deit_tiny_patch16_224", "dinov2-s": "vit_small_patch14_dinov2",
}  # fmt: skip
CHOSEN, OBJECT = "leadlight", "leadlight:object"
METHODS = (
    *SINGLE_PASS_METHODS, OBJECT, "leadlight:fast", "vtranm:af+l", "gradtoken:cosine", "gradtoken:3",
    "random", "centre",
)  # fmt: skip
CONFIDENT = 0.8
BATCH = 20
#: By score, one value per image for each method.
Values = dict[str, dict[str, list[float]]]


def load(name: str, args: argparse.Namespace) -> tuple[Any, Preprocess]:
    """A model with its weights on the device, and a preprocessing that squashes."""
    loaded = vitrail.load(f"timm:{MODELS[name]}", args.assets / "weights" / f"{MODELS[name]}.safetensors")
    loaded.module.to(args.device).eval()
    assert isinstance(loaded.preprocess, Preprocess)
    squashed = replace(loaded.preprocess, squash=True)
    return replace(loaded, preprocess=squashed), squashed


def half_of(data: Any, half: int, count: int) -> list[int]:
    """Indices of one half of the images, by a hash of their ids, spread over all of them."""
    own = [i for i in range(len(data)) if fold_of(data.ids[i]) == half]
    return own[:: max(1, len(own) // max(1, count))][:count]


def batches(items: Any, size: int = BATCH) -> Iterator[Any]:
    """Parts of a sequence."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def timely(args: argparse.Namespace, items: Any, size: int = BATCH) -> Iterator[Any]:
    """Parts of a sequence until the time limit is over."""
    for part in batches(items, size):
        if args.clock.is_over("the next part"):
            return
        yield part


def add(values: Values, method: str, found: dict[str, Tensor], only: tuple[str, ...] = ()) -> None:
    """Append the values of a batch."""
    for score, own in found.items():
        if score != "flat" and (not only or score in only):
            values.setdefault(score, {}).setdefault(method, []).extend(own.double().cpu().tolist())


def explain(loaded: Any, images: Tensor, methods: Sequence[str], target: Any, **given: Any) -> dict[str, Any]:
    """Explanations of all methods in one call; of those that apply where some do not."""
    try:
        return dict(vitrail.explain(loaded, images, methods=methods, target=target, **given))
    except NotApplicableError:
        if len(methods) == 1:
            return {}
    alone = [explain(loaded, images, [method], target, **given) for method in methods]
    return {name: e for found in alone for name, e in found.items()}


def raw_maps(explanation: Any) -> Tensor:
    """The relevance before scaling, at the size of the image."""
    return upsample(explanation.grid.float(), tuple(explanation.maps.shape[-2:]))


def predictor(module: torch.nn.Module, batch: int = 512) -> Any:
    """Class probabilities of images, in parts."""

    def predict(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.cat([module(part).float().softmax(-1) for part in batches(images, batch)])

    return predict


def grids(loaded: Any, squashed: Preprocess, args: argparse.Namespace) -> Values:
    """The grid pointing game, DiFull and DiPart."""
    if not args.grids and not args.disconnected:
        return {}
    data = ImageNet(args.assets / "imagenet")
    chosen = half_of(data, args.half, args.images)
    images = torch.stack([squashed(data[i].image) for i in chosen])
    labels = np.array([data[i].label for i in chosen])
    predict = predictor(loaded.module)
    probabilities = torch.cat([predict(part.to(args.device)).cpu() for part in batches(images, 100)])
    eligible = (probabilities[torch.arange(len(labels)), labels] >= args.confidence).nonzero()[:, 0].numpy()
    print(f"  {len(eligible)} of {len(chosen)} images are classified with confidence", flush=True)
    drawn = eligible[draw_grids(labels[eligible], max(args.grids, args.disconnected))]
    values: Values = {}
    for part in timely(args, drawn[: args.grids]):
        own = compose_grids(images[part.flatten()].unflatten(0, part.shape)).to(args.device)
        for method, e in explain(loaded, own, args.methods, labels[part].tolist()).items():
            shown = score_grid_pointing(e.maps)
            add(values, method, shown, ("cell_peak", "corners"))
            add(values, method, {"cell_share (maps)": shown["cell_share"]})
            add(values, method, {"cell_share": score_grid_pointing(raw_maps(e))["cell_share"]})
    size = (2 * squashed.size[0], 2 * squashed.size[1])
    models = {cell: DisconnectedGrid(loaded.module, cell=cell) for cell in (None, *range(4))}
    for part in timely(args, drawn[: args.disconnected], 4):
        own = compose_grids(images[part.flatten()].unflatten(0, part.shape), size=size).to(args.device)
        shares: dict[str, dict[str, list[Tensor]]] = {"difull": {}, "dipart": {}}
        for cell in range(4):
            for setting, model in (("difull", models[cell]), ("dipart", models[None])):
                target = labels[part][:, cell].tolist()
                for method, e in explain(model.to(args.device), own, args.methods, target, layout=model.layout).items():
                    found = score_grid_pointing(raw_maps(e), torch.full((len(part), 1), cell))
                    shares[setting].setdefault(method, []).append(found["cell_share"])
        for setting, by_method in shares.items():
            for method, own_shares in by_method.items():
                add(values, method, {setting: torch.stack(own_shares).mean(0)})
    return values


def faithfulness(loaded: Any, squashed: Preprocess, args: argparse.Namespace) -> Values:
    """ROAD, SaCo, monotonicity and infidelity, and SRG on more images."""
    data, values = ImageNet(args.assets / "imagenet"), Values()
    predict = predictor(loaded.module)
    patch = loaded.module.patch_embed.patch_size[0]
    for part in timely(args, half_of(data, args.half, args.faithful)):
        images = torch.stack([squashed(data[i].image) for i in part]).to(args.device)
        classes = predict(images).argmax(1)
        single = patch_effects(predict, images, classes, patch, cumulative=False)
        for method, e in explain(loaded, images, args.methods, classes.tolist()).items():
            maps = e.maps[:, 0]
            add(values, method, score_road(predict, images, maps, classes), ("road", "road_morf", "road_lerf"))
            add(values, method, score_saco(predict, images, maps, classes))
            add(values, method, score_monotonicity(predict, images, maps, classes))
            add(values, method, score_infidelity(maps, single))
    presets = find_presets(args.presets)
    precision = torch.bfloat16 if args.device == "cuda" else None
    evaluate = Evaluator(loaded, presets, batch=args.batch, precision=precision)
    records = []
    for part in timely(args, half_of(data, args.half, args.srg), 50):
        samples = [data[i] for i in part]
        images = torch.stack([squashed(s.image) for s in samples]).to(args.device)
        maps = {method: e.maps[:, 0] for method, e in explain(loaded, images, args.methods, None).items()}
        labels = torch.tensor([s.label for s in samples], device=args.device)
        records.append(evaluate(images, maps, labels=labels, ids=[s.id for s in samples]))
    joined = PerturbationRecords.join(records) if records else None
    for method in maps if joined else ():
        for preset in presets:
            fill, areas = preset.fills[0], joined.sample_scores(preset, method)
            lerf, morf = (areas.column(preset.label(f"{c}({fill})")) for c in ("negative", "positive"))
            values.setdefault(f"SRG, {preset.name}", {})[method] = (lerf - morf).tolist()
    return values


def localisation(loaded: Any, squashed: Preprocess, args: argparse.Namespace) -> tuple[Values, dict[str, Any]]:
    """Segmentation of pets (values are ratios, see `SegmentationScores`), and the check of single maps."""
    data, values = MaskFolder(args.assets / "pets"), Values()
    segmented: dict[str, SegmentationScores] = {}
    for part in timely(args, half_of(data, args.half, args.pets)):
        samples = [data[i] for i in part]
        images = torch.stack([squashed(s.image) for s in samples]).to(args.device)
        masks = torch.stack([_mask(s.mask, squashed.size) for s in samples]).to(args.device)
        for method, e in explain(loaded, images, args.methods, None).items():
            own = segmented.setdefault(method, SegmentationScores())
            own.add([s.id for s in samples], score_segmentation(e.maps[:, 0], masks))
            corners = score_grid_pointing(e.maps, n=1)["corners"]
            add(values, method, {"corners (pets)": corners})
        for name, effect in corner_effects(predictor(loaded.module), images, loaded.module).items():
            add(values, name, {"loss of probability (pets)": effect})
    ratios = {method: own.ratios() for method, own in segmented.items()}
    checks: dict[str, dict[str, int]] = {}
    for i in half_of(data, args.half, args.checks):
        image = squashed(data[i].image)[None].to(args.device)
        for method in (OBJECT, CHOSEN):
            verdict = vitrail.explain(loaded, image, method, check="quick").checks[0, 0].verdict
            own_verdicts = checks.setdefault(method, {})
            own_verdicts[verdict] = own_verdicts.get(verdict, 0) + 1
    return values, {"ratios": ratios, "checks": checks}


def corner_effects(predict: Any, images: Tensor, module: Any, draws: int = 8) -> dict[str, Tensor]:
    """Loss of the predicted class's probability without the four corner patches, and without four others at random.

    Patches are painted with the mean colour, or their tokens are dropped: a model can store what it knows of the whole
    image in tokens whose pixels do not matter.
    """
    patch = module.patch_embed.patch_size[0]
    rows, columns = (length // patch for length in images.shape[2:])
    corners = torch.tensor([0, columns - 1, (rows - 1) * columns, rows * columns - 1])
    others = torch.tensor(sorted(set(range(rows * columns)) - set(corners.tolist())))
    generator = torch.Generator().manual_seed(0)
    drawn = [others[torch.randperm(len(others), generator=generator)[:4]] for _ in range(draws)]
    drop = TokenDropper(module, images)
    whole = predict(images)
    classes = whole.argmax(1, keepdim=True)

    def painted(kept: Tensor) -> Tensor:
        mask = kept.view(1, 1, rows, columns).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
        return predict(images * mask)  # zero is the mean colour

    def dropped(kept: Tensor) -> Tensor:
        with torch.inference_mode():
            return drop(images, kept.nonzero()[:, 0].expand(len(images), -1)).float().softmax(-1)

    def loss(remove: Any, patches: Tensor) -> Tensor:
        kept = torch.ones(rows * columns, device=images.device)
        kept[patches.to(images.device)] = 0.0
        return (whole - remove(kept)).gather(1, classes)[:, 0]

    found = {}
    for name, remove in (("pixels", painted), ("tokens", dropped)):
        found[f"corners, {name}"] = loss(remove, corners)
        found[f"random patches, {name}"] = torch.stack([loss(remove, own) for own in drawn]).mean(0)
    return found


def _mask(mask: Any, size: tuple[int, int]) -> Tensor:
    whole = torch.from_numpy(np.array(mask))[None, None].float()
    return torch.nn.functional.interpolate(whole, size=size, mode="nearest")[0, 0].long()


def scenes(args: argparse.Namespace) -> Values:
    """Class discrimination on scenes with two objects."""
    loaded, values = vitrail.load("scenes"), Values()
    loaded.module.to(args.device)
    data = Scenes(("val", "test")[args.half], pairs=True, count=args.scenes)
    for part in batches(range(args.scenes), 50):
        own = [data[i] for i in part]
        masks = torch.from_numpy(np.stack([scene.masks for scene in own])).to(args.device)
        images, classes = data.batch(part)[0].to(args.device), [list(scene.classes) for scene in own]
        for method, e in explain(loaded, images, args.methods, classes).items():
            add(values, method, score_selectivity(e.maps, masks), ("share", "mass"))
    return values


def summarise(values: Values) -> dict[str, Any]:
    """Mean and 95 % interval of every score, and the difference to leadlight:object."""
    rows: dict[str, Any] = {}
    for score, by_method in values.items():
        for method, own in by_method.items():
            table = np.array(own)[:, None]
            row = {"images": len(own), "mean": [round(v, 5) for v in interval(table)]}
            if method != OBJECT and OBJECT in by_method:
                row["to_object"] = [round(v, 5) for v in difference(table, np.array(by_method[OBJECT])[:, None])]
            rows.setdefault(score, {})[method] = row
    return rows


def segmented(table: np.ndarray, reference: np.ndarray | None) -> dict[str, Any]:
    """MIoU of a method with its 95 % interval, and the difference to leadlight:object."""
    row = {"images": len(table), "mean": [round(v, 5) for v in interval(table, mean_ratio)]}
    if reference is not None:
        row["to_object"] = [round(v, 5) for v in difference(table, reference, mean_ratio)]
    return row


def speed(loaded: Any, args: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds of explaining eight images, beside a forward pass."""
    images = torch.randn(8, 3, *loaded.preprocess.size, device=args.device)
    calls = {m: lambda m=m: vitrail.explain(loaded, images, m, target=1) for m in (OBJECT, CHOSEN)}
    calls["forward"] = lambda: predictor(loaded.module)(images)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.repeats):
        for name, call in calls.items():
            taken[name].append(1e3 * timed(call, args.device)[1])
    return {name: float(np.median(own[len(own) // 2 :])) for name, own in taken.items()}


def joined_manifest(before: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of several runs: the larger of two numbers of images, all methods and presets."""

    def joined(name: str, new: Any) -> Any:
        old = before.get(name)
        if isinstance(new, list | tuple) and old is not None:
            return list(dict.fromkeys([*old, *new]))
        return max(old, new) if isinstance(new, int) and isinstance(old, int) else new

    return {name: joined(name, new) for name, new in settings.items()}


def save_values(path: Path, values: Values) -> None:
    """Write the values of each image, in the order of the images; keep those of other scores and methods."""
    new = {(score, method): own for score, by_method in values.items() for method, own in by_method.items()}
    if path.exists():
        kept: dict[tuple[str, str], list[float]] = {}
        for row in pq.read_table(path).to_pylist():
            kept.setdefault((row["score"], row["method"]), []).append(row["value"])
        new = {**kept, **new}
    columns = [(score, method, i, np.float32(v)) for (score, method), own in new.items() for i, v in enumerate(own)]
    names = ("score", "method", "number", "value")
    table = pa.table({name: [row[k] for row in columns] for k, name in enumerate(names)})
    pq.write_table(table, path, compression="zstd")


def run(args: argparse.Namespace) -> None:
    """Measure all models, and write a summary and the values of each image."""
    warnings.simplefilter("ignore", MapWarning)
    warnings.simplefilter("ignore", DataWarning)
    args.out.mkdir(parents=True, exist_ok=True)
    settings = {k: v for k, v in vars(args).items() if k not in ("assets", "out", "do", "device", "minutes")}
    args.clock = Clock(args.minutes)
    settings = manifest(args.device, **settings)
    for name in args.models:
        start, result = time.perf_counter(), {"model": name, "manifest": settings}
        values: Values = {}
        if name == "scenes":
            values = scenes(args)
        else:
            loaded, squashed = load(name, args)
            values |= grids(loaded, squashed, args)
            print(f"  {name}: grids {time.perf_counter() - start:.0f} s", flush=True)
            values |= faithfulness(loaded, squashed, args)
            print(f"  {name}: faithfulness {time.perf_counter() - start:.0f} s", flush=True)
            more, found = localisation(loaded, squashed, args)
            values |= more
            ratios = found.pop("ratios")
            if ratios:
                found["mIoU"] = {m: segmented(table, ratios.get(OBJECT)) for m, table in ratios.items()}
            if args.repeats:
                found["milliseconds"] = speed(loaded, args)
            result |= {key: value for key, value in found.items() if value}
            values |= {f"mIoU, column {i}": {m: t[:, i].tolist() for m, t in ratios.items()} for i in range(4)}
        result["scores"] = {key: row for key, row in summarise(values).items() if "column" not in key}
        path = args.out / f"{name}-{args.half}.json"
        if path.exists():  # a run of other parts or methods
            before = json.loads(path.read_text(encoding="utf-8"))
            scores = {key: {**rows, **result["scores"].get(key, {})} for key, rows in before["scores"].items()}
            result = {**before, **result, "scores": {**result["scores"], **scores}}
            result["manifest"] = joined_manifest(before["manifest"], settings)
        save_json(path, result)
        save_values(path.with_suffix(".parquet"), values)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        for method in args.methods:
            cells = [
                f"{score} {100 * rows[method]['mean'][0]:.1f}"
                for score, rows in result["scores"].items()
                if method in rows
            ]
            print(f"  {method:40s} {', '.join(cells)}")


def photo(args: argparse.Namespace) -> None:
    """Measure what the corners of a photograph have of the relevance, and what they change, on one model."""
    (name,) = args.models
    loaded = vitrail.load(f"timm:{MODELS[name]}", args.assets / "weights" / f"{MODELS[name]}.safetensors")
    assert isinstance(loaded.preprocess, Preprocess)
    image = loaded.preprocess(Image.open(args.photo).convert("RGB"))[None]
    predict = predictor(loaded.module.eval())
    effects = corner_effects(predict, image, loaded.module, draws=40)
    relevance = vitrail.explain(loaded, image, CHOSEN).grid[0, 0].double()
    corners = sum(float(relevance[i, j]) for i in (0, -1) for j in (0, -1)) / float(relevance.sum())
    found = {"probability": float(predict(image).max()), "corners": corners}
    losses = {f"loss, {kind}": float(own) for kind, own in effects.items()}
    save_json(args.out, {"manifest": manifest("cpu", photo=args.photo.name, model=name), **found, **losses})


def pack(args: argparse.Namespace) -> None:
    """Copy the weights of some models, evenly spread images of ImageNet, and pets."""
    for name in set(args.models) - {"scenes"}:
        path = Path("weights") / f"{MODELS[name]}.safetensors"
        (args.out / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(args.assets / path, args.out / path)
    files = sorted((args.assets / "imagenet" / "val").rglob("*.JPEG"))
    for file in files[:: max(1, len(files) // args.images)][: args.images]:
        to = args.out / file.relative_to(args.assets)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
    shutil.copytree(args.assets / "pets", args.out / "pets", dirs_exist_ok=True)


def main() -> None:
    """Parse the arguments and run or pack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "pack", "photo"))
    parser.add_argument("--photo", type=Path, help="image file, for photo")
    parser.add_argument("--assets", type=Path, required=True, help="folder with weights, imagenet and pets")
    parser.add_argument("--models", nargs="+", choices=(*MODELS, "scenes"), default=[*MODELS, "scenes"])
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--half", type=int, choices=(0, 1), default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=1024, help="most perturbed images in a forward pass")
    for option, default in (
        ("--images", 500), ("--grids", 100), ("--disconnected", 24), ("--faithful", 40), ("--srg", 200),
        ("--pets", 150), ("--checks", 40), ("--scenes", 300), ("--repeats", 8),
    ):  # fmt: skip
        parser.add_argument(option, type=int, default=default)
    parser.add_argument(
        "--presets", nargs="+", default=["chefer21", "chefer21-mean"], help="perturbation tests for SRG"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further part after this time")
    parser.add_argument("--confidence", type=float, default=CONFIDENT)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    {"run": run, "pack": pack, "photo": photo}[args.do](args)


if __name__ == "__main__":
    main()
