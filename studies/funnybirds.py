"""Score methods by the seven protocols of FunnyBirds, on rendered birds and a ViT fine-tuned on them.

    python -m training.funnybirds --assets ASSETS --out RUN
    python studies/funnybirds.py --assets ASSETS --weights RUN/funnybirds.safetensors --device cuda --out DIR
    python studies/funnybirds.py --join DIR --out studies/results/funnybirds

``--assets`` has ``funnybirds/parts`` (the part models of the authors). Classes and 500 test scenes are drawn with
fixed seeds. All 32 sets of parts of each scene, and each scene without each of its background objects, are rendered and
classified once; then each method explains four classes of each image. A method's relevance of patches is enlarged to
the size of the image without interpolation.

``funnybirds.json`` has the scores of the model and of each method; ``funnybirds.parquet`` the values of each image at
the method's threshold, NaN where a protocol leaves the image out. Both are written after each method. ``--images``
takes every n-th scene, for methods of many passes. With ``--responses FILE`` the logits of the interventions are kept
and used again, so that several runs share them. ``--join`` adds the methods of another run of the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from bird_values import PROTOCOLS, mean_interval
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from study import RESULTS, SINGLE_PASS_METHODS, Clock, manifest, options, read_json, save_json, timed
from torch import Tensor
from training.funnybirds import MEAN, STD, TEST_SEED, load_trained, resize
from training.images import normalise

import vitrail
from vitrail.data.funnybirds.birds import BirdScene, draw_bird_classes, draw_bird_scenes, intervene, list_interventions
from vitrail.data.funnybirds.renderer import BirdRenderer
from vitrail.errors import MapWarning, VitrailError
from vitrail.scores.funnybirds import (
    PART_THRESHOLDS,
    BirdResponses,
    PartImportance,
    measure_parts,
    score_bird_maps,
    score_bird_model,
    summarise_birds,
)

METHODS = (
    *SINGLE_PASS_METHODS, "leadlight:object", "leadlight:fast", "vtranm:af+l", "gradtoken:cosine", "gradient_x_input",
    "random", "centre", "edges", "iia", "dix", "tam", "bi_attn", "integrated_gradients", "smoothgrad", "attattr",
    "occlusion", "vit_cx", "rise:masks=500", "value_zeroing", "scorecam", "tis", "shapley",
)  # fmt: skip
DIMENSIONS = ("completeness", "correctness", "contrastivity", "mean")


def model_inputs(images: Tensor) -> Tensor:
    """Rendered images as the model takes them."""
    return normalise(resize(images), MEAN, STD)


def weights_hash(path: Path) -> str:
    """SHA-256 of a file of weights."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kept_responses(
    file: Path | None, weights: Path, numbers: list[int], compute: Callable[[], BirdResponses]
) -> BirdResponses:
    """Responses of some scenes from a file of the same weights that has them all, else computed and written to it.

    Args:
        file: Logits with the numbers of the scenes, or None to keep nothing.
        weights: Of the model.
        numbers: Of the scenes.
        compute: Renders and classifies the interventions of the scenes.
    """
    digest = weights_hash(weights)
    if file is not None and file.is_file():
        with safe_open(file, "pt") as opened:
            same = (opened.metadata() or {}).get("weights") == digest
        stored = load_file(file)
        places = {number: place for place, number in enumerate(stored["numbers"].tolist())}
        if same and places.keys() >= set(numbers):
            rows = torch.tensor([places[number] for number in numbers])
            own = {name: stored[name][rows] for name in ("labels", "subsets", "objects")}
            return BirdResponses(draw_bird_classes(), **own)
    found = compute()
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        own = {name: getattr(found, name).contiguous() for name in ("labels", "subsets", "objects")}
        save_file({"numbers": torch.tensor(numbers), **own}, file, {"weights": digest})
    return found


def respond(model: torch.nn.Module, renderer: BirdRenderer, scenes: list[BirdScene]) -> BirdResponses:
    """Render and classify all interventions."""
    changed = [intervene(scenes, own) for own in list_interventions(scenes)]
    logits = []
    with torch.inference_mode():
        for start in range(0, len(changed), renderer.batch):
            images = renderer.render(changed[start : start + renderer.batch])
            logits.append(model(model_inputs(images)).float().cpu())
    return BirdResponses.of(draw_bird_classes(), scenes, torch.cat(logits))


def explain(
    model: torch.nn.Module, images: Tensor, labels: Tensor, targets: Tensor, method: str, batch: int
) -> PartImportance:
    """Relevance of the parts in the maps of a method."""
    found = []
    for start in range(0, len(images), batch):
        own = slice(start, start + batch)
        e = vitrail.explain(model, model_inputs(images[own]), method, target=targets[own].tolist())
        maps = F.interpolate(torch.nan_to_num(e.grid.float()), images.shape[-2:], mode="nearest")
        found.append(PartImportance(*(v.cpu() for v in measure_parts(maps, labels[own]))))
    return PartImportance(*(torch.cat(own) for own in zip(*found, strict=True)))


def at_threshold(values: dict[str, Tensor], threshold: float) -> np.ndarray:
    """Values of each image at a threshold, a column for each protocol."""
    index = int((PART_THRESHOLDS - threshold).abs().argmin())
    return torch.stack([values[p][:, index] if values[p].ndim == 2 else values[p] for p in PROTOCOLS], 1).numpy()


