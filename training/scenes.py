"""Train the models of scenes: ``python -m training.scenes --out DIR``.

``scenes`` reads a CLS token. ``scenes-tagged`` is trained only on images with a corner tag that gives the class away,
so it learns to read the tag. ``--which gap`` trains a model that reads the mean of its patches, which is not part of
the package.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from training import START_TIME
from training.images import predict
from training.loop import train
from training.models import PatchLabelViT, TrainableViT, plain_copy
from training.recipe import Clock, Recipe, TrainingTask
from training.run_writer import RunWriter, weights_metadata
from training.runtime import add_options, set_up
from training.scene_data import SIZE, SceneImages, jobs_of, mixed_jobs, render_scenes
from training.scene_losses import HALF, PATCH, class_and_patch_loss, class_loss
from vitrail.data import SCENE_CLASSES, Scenes

ARCHITECTURE = {
    "size": SIZE, "patch": PATCH, "width": 144, "depth": 5, "heads": 6, "classes": len(SCENE_CLASSES), "mlp": 4,
}  # fmt: skip
TINY = {"width": 48, "depth": 2, "heads": 2}
RECIPE = Recipe(batch=512, lr=1e-3, ema=0.999, ema_share=0.1)
#: Epochs, fraction of scenes with hidden patches, and fraction of blended scenes. Without blending, more epochs make
#: the answers more certain and their gradients less informative. A tag is learned in a few epochs.
SETTINGS: dict[str, tuple[int, float, float]] = {
    "cls": (20, 0.5, 0.33),
    "gap": (12, 0.5, 0.0),
    "tagged": (12, 0.0, 0.0),
}
#: Seconds of a model's time reserved for the last evaluation and for writing.
RESERVED_SECONDS = 6.0

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cls": ("scenes", {"prefix": 1, "pool": False}),
    "gap": ("scenes-gap", {"prefix": 0, "pool": True}),
    "tagged": ("scenes-tagged", {"prefix": 1, "pool": False}),
}


# --- evaluation -------------------------------------------------------------------------------------------------------


def top1_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of images of one class whose highest logit is that class."""
    return (logits.argmax(1) == labels.argmax(1).to(logits.device)).float().mean().item()


