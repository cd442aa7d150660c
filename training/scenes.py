"""Train the three models of scenes: ``python -m training.scenes --out DIR``.

``scenes`` answers through a class token, ``scenes-gap`` through the mean of its patches, and ``scenes-tagged`` has only
seen pictures with a tag in a corner that gives the answer away, so that it reads the tag.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training import STARTED
from training.journal import Journal, describe
from training.loop import Task, train
from training.pictures import erase, normalise, predict, reflect, smooth
from training.schedule import Clock, Recipe
from training.start import add_options, in_parallel, logger, set_up
from vitrail.data import CLASSES, Scenes
from vitrail.models.plain import PlainViT

HALF = (0.5, 0.5, 0.5)
PREPROCESS = {"mean": HALF, "std": HALF}
SIZE = 128
ARCHITECTURE = {"size": SIZE, "patch": 8, "width": 144, "depth": 7, "heads": 6, "classes": len(CLASSES), "mlp": 4}
TINY = {"width": 48, "depth": 2, "heads": 2}
RECIPE = Recipe(batch=512, lr=1e-3, ema=0.999, ema_share=0.1)
#: The tag is learned in few epochs; more would only teach the model to do without it.
TAGGED_EPOCHS = 12
SMOOTHING = 0.02
SHIFT = 8
#: Scenes of one to four things and pairs that a worker draws in one go; their ratio is that of the whole set.
MIXED, PAIRED, SINGLE = 96, 32, 128
#: Seconds of a model's time that are left for the last evaluation and for writing.
RESERVE = 6.0

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cls": ("scenes", {"prefix": 1, "pool": False}),
    "gap": ("scenes-gap", {"prefix": 0, "pool": True}),
    "tagged": ("scenes-tagged", {"prefix": 1, "pool": False}),
}

Part = tuple[Scenes, int, int]


# --- drawing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pictures:
    """Drawn scenes.

    Attributes:
        images: Bytes, shape (n, size, size, 3).
        labels: One, shared by the classes present, shape (n, classes).
        note: What they are, for the manifest.
    """

    images: Tensor
    labels: Tensor
    note: str

    def to(self, device: torch.device) -> Pictures:
        """The same on a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