def row_of(values: dict[str, Tensor]) -> tuple[dict[str, Any], np.ndarray]:
    """Scores of a method with the 95 % interval of their mean, and the values of each image."""
    found = summarise_birds(values)
    own = at_threshold(values, found["threshold"])
    mean = mean_interval(own)
    if mean is None:
        return {k: round(v, 5) for k, v in found.items()}, own
    left_out = {f"{p}_images": int(n) for p, n in zip(PROTOCOLS, (~np.isnan(own)).sum(0), strict=True)}
    return {k: round(v, 5) for k, v in {**found, "low": mean.low, "high": mean.high}.items()} | left_out, own


def save(folder: Path, result: dict[str, Any], per_image: dict[str, np.ndarray], numbers: list[int]) -> None:
    """Write the scores and the values of each image, with the numbers of the scenes."""
    save_json(folder / "funnybirds.json", result)
    columns: dict[str, Any] = {"method": [m for m, v in per_image.items() for _ in v]}
    columns["image"] = numbers * len(per_image)
    table = np.concatenate(list(per_image.values())).astype(np.float32)
    columns |= {p: table[:, i] for i, p in enumerate(PROTOCOLS)}
    pq.write_table(pa.table(columns), folder / "funnybirds.parquet", compression="zstd")


def join(folder: Path, out: Path) -> None:
    """Add the methods of a run to results of the same model; a method that both have is replaced."""
    results = [read_json(own / "funnybirds.json", None) for own in (out, folder)]
    tables = [pq.read_table(own / "funnybirds.parquet") for own in (out, folder)]
    old, new = results
    kept = pa.array([method not in new["methods"] for method in tables[0]["method"].to_pylist()])
    for row in new["methods"].values():
        row["images"] = new["model"]["images"]
    save_json(out / "funnybirds.json", {**old, "methods": {**old["methods"], **new["methods"]}})
    joined = pa.concat_tables([tables[0].filter(kept), tables[1].cast(tables[0].schema)])
    pq.write_table(joined, out / "funnybirds.parquet", compression="zstd")


def run(args: argparse.Namespace) -> None:
    """Render, classify, explain and score."""
    clock = Clock(args.minutes)
    warnings.simplefilter("ignore", MapWarning)
    torch.set_float32_matmul_precision("high")
    args.out.mkdir(parents=True, exist_ok=True)
    model = load_trained(args.weights, torch.device(args.device))
    renderer = BirdRenderer(args.assets / "funnybirds" / "parts", device=args.device, batch=args.batch)
    scenes = draw_bird_scenes(draw_bird_classes(), 10, removed=False, seed=TEST_SEED)
    numbers = list(range(len(scenes)))[:: max(1, len(scenes) // args.images)][: args.images]
    scenes = [scenes[i] for i in numbers]
    images, labels = renderer.render_with_parts(scenes)
    responses, seconds = timed(
        lambda: kept_responses(args.responses, args.weights, numbers, lambda: respond(model, renderer, scenes)),
        args.device,
    )
    print(f"{len(images)} scenes and their interventions: {seconds:.0f} s", flush=True)
    if args.device != "cpu":
        torch.cuda.empty_cache()
    of_model = score_bird_model(responses)
    present = of_model["objects"].sum().item()
    independent = (torch.nan_to_num(of_model["background_independence"]) * of_model["objects"]).sum().item() / present
    result: dict[str, Any] = {
        "model": {
            "accuracy": of_model["accuracy"].mean().item(), "background_independence": independent,
            "images": len(scenes), "background_objects": int(present), "seconds": round(seconds, 1),
        },
        "manifest": manifest(args.device, batch=args.explained, matmul="tf32"),
        "training": read_json(args.weights.with_name("manifest.json"), {}),
        "methods": {},
    }  # fmt: skip
    print(result["model"], flush=True)
    per_image: dict[str, np.ndarray] = {}
    for method in args.methods:
        if clock.is_over(method):
            break
        try:
            found, seconds = timed(
                lambda method=method: explain(model, images, labels, responses.targets, method, args.explained),
                args.device,
            )
        except (VitrailError, torch.cuda.OutOfMemoryError) as error:
            print(f"{method}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        row, per_image[method] = row_of(score_bird_maps(responses, found))
        known = {name: None if value != value else value for name, value in row.items()}  # JSON has no NaN
        result["methods"][method] = known | {"seconds": round(seconds, 2)}
        shown = ", ".join(f"{name} {100 * row[name]:.1f}" for name in (*DIMENSIONS, *PROTOCOLS))
        print(f"{method:28s} {shown}, {seconds:.1f} s ({clock})", flush=True)
        save(args.out, result, per_image, numbers)


def main() -> None:
    """Parse the arguments and run."""
    parser = options(
        __doc__, assets=None, batch=64, images=500, minutes=6.0, methods=list(METHODS), out=RESULTS / "funnybirds"
    )
    parser.add_argument("--weights", type=Path, help="weights of training.funnybirds")
    parser.add_argument("--join", type=Path, help="folder of another run, whose methods are added")
    parser.add_argument("--responses", type=Path, help="file of the logits of the interventions, written if missing")
    parser.add_argument("--explained", type=int, default=50, help="images that are explained together (%(default)s)")
    args = parser.parse_args()
    join(args.join, args.out) if args.join else run(args)


if __name__ == "__main__":
    main()
