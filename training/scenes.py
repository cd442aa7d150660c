"""Train the three models of scenes: ``python -m training.scenes --out DIR``.

``scenes`` answers through a class token, ``scenes-gap`` through the mean of its patches, and ``scenes-tagged`` has only
seen pictures with a tag in a corner that gives the answer away, so that it reads the tag.
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

from training import STARTED
from training.drawing import SIZE, Pictures, draw, jobs_of, mixed_jobs
from training.journal import Journal, describe
from training.labelled import LabelledViT
from training.lessons import HALF, PATCH, labelled_loss, plain_loss
from training.loop import Task, train
from training.net import TrainedViT, plain_copy
from training.pictures import predict
from training.schedule import Clock, Recipe
from training.start import add_options, set_up
from vitrail.data import SCENE_CLASSES, Scenes

PREPROCESS = {"mean": HALF, "std": HALF}
ARCHITECTURE = {
    "size": SIZE,
    "patch": PATCH,
    "width": 144,
    "depth": 5,
    "heads": 6,
    "classes": len(SCENE_CLASSES),
    "mlp": 4,
}
TINY = {"width": 48, "depth": 2, "heads": 2}
RECIPE = Recipe(batch=512, lr=1e-3, ema=0.999, ema_share=0.1)
#: Epochs, and the shares of scenes that are seen in part and that are blended with another. With nothing blended, more
#: epochs would make the answers surer, and their gradients say less; and a tag is learned in few, from whole scenes.
LESSONS: dict[str, tuple[int, float, float]] = {"cls": (20, 0.5, 0.33), "gap": (12, 0.5, 0.0), "tagged": (12, 0.0, 0.0)}
#: Seconds of a model's time that are left for the last evaluation and for writing.
RESERVE = 6.0

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cls": ("scenes", {"prefix": 1, "pool": False}),
    "gap": ("scenes-gap", {"prefix": 0, "pool": True}),
    "tagged": ("scenes-tagged", {"prefix": 1, "pool": False}),
}


# --- measuring --------------------------------------------------------------------------------------------------------


def first_right(logits: Tensor, labels: Tensor) -> float:
    """Share of pictures of one class that are given that class."""
    return (logits.argmax(1) == labels.argmax(1).to(logits.device)).float().mean().item()


def both_right(logits: Tensor, labels: Tensor) -> float:
    """Share of pictures of two classes whose two largest logits are those of the two."""
    chosen = torch.zeros_like(logits).scatter(1, logits.topk(2, 1).indices, 1)
    return (chosen == (labels > 0).to(logits)).all(1).float().mean().item()


#: How each held-out set is measured: the name of the number, and the measure.
MEASURES: dict[str, tuple[str, Callable[[Tensor, Tensor], float]]] = {
    "one": ("one_object_top1", first_right),
    "pairs": ("pairs_both_in_top2", both_right),
    "tagged": ("tagged_top1", first_right),
    "untagged": ("tag_removed_top1", first_right),
    "mistagged": ("tag_wrong_top1", first_right),
}
FOR_MODEL = {"cls": ("one", "pairs"), "gap": ("one", "pairs"), "tagged": ("tagged", "untagged", "mistagged")}


def held_out(names: Sequence[str], count: int) -> dict[str, Scenes]:
    """The held-out scenes by name: those of the last report, and a set for the log."""
    every = {
        "one": Scenes("test", count, objects=1),
        "pairs": Scenes("test", count, pairs=True),
        "tagged": Scenes("test", count, objects=1, tagged=True),
        "untagged": Scenes("test", count, objects=1, tagged=True, tag=False),
        "mistagged": Scenes("test", count, objects=1, tagged=True, tag="wrong"),
        "val": Scenes("val", count // 2, objects=1),
        "val-tagged": Scenes("val", count // 2, objects=1, tagged=True),
    }
    return {name: every[name] for name in names}


def measure(
    model: nn.Module, sets: dict[str, Pictures], names: Sequence[str], device: torch.device
) -> dict[str, float]:
    """The numbers of the last report."""
    found = {}
    for name in names:
        key, score = MEASURES[name]
        found[key] = score(predict(model, sets[name].images, PREPROCESS, device, fast=False), sets[name].labels)
    if "untagged" in names:
        found["tag_drop"] = found["tagged_top1"] - found["tag_removed_top1"]
    return found


# --- the script -------------------------------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m training.scenes", description=__doc__)
    add_options(parser, 3.0, "each model")
    parser.add_argument("--which", nargs="+", choices=list(MODELS), default=list(MODELS), help="models to train")
    parser.add_argument("--total-minutes", type=float, default=None, help="limit for the whole run, drawing included")
    parser.add_argument("--train", type=int, default=60_000, help="training scenes of cls and gap (%(default)s)")
    parser.add_argument("--train-tagged", type=int, default=40_000, help="training scenes of tagged (%(default)s)")
    parser.add_argument("--test", type=int, default=2_000, help="scenes in each held-out set (%(default)s)")
    parser.add_argument("--hidden", type=float, default=None, help="share of scenes of cls and gap seen in part (0.5)")
    parser.add_argument("--blended", type=float, default=None, help="share blended with another (cls 0.33, gap none)")
    parser.add_argument("--start", type=Path, default=None, help="weights of an earlier run to start from")
    parser.add_argument("--render-seconds", type=float, default=120.0, help="limit for drawing each training set")
    args = parser.parse_args()
    if args.smoke:
        args.train, args.train_tagged, args.test = min(args.train, 512), min(args.train_tagged, 512), 64
        args.batch, args.epochs = args.batch or 64, args.epochs or 2
    return args


def main() -> None:
    """Draw the scenes, then train, save and measure one model after the other."""
    args = options()
    device = set_up(args.seed)
    journal = Journal(args.out, vars(args))
    sets, data = draw_all(args)  # before the first use of the GPU: processes are forked
    data = {key: pictures.to(device) for key, pictures in data.items()}
    in_order = sorted(args.which, key=lambda which: which != "tagged")  # it ends early and leaves time to the others
    for left, which in zip(range(len(in_order), 0, -1), in_order, strict=True):
        seconds = 60 * args.minutes
        if args.total_minutes is not None:
            seconds = min(seconds, (STARTED + 60 * args.total_minutes - Clock.now()) / left)
        train_one(which, args, sets, data["tagged" if which == "tagged" else "plain"], Clock.now() + seconds, journal,
                  device)  # fmt: skip


def draw_all(args: argparse.Namespace) -> tuple[dict[str, Pictures], dict[str, Pictures]]:
    """Held-out sets and training sets for the models asked for."""
    names: list[str] = []
    data = {}
    for which in args.which:
        names += [name for name in (*FOR_MODEL[which], _val(which)) if name not in names]
    sets = {
        name: draw(jobs_of(scenes), args.workers, math.inf, f"{scenes.split} split, {name}")
        for name, scenes in held_out(names, args.test).items()
    }
    if {"cls", "gap"} & set(args.which):
        what = "train split, one to four things, every fourth a pair"
        data["plain"] = draw(mixed_jobs(args.train), args.workers, args.render_seconds, what)
    if "tagged" in args.which:
        scenes = Scenes("train", args.train_tagged, objects=1, tagged=True)
        data["tagged"] = draw(jobs_of(scenes), args.workers, args.render_seconds, "train split, one thing and its tag")
    return sets, data


def _val(which: str) -> str:
    return "val-tagged" if which == "tagged" else "val"


def train_one(
    which: str,
    args: argparse.Namespace,
    sets: dict[str, Pictures],
    data: Pictures,
    end: float,
    journal: Journal,
    device: torch.device,
) -> None:
    """Train, save and measure one model."""
    name, head = MODELS[which]
    architecture = {**ARCHITECTURE, **(TINY if args.smoke else {}), **head}
    epochs, hidden, blended = LESSONS[which]
    if which != "tagged":
        hidden = hidden if args.hidden is None else args.hidden
        blended = blended if args.blended is None else args.blended
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=args.epochs or epochs)
    val = sets[_val(which)].to(device)
    torch.manual_seed(args.seed)  # so that a model does not depend on which others were trained before it
    torch.compiler.reset()
    net = TrainedViT(architecture) if which == "tagged" else LabelledViT(architecture)
    if args.start:  # the head that names patches is not part of the weights and starts anew
        net.load_state_dict({key: value.float() for key, value in load_file(args.start).items()}, strict=False)
    model = plain_copy(net, architecture).to(device)
    task = Task(
        name=name,
        net=net.to(device),
        model=model,
        count=len(data.images),
        loss=plain_loss(data) if which == "tagged" else labelled_loss(data, hidden, blended),
        evaluate=lambda m: first_right(predict(m, val.images, PREPROCESS, device, fast=True), val.labels),
        about=describe(architecture, SCENE_CLASSES, HALF, HALF, name=name, data=data.note),
    )
    trained = train(task, recipe, end - RESERVE, device, journal, device.type == "cuda" and not args.no_compile)
    described = {"training": data.note, "hidden": hidden, "blended": blended,
                 "test": {key: sets[key].note for key in FOR_MODEL[which]}}  # fmt: skip
    journal.finish(task, recipe, trained, described, args.seed, lambda m: measure(m, sets, FOR_MODEL[which], device),
                   device)  # fmt: skip


if __name__ == "__main__":
    main()
