"""Train the explainers of ViT Shapley for some models, and compare them with sampled Shapley values.

    PYTHONPATH=src:. python studies/vit_shapley.py --assets DIR --device cuda --out out/vit_shapley

The models are two embedded ones, and those of photographs that the cards of the methods use (`--models vit-t deit-t
dinov2-s`; ``--assets`` has ``weights`` and ``imagenet``), trained on images that the cards leave out.
For each model a surrogate and an explainer are trained and evaluated on held-out images. The number of training steps
is chosen from the measured time of a step, so that each phase takes the seconds in ``BUDGETS``, unless ``--steps``
gives those of an earlier run; it is written to the JSON file. Without a GPU, use ``--rehearse``: tiny sizes, to test
the script.

Reference values are Shapley values by permutation sampling with reversed permutations: of the surrogate's game, which
the explainer was trained on, and of the model's own game with tokens removed. All comparisons are between maps of one
image and class, over its patches, and averaged. The correlation between two halves of the permutations limits what any
map can reach. Correlations and divergences of each image are kept in ``vit_shapley-MODEL.parquet`` beside the JSON
file, and its means are computed from them; a further run of a model replaces both files, because it trains another
explainer.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trust
from card_measurements import PHOTOGRAPHS, PLANNED
from shapley_references import (
    GAMES,
    HALVES,
    PERMUTATIONS,
    add_agreement,
    permutation_values,
    summarise,
    surrogate_fidelity,
)
from study import manifest, options, save_json, timed
from torch import Tensor
from value_tables import Values, save_values, values_path

import vitrail
from vitrail.methods.shapley_explainer import TrainedRun, TrainingImages, TrainingSettings, train_explainer
from vitrail.models import LoadedModel, Preprocess

MODELS = ["scenes", "cifar10"]
#: Seconds of training of the surrogate and of the explainer.
BUDGETS = {"scenes": (35.0, 90.0), "cifar10": (20.0, 50.0)} | dict.fromkeys(PHOTOGRAPHS, (40.0, 120.0))
SETTINGS = {
    "scenes": TrainingSettings(batch=256, groups=8, pairs=8, surrogate_lr=3e-4, explainer_lr=5e-4),
    "cifar10": TrainingSettings(batch=512, groups=8, pairs=8, surrogate_lr=3e-4, explainer_lr=5e-4),
} | dict.fromkeys(PHOTOGRAPHS, TrainingSettings(batch=128, groups=4, pairs=8))
#: Training images, images and permutations of the evaluation.
SIZES = {"scenes": (24_000, 24, 128), "cifar10": (30_000, 48, 256)} | dict.fromkeys(PHOTOGRAPHS, (850, 12, 32))
#: Methods whose maps are compared with the same reference: of one pass, and estimates of Shapley values.
OTHERS = (
    "transformer_mm", "leadlight", "vtranm", "gradtoken", "attnlrp", "cdam", "shapley", "shapley:kernelshap",
)  # fmt: skip


def log(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# --- images -----------------------------------------------------------------------------------------------------------


def scene_pixels(count: int, held_out: int, workers: int) -> tuple[Tensor, Tensor]:
    """Training scenes and held-out pairs, uint8, shape (n, size, size, 3)."""
    from training.scene_data import jobs_of, mixed_jobs, render_scenes

    from vitrail.data import Scenes

    test = render_scenes(jobs_of(Scenes("test", held_out, pairs=True)), 1, 60.0, "test split, pairs").images
    return render_scenes(mixed_jobs(count), workers, 60.0, "train split, every fourth a pair").images, test


def cifar_pixels(count: int, held_out: int, assets: Path) -> tuple[Tensor, Tensor]:
    """Training images and held-out images, evenly spread over the classes."""
    from vitrail.data import CIFAR10

    found = []
    for split, wanted in (("train", count), ("test", held_out)):
        data = CIFAR10(assets / "cifar10" / "cifar10_jpeg.tar.xz", split=split)
        indices = [i * len(data) // wanted for i in range(wanted)]
        found.append(torch.stack([torch.from_numpy(np.array(data[i].image)) for i in indices]))
    return found[0], found[1]


def photographs(count: int, held_out: int, assets: Path, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """Training images, the last ones of ImageNet, and held-out ones among the first that cards explain, as inputs."""
    from vitrail.data import ImageNet

    data, squashed = ImageNet(assets / "imagenet"), replace(preprocess, squash=True)
    explained = [i * len(data) // PLANNED for i in range(held_out)]
    training, test = (
        torch.stack([squashed(data[i].image) for i in own])
        for own in (range(max(len(data) - count, explained[-1] + 1), len(data)), explained)
    )
    return training, test


def normaliser(preprocess: Preprocess, device: torch.device) -> Callable[[Tensor], Tensor]:
    """From pixels to model inputs; the images already have the model's size."""
    mean, std = (torch.tensor(v, device=device).view(1, -1, 1, 1) for v in (preprocess.mean, preprocess.std))
    return lambda pixels: (pixels.to(device).permute(0, 3, 1, 2).float() / 255 - mean) / std