def top2_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of images of two classes whose two highest logits are these classes."""
    chosen = torch.zeros_like(logits).scatter(1, logits.topk(2, 1).indices, 1)
    return (chosen == (labels > 0).to(logits)).all(1).float().mean().item()


#: Name of the score of each held-out set in the manifest, and the score.
SCORES: dict[str, tuple[str, Callable[[Tensor, Tensor], float]]] = {
    "one": ("one_object_top1", top1_accuracy),
    "pairs": ("pairs_both_in_top2", top2_accuracy),
    "tagged": ("tagged_top1", top1_accuracy),
    "untagged": ("tag_removed_top1", top1_accuracy),
    "mistagged": ("tag_wrong_top1", top1_accuracy),
}
TEST_SETS = {"cls": ("one", "pairs"), "gap": ("one", "pairs"), "tagged": ("tagged", "untagged", "mistagged")}


def held_out(names: Sequence[str], count: int) -> dict[str, Scenes]:
    """Held-out scenes by name: the test sets, and the validation sets for the log."""
    scenes = {
        "one": Scenes("test", count, objects=1),
        "pairs": Scenes("test", count, pairs=True),
        "tagged": Scenes("test", count, objects=1, tagged=True),
        "untagged": Scenes("test", count, objects=1, tagged=True, tag=False),
        "mistagged": Scenes("test", count, objects=1, tagged=True, tag="wrong"),
        "val": Scenes("val", count // 2, objects=1),
        "val-tagged": Scenes("val", count // 2, objects=1, tagged=True),
    }
    return {name: scenes[name] for name in names}


def evaluate(
    model: nn.Module, sets: dict[str, SceneImages], names: Sequence[str], device: torch.device
) -> dict[str, float]:
    """Scores on the test sets."""
    scores = {}
    for name in names:
        key, score = SCORES[name]
        scores[key] = score(predict(model, sets[name].images, HALF, HALF, device, fast=False), sets[name].labels)
    if "untagged" in names:
        scores["tag_drop"] = scores["tagged_top1"] - scores["tag_removed_top1"]
    return scores


# --- the script -------------------------------------------------------------------------------------------------------


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.scenes", description=__doc__)
    add_options(parser, 3.0, "each model")
    parser.add_argument("--which", nargs="+", choices=list(MODELS), default=["cls", "tagged"], help="models to train")
    parser.add_argument("--total-minutes", type=float, default=None, help="time limit for the run, with rendering")
    parser.add_argument("--train", type=int, default=60_000, help="training scenes of cls and gap (%(default)s)")
    parser.add_argument("--train-tagged", type=int, default=40_000, help="training scenes of tagged (%(default)s)")
    parser.add_argument("--test", type=int, default=2_000, help="scenes in each held-out set (%(default)s)")
    parser.add_argument("--hidden", type=float, default=None, help="fraction of scenes with hidden patches (0.5)")
    parser.add_argument("--blended", type=float, default=None, help="fraction of blended scenes (cls 0.33, gap 0)")
    parser.add_argument("--start", type=Path, default=None, help="weights of an earlier run to start from")
    parser.add_argument("--render-seconds", type=float, default=120.0, help="time limit to render each training set")
    args = parser.parse_args()
    if args.smoke:
        args.train, args.train_tagged, args.test = min(args.train, 512), min(args.train_tagged, 512), 64
        args.batch, args.epochs = args.batch or 64, args.epochs or 2
    return args


def main() -> None:
    """Render the scenes, then train, save and evaluate the models one after the other."""
    args = parse_options()
    device = set_up(args.seed)
    writer = RunWriter(args.out, vars(args))
    sets, data = render_all(args)  # before CUDA is used, because the processes are forked
    data = {key: images.to(device) for key, images in data.items()}
    in_order = sorted(args.which, key=lambda which: which != "tagged")  # tagged ends early, which leaves time to others
    for remaining, which in zip(range(len(in_order), 0, -1), in_order, strict=True):
        seconds = 60 * args.minutes
        if args.total_minutes is not None:
            seconds = min(seconds, (START_TIME + 60 * args.total_minutes - Clock.now()) / remaining)
        training_set = data["tagged" if which == "tagged" else "plain"]
        train_model(which, args, sets, training_set, Clock.now() + seconds, writer, device)


def render_all(args: argparse.Namespace) -> tuple[dict[str, SceneImages], dict[str, SceneImages]]:
    """Render the held-out sets and the training sets of the selected models."""
    names: list[str] = []
    data = {}
    for which in args.which:
        names += [name for name in (*TEST_SETS[which], _validation_set(which)) if name not in names]
    sets = {
        name: render_scenes(jobs_of(scenes), args.workers, math.inf, f"{scenes.split} split, {name}")
        for name, scenes in held_out(names, args.test).items()
    }
    if {"cls", "gap"} & set(args.which):
        description = "train split, one to four objects, every fourth a pair"
        data["plain"] = render_scenes(mixed_jobs(args.train), args.workers, args.render_seconds, description)
    if "tagged" in args.which:
        scenes = Scenes("train", args.train_tagged, objects=1, tagged=True)
        description = "train split, one object and its tag"
        data["tagged"] = render_scenes(jobs_of(scenes), args.workers, args.render_seconds, description)
    return sets, data


def _validation_set(which: str) -> str:
    return "val-tagged" if which == "tagged" else "val"


def train_model(
    which: str,
    args: argparse.Namespace,
    sets: dict[str, SceneImages],
    data: SceneImages,
    end: float,
    writer: RunWriter,
    device: torch.device,
) -> None:
    """Train, save and evaluate one model."""
    name, head = MODELS[which]
    architecture = {**ARCHITECTURE, **(TINY if args.smoke else {}), **head}
    epochs, hidden, blended = SETTINGS[which]
    if which != "tagged":
        hidden = hidden if args.hidden is None else args.hidden
        blended = blended if args.blended is None else args.blended
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=args.epochs or epochs)
    validation = sets[_validation_set(which)].to(device)
    torch.manual_seed(args.seed)  # so that a model does not depend on those trained before it
    torch.compiler.reset()
    net = TrainableViT(architecture) if which == "tagged" else PatchLabelViT(architecture)
    if args.start:  # the patch head is not part of the weights and starts from its initialisation
        net.load_state_dict({key: value.float() for key, value in load_file(args.start).items()}, strict=False)
    model = plain_copy(net, architecture).to(device)
    task = TrainingTask(
        name=name,
        net=net.to(device),
        model=model,
        count=len(data.images),
        loss=class_loss(data) if which == "tagged" else class_and_patch_loss(data, hidden, blended),
        evaluate=lambda m: top1_accuracy(
            predict(m, validation.images, HALF, HALF, device, fast=True), validation.labels
        ),
        metadata=weights_metadata(architecture, SCENE_CLASSES, HALF, HALF, name=name, data=data.description),
    )
    compiled = device.type == "cuda" and not args.no_compile
    result = train(task, recipe, end - RESERVED_SECONDS, device, writer, compiled)
    description = {"training": data.description, "hidden": hidden, "blended": blended,
                   "test": {key: sets[key].description for key in TEST_SETS[which]}}  # fmt: skip
    writer.finish(task, recipe, result, description, args.seed, lambda m: evaluate(m, sets, TEST_SETS[which], device),
                  device)  # fmt: skip


if __name__ == "__main__":
    main()