def _draw(job: Sequence[Part]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    drawn = [scenes[i] for scenes, start, stop in job for i in range(start, stop)]
    return np.stack([scene.image for scene in drawn]), np.stack([scene.labels for scene in drawn])


def draw(jobs: Sequence[Sequence[Part]], workers: int, seconds: float, what: str) -> Pictures:
    """Draw scenes in parallel, in the order of the jobs, until all are drawn or the time is over."""
    began = Clock.now()
    count = sum(stop - start for job in jobs for _, start, stop in job)
    images = np.empty((count, SIZE, SIZE, 3), dtype=np.uint8)
    labels = np.empty((count, len(CLASSES)), dtype=np.float32)
    done = 0
    with contextlib.closing(in_parallel(_draw, jobs, workers)) as results:
        for some, shares in results:
            images[done : done + len(some)], labels[done : done + len(some)] = some, shares
            done += len(some)
            if Clock.now() - began > seconds:
                break
    logger.info("%d of %d scenes drawn in %.1f s: %s", done, count, Clock.now() - began, what)
    return Pictures(torch.from_numpy(images[:done]), torch.from_numpy(labels[:done]), f"{done} scenes: {what}")


def mixed_jobs(count: int) -> list[list[Part]]:
    """Scenes of one to four things, every fourth a pair; any first part of the jobs has the same mixture."""
    jobs = math.ceil(count / (MIXED + PAIRED))
    mixed, pairs = Scenes("train", jobs * MIXED), Scenes("train", jobs * PAIRED, pairs=True)
    return [[(mixed, k * MIXED, (k + 1) * MIXED), (pairs, k * PAIRED, (k + 1) * PAIRED)] for k in range(jobs)]


def jobs_of(scenes: Scenes) -> list[list[Part]]:
    """A split in pieces."""
    return [[(scenes, start, min(start + SINGLE, len(scenes)))] for start in range(0, len(scenes), SINGLE)]


# --- augmentation -----------------------------------------------------------------------------------------------------


def pick(images: Tensor, indices: Tensor, move: bool) -> Tensor:
    """Some of the pictures as values in [0, 1], shape (b, 3, size, size).

    Args:
        images: Bytes, shape (n, size, size, 3).
        indices: Which, shape (b,).
        move: Flip and turn by quarters, all eight ways alike often, and shift by up to ``SHIFT`` pixels. Not for
            tagged scenes: a tag turned around is another tag.
    """
    if not move:
        return images[indices].permute(0, 3, 1, 2).contiguous().float() / 255
    b, size, device = len(indices), images.shape[1], images.device
    line = torch.arange(size, device=device)
    flip = torch.rand(2, b, 1, device=device) < 0.5
    shift = torch.randint(-SHIFT, SHIFT + 1, (2, b, 1), device=device)
    down, across = reflect(torch.where(flip, size - 1 - line, line) + shift, size)
    swap = torch.rand(b, 1, 1, device=device) < 0.5  # with the two flips, swapping the axes makes all quarter turns
    rows = torch.where(swap, down[:, None, :], down[:, :, None])
    columns = torch.where(swap, across[:, :, None], across[:, None, :])
    return images[indices[:, None, None], rows, columns].permute(0, 3, 1, 2).contiguous().float() / 255


def tinge(images: Tensor) -> Tensor:
    """Light changes of brightness, contrast and hue, as one matrix per picture, and a little noise."""
    b, device = images.shape[0], images.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(b, 1, 1, device=device).uniform_(low, high)

    angle, contrast, brightness = uniform(-0.2, 0.2), uniform(0.85, 1.15), uniform(-0.1, 0.1)
    one = torch.eye(3, device=device)
    # A turn around the axis of greys: the usual formula for a turn by an angle around a unit vector.
    cross = one.roll(1, 0) - one.roll(1, 1)
    turn = angle.cos() * one + (1 - angle.cos()) / 3 + angle.sin() / math.sqrt(3) * cross
    shift = (0.5 * (1 - contrast) + brightness).expand(-1, 3, 1)
    changed = torch.baddbmm(shift, contrast * turn, images.flatten(2)).view_as(images)
    return changed + uniform(0, 0.03).unsqueeze(-1) * torch.randn_like(changed)


def batch_maker(data: Pictures, tagged: bool) -> Callable[[Tensor, float], tuple[Tensor, Tensor]]:
    """From indices to augmented pictures and soft targets."""

    def make(indices: Tensor, _: float) -> tuple[Tensor, Tensor]:
        images = tinge(pick(data.images, indices, move=not tagged))
        if not tagged:  # a model that now and then has to do without the tag would learn to
            fill = torch.rand(len(indices), 3, 1, 1, device=images.device)
            images = erase(images, 0.2, (0.01, 0.04), fill)
        return normalise(images.clamp(0, 1), HALF, HALF), smooth(data.labels[indices], SMOOTHING)

    return make


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


def measure(model: PlainViT, sets: dict[str, Pictures], names: Sequence[str], device: torch.device) -> dict[str, float]:
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
    epochs = args.epochs or (TAGGED_EPOCHS if which == "tagged" else None)
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=epochs)
    val = sets[_val(which)].to(device)
    task = Task(
        name=name,
        architecture=architecture,
        count=len(data.images),
        batch=batch_maker(data, tagged=which == "tagged"),
        evaluate=lambda m: first_right(predict(m, val.images, PREPROCESS, device, fast=True), val.labels),
        about=describe(architecture, CLASSES, HALF, HALF, name=name, data=data.note),
    )
    torch.manual_seed(args.seed)  # so that a model does not depend on which others were trained before it
    torch.compiler.reset()
    trained = train(task, recipe, end - RESERVE, device, journal, device.type == "cuda" and not args.no_compile)
    described = {"training": data.note, "test": {key: sets[key].note for key in FOR_MODEL[which]}}
    journal.finish(task, recipe, trained, described, args.seed, lambda m: measure(m, sets, FOR_MODEL[which], device),
                   device)  # fmt: skip


if __name__ == "__main__":
    main()