# --- training ---------------------------------------------------------------------------------------------------------


class PhaseClock:
    """Seconds of the steps of each phase, from the calls of ``advance``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.times: dict[str, list[float]] = {}

    def __call__(self, phase: str, step: int, loss: float) -> None:
        """Record the end of a step, and print every 200th."""
        if self.device.type == "cuda" and len(self.times.get(phase, ())) < 30:
            torch.cuda.synchronize(self.device)
        self.times.setdefault(phase, []).append(time.perf_counter())
        if step % 200 == 0:
            log(f"  {phase} step {step}, loss {loss:.5f}")

    def step_seconds(self, phase: str) -> float:
        """Mean time of a step without the first three."""
        times = self.times[phase]
        first = min(3, len(times) - 2)
        return (times[-1] - times[first]) / (len(times) - 1 - first)


def affordable_steps(
    name: str, loaded: LoadedModel, images: TrainingImages, settings: TrainingSettings, device: torch.device
) -> list[int]:
    """Steps of surrogate and explainer that fit the seconds in ``BUDGETS``, from the measured time of a step."""
    with tempfile.TemporaryDirectory() as folder:
        clock = PhaseClock(device)
        short = replace(settings, surrogate_steps=16, explainer_steps=16)
        train_explainer(loaded, images, Path(folder) / "short.safetensors", short, advance=clock)
    seconds = [clock.step_seconds(phase) for phase in ("surrogate", "explainer")]
    return [max(50, int(budget / own)) for budget, own in zip(BUDGETS[name], seconds, strict=True)]


def train(
    name: str, loaded: LoadedModel, images: TrainingImages, device: torch.device, args: argparse.Namespace
) -> tuple[TrainedRun, dict[str, Any]]:
    """Choose the number of steps, and train."""
    settings = SETTINGS[name]
    if args.rehearse:
        settings = replace(settings, batch=8, pairs=2, groups=2)
    steps = [4, 4] if args.rehearse else args.steps or affordable_steps(name, loaded, images, settings, device)
    log(f"{name}: {steps[0]} and {steps[1]} steps")
    settings = replace(settings, surrogate_steps=steps[0], explainer_steps=steps[1])
    started = time.perf_counter()
    path, clock = args.out / f"vit_shapley-{name}.safetensors", PhaseClock(device)
    run = train_explainer(loaded, images, path, settings, advance=clock, checkpoint_steps=200)
    seconds = [clock.step_seconds(phase) for phase in ("surrogate", "explainer")]
    facts = {"seconds": time.perf_counter() - started, "step_seconds": seconds, "bytes": path.stat().st_size,
             "settings": dict(run.record.settings), "losses": dict(run.record.losses), "data": images.description,
             "parameters": sum(p.numel() for p in run.explainer.trained().values())}  # fmt: skip
    log(f"{name}: trained in {facts['seconds']:.0f} s, {facts['bytes']:,} bytes")
    return run, facts


# --- evaluation -------------------------------------------------------------------------------------------------------


def explained(loaded: LoadedModel, images: Tensor, spec: str, classes: Tensor, grid: tuple[int, int]) -> Tensor:
    """Relevance of the patches by a method, shape (b, K, S)."""
    found = vitrail.explain(loaded, images, spec, target=classes.cpu(), batch_size=64).grid.float()
    if tuple(found.shape[-2:]) != grid:
        found = torch.nn.functional.adaptive_avg_pool2d(found, grid)
    return found.flatten(2)


def evaluate(
    name: str, loaded: LoadedModel, run: TrainedRun, images: Tensor, permutations: int, out: Path, rows: int
) -> tuple[dict[str, Any], Values]:
    """Compare the explainer and other methods with sampled Shapley values of the two most probable classes.

    Returns:
        The facts of the evaluation, and the correlations and divergences of each image.
    """
    device, model, partial = images.device, loaded.module, run.partial_images
    values = surrogate_fidelity(partial, model, run.surrogate, images)
    classes = partial.probabilities(model, images).topk(2).indices
    spec = f"vit_shapley:weights={out / f'vit_shapley-{name}.safetensors'}"
    maps, times = {}, {}
    for key in ("vit_shapley", *OTHERS):
        method = spec if key == "vit_shapley" else key
        explained(loaded, images, method, classes, partial.grid)  # warm-up
        maps[key], seconds = timed(lambda m=method: explained(loaded, images, m, classes, partial.grid), device)
        times[key] = seconds / len(images)
    game_times = {}
    for game, player_model in zip(GAMES, (run.surrogate, model), strict=True):
        samples, seconds = timed(
            lambda m=player_model: permutation_values(partial, m, images, classes, permutations, rows),
            device,
        )
        game_times[game] = seconds / len(images)
        half = len(samples) // 2
        add_agreement(values, game, HALVES, samples[:half].mean(0), samples[half:].mean(0))
        for key, value in maps.items():
            add_agreement(values, game, key, value, samples.mean(0))
        for k in (2, 4, 8, 16, 32, 64):
            if k <= half:  # few permutations against all others, so that no permutation is on both sides
                add_agreement(values, game, f"{PERMUTATIONS}{k}", samples[:k].mean(0), samples[k:].mean(0))
    found = summarise(values)
    for game, row in found["games"].items():
        found["games"][game] = {"seconds_per_image": game_times[game], **row}
        shown = (f"{key} {value['pearson']:.3f}/{value['spearman']:.3f}" for key, value in row["methods"].items())
        log(f"{name}, game of the {game}: halves {row['between_halves']['pearson']:.3f}, {', '.join(shown)}")
    facts = {"images": len(images), "permutations": permutations, "players": partial.players}
    return {**facts, "seconds_per_image": times, **found}, values


# --- the script -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Train and evaluate, and write results after each model."""
    parser = options(__doc__, models=MODELS, assets=Path("../shared/assets"), out=...)
    parser.add_argument("--workers", type=int, default=16, help="processes that render scenes")
    parser.add_argument("--rows", type=int, default=3072, help="most images in a forward pass of the reference")
    parser.add_argument("--steps", nargs=2, type=int, help="training steps of surrogate and explainer")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, to test the script")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    sizes = {name: (64, 2, 2) if args.rehearse else size for name, size in SIZES.items()}
    workers = 1 if args.rehearse else args.workers
    pixels = {}
    if "scenes" in args.models:  # before CUDA is used, because the processes are forked
        pixels["scenes"] = scene_pixels(sizes["scenes"][0], sizes["scenes"][1], workers)
        log(f"{len(pixels['scenes'][0])} scenes rendered")
    if "cifar10" in args.models:
        pixels["cifar10"] = cifar_pixels(sizes["cifar10"][0], sizes["cifar10"][1], args.assets)
        log(f"{len(pixels['cifar10'][0])} CIFAR-10 images read")
    device = torch.device(args.device)
    for name, (training, test) in pixels.items():
        loaded = vitrail.load(name)
        loaded.module.to(device)
        assert isinstance(loaded.preprocess, Preprocess)
        to_input = normaliser(loaded.preprocess, device)
        what = "scenes of the train split, every fourth a pair of objects" if name == "scenes" else "images of cifar10"
        run_model(name, loaded, training, test, to_input, what, args)
    for name in [name for name in args.models if name in PHOTOGRAPHS]:
        loaded = trust.load(PHOTOGRAPHS[name], args.assets, args.device)
        training, test = photographs(*sizes[name][:2], args.assets, loaded.preprocess)
        run_model(name, loaded, training, test, lambda images: images.to(device), "images of ImageNet", args)
    log("done")


def run_model(
    name: str,
    loaded: LoadedModel,
    training: Tensor,
    test: Tensor,
    to_input: Callable[[Tensor], Tensor],
    what: str,
    args: argparse.Namespace,
) -> None:
    """Train and evaluate the explainer of one model on its device."""
    device = torch.device(args.device)
    stored = training.to(device)
    images = TrainingImages(
        len(stored), lambda rows: to_input(stored[torch.tensor(rows, device=device)]), f"{len(stored):,} {what}"
    )
    run, facts = train(name, loaded, images, device, args)
    about = manifest(args.device, model=name)
    path = args.out / f"vit_shapley-{name}.json"
    save_json(path, {"manifest": about, "training": facts})
    permutations = 2 if args.rehearse else SIZES[name][2]
    results, values = evaluate(name, loaded, run, to_input(test), permutations, args.out, args.rows)
    save_json(path, {"manifest": about, "training": facts, "evaluation": results})
    file = values_path(path, name)
    file.unlink(missing_ok=True)  # another training has another surrogate: no earlier value stays
    save_values(file, values)


if __name__ == "__main__":
    main()
