"""Train the model of CIFAR-10 from scratch: ``python -m training.cifar10 --data ARCHIVE --out DIR``.

A convolutional net comes first, then the transformer, which learns from its answers; both see the same augmented
pictures. The data are JPEG files, ``train/<class>/NNNN.jpg`` and ``test/<class>/NNNN.jpg``, in a folder or in a tar
archive. All of them are held on the GPU as bytes, and all augmentation is done there. Nothing is chosen by the test
pictures: they are only measured, every few epochs for the log and at the end for the manifest.
"""

from __future__ import annotations

import argparse
import copy
import io
import math
import tarfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from training import STARTED
from training.journal import Journal, describe
from training.loop import Task, train
from training.net import TrainedViT, plain_copy
from training.pictures import box_mask, erase, normalise, predict, reflect, smooth
from training.schedule import Clock, Recipe
from training.start import add_options, in_parallel, logger, set_up
from training.step import Loss
from training.teacher import Teacher

NAME = "cifar10"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
SIZE, PAD = 32, 4
#: A ninth block would take the model past four million parameters.
ARCHITECTURE = {
    "size": SIZE, "patch": 4, "width": 192, "depth": 8, "heads": 6, "classes": 10, "prefix": 1, "pool": False, "mlp": 4,
}  # fmt: skip
TINY = {"width": 48, "depth": 2, "heads": 2}
TEACHING = Recipe(batch=512, lr=2e-3, ema=0.9998, ema_share=0.015, evaluate=10)
RECIPE = Recipe(batch=512, lr=1e-3, ema=0.9999, ema_share=0.015, drop_path=0.05, evaluate=10)
SMOOTHING = 0.1
#: Share of a teacher's answer in what the student is asked for; the rest is the truth.
TRUST = 0.75
#: Seconds that are left for the last evaluation and for writing.
RESERVE = 10.0
_CHUNK = 1000


# --- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Pictures as bytes, shape (n, 32, 32, 3), and their classes, shape (n,)."""

    images: Tensor
    labels: Tensor


def read(data: Path, workers: int) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Training and test pictures, and the names of the classes in alphabetical order, which is CIFAR-10's own.

    Raises:
        SystemExit: The pictures are not there.
    """
    began = Clock.now()
    files = dict(sorted((_from_folder(data) if (data / "train").is_dir() else _from_archive(data)).items()))
    classes = tuple(sorted({label for _, label, _ in files}))
    blobs = list(files.values())
    chunks = [blobs[i : i + _CHUNK] for i in range(0, len(blobs), _CHUNK)]
    if not chunks:
        raise SystemExit(f"{data} holds no train/<class>/NNNN.jpg and test/<class>/NNNN.jpg")
    images = np.concatenate(list(in_parallel(_decode, chunks, workers)))
    labels = np.array([classes.index(label) for _, label, _ in files])
    splits = {}
    for name in ("train", "test"):
        here = np.array([split == name for split, _, _ in files])
        splits[name] = Split(torch.from_numpy(images[here]), torch.from_numpy(labels[here]))
    logger.info("%d pictures read in %.1f s: %s", len(images), Clock.now() - began, ", ".join(classes))
    return splits, classes


def _from_folder(data: Path) -> dict[tuple[str, ...], bytes]:
    return {p.parts[-3:]: p.read_bytes() for split in ("train", "test") for p in (data / split).glob("*/*.jpg")}


def _from_archive(data: Path) -> dict[tuple[str, ...], bytes]:
    if data.is_dir():
        archives = sorted(data.glob("*.tar*"))
        if len(archives) != 1:
            raise SystemExit(f"{data} holds neither train and test nor exactly one tar archive")
        data = archives[0]
    if not data.is_file():
        raise SystemExit(f"{data} is neither a folder nor a file")
    found = {}
    with tarfile.open(data, "r|*") as archive:  # read once from start to end: going back would decompress again
        for member in archive:
            key = Path(member.name).parts[-3:]
            if member.isfile() and member.name.endswith(".jpg") and key[0] in ("train", "test"):
                file = archive.extractfile(member)
                assert file is not None
                found[key] = file.read()
    return found


def _decode(blobs: list[bytes]) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(Image.open(io.BytesIO(blob)).convert("RGB")) for blob in blobs])


def subset(split: Split, count: int) -> Split:
    """Some pictures, every class alike often."""
    chosen = torch.arange(count) * len(split.labels) // count
    return Split(split.images[chosen], split.labels[chosen])


# --- augmentation: everything per sample, nothing that makes the host wait for the GPU --------------------------------


def uniform(like: Tensor, low: float, high: float) -> Tensor:
    """One number for each picture, shape (b, 1, 1, 1)."""
    return torch.empty(like.shape[0], 1, 1, 1, device=like.device).uniform_(low, high)


def sometimes(probability: float, changed: Tensor, images: Tensor) -> Tensor:
    """The changed picture with a probability, else the picture."""
    return torch.where(uniform(images, 0, 1) < probability, changed, images)


def crop_and_flip(images: Tensor, indices: Tensor) -> Tensor:
    """Some of the byte pictures, padded by reflection, cropped and flipped at random; values in [0, 1]."""
    b, device = len(indices), images.device
    line = torch.arange(SIZE, device=device)
    shift = torch.randint(-PAD, PAD + 1, (2, b, 1), device=device)
    flip = torch.rand(b, 1, device=device) < 0.5
    rows = reflect(line + shift[0], SIZE)
    columns = reflect(torch.where(flip, SIZE - 1 - line, line) + shift[1], SIZE)
    picked = images[indices[:, None, None], rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous().float() / 255


def warp(images: Tensor, probability: float = 0.2) -> Tensor:
    """Rotate, shear, move and scale, each with a probability and by a random amount; grey is what comes in."""

    def amount(low: float, high: float) -> Tensor:
        drawn = uniform(images, low, high)
        return sometimes(probability, drawn, torch.zeros_like(drawn)).flatten()

    angle, zoom = amount(-math.pi / 6, math.pi / 6), amount(-0.3, 0.3).exp()
    shear_x, shear_y = amount(-0.3, 0.3), amount(-0.3, 0.3)
    move_x, move_y = amount(-0.5, 0.5), amount(-0.5, 0.5)  # a half is a quarter of the width: it runs from -1 to 1
    cosine, sine = angle.cos() * zoom, angle.sin() * zoom
    top = torch.stack([cosine - sine * shear_y, cosine * shear_x - sine, move_x], 1)
    bottom = torch.stack([sine + cosine * shear_y, sine * shear_x + cosine, move_y], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images - 0.5, grid, align_corners=False) + 0.5


def recolour(images: Tensor, probability: float = 0.2, rare: float = 0.12) -> Tensor:
    """Brightness, contrast, saturation, sharpness, stretching, posterising and solarising, each at random."""
    grey = 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]
    images = sometimes(probability, images * uniform(images, 0.4, 1.6), images)
    mean = grey.mean((2, 3), keepdim=True)
    images = sometimes(probability, mean + (images - mean) * uniform(images, 0.3, 1.7), images)
    images = sometimes(probability, grey + (images - grey) * uniform(images, 0.1, 1.9), images).clamp(0, 1)
    # A blurred copy is the sum of the nine pixels around each, the middle one five times, as in Pillow's SMOOTH.
    blurred = (9 * F.avg_pool2d(F.pad(images, (1, 1, 1, 1), "replicate"), 3, 1) + 4 * images) / 13
    images = sometimes(rare, blurred + (images - blurred) * uniform(images, 0.1, 3.0), images).clamp(0, 1)
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    images = sometimes(rare, (images - low) / (high - low).clamp_min(1 / 255), images)
    levels = uniform(images, 4, 8).floor().exp2()  # 4 to 7 bits
    images = sometimes(rare, (images * 255 / 256 * levels).floor() / levels, images)
    return sometimes(rare, torch.where(images > uniform(images, 0.4, 1), 1 - images, images), images)


def mix(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mixup for one half of the samples and CutMix for the other, each with an even share of its own.

    The partner is the sample next to it in the batch, which was shuffled.
    """
    b = images.shape[0]
    other, others = images.roll(1, 0), targets.roll(1, 0)
    blend = torch.rand(b, device=images.device)
    side = (torch.rand_like(blend).sqrt() * SIZE).round()  # the box has an even share of the area, before it is cut off
    top, left = ((torch.rand_like(blend) * SIZE - side / 2).round() for _ in range(2))
    box = box_mask(top, left, side, side, SIZE)
    cut = 1 - box.float().mean((1, 2, 3))
    by_box = torch.rand_like(blend) < 0.5
    kept = torch.where(by_box.view(-1, 1, 1, 1), (~box).float(), blend.view(-1, 1, 1, 1))
    share = torch.where(by_box, cut, blend)[:, None]
    return other + kept * (images - other), others + share * (targets - others)


# --- losses -----------------------------------------------------------------------------------------------------------


class Lessons:
    """The training pictures with their classes, and what is asked about them."""

    def __init__(self, data: Split, classes: int) -> None:
        self._images = data.images
        self._targets = F.one_hot(data.labels, classes).float()

    def _half(self) -> torch.autocast:
        return torch.autocast(self._images.device.type, torch.bfloat16, enabled=self._images.is_cuda)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Augmented and mixed pictures, and the shares of the classes in them."""
        images = normalise(recolour(warp(crop_and_flip(self._images, indices))), MEAN, STD)
        return mix(erase(images, 0.25, (0.02, 0.3), torch.randn_like(images)), self._targets[indices])

    def alone(self, net: nn.Module, indices: Tensor) -> Tensor:
        """The loss of a net that learns from the classes."""
        images, targets = self.batch(indices)
        with self._half():
            logits = net(images)
        return F.cross_entropy(logits.float(), smooth(targets, SMOOTHING))

    def taught(self, teacher: nn.Module) -> Loss:
        """The loss of a net that learns from a teacher's answers to the very same pictures, and from the classes."""

        def loss(net: nn.Module, indices: Tensor) -> Tensor:
            images, targets = self.batch(indices)
            with self._half():
                with torch.no_grad():
                    answers = teacher(images)
                logits = net(images)
            return F.cross_entropy(logits.float(), TRUST * answers.float().softmax(1) + (1 - TRUST) * targets)

        return loss


# --- the script -------------------------------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m training.cifar10", description=__doc__)
    add_options(parser, 9.5, "the whole run, from start to manifest")
    parser.add_argument("--data", type=Path, required=True, help="folder with train and test, or a tar archive of it")
    parser.add_argument("--teacher-minutes", type=float, default=1.5, help="of these, for the teacher (%(default)s)")
    parser.add_argument("--start", type=Path, default=None, help="weights of an earlier run to start the student from")
    parser.add_argument("--train", type=int, default=None, help="use only so many training pictures")
    args = parser.parse_args()
    if args.smoke:
        args.train, args.batch, args.epochs = args.train or 1024, args.batch or 128, args.epochs or 2
    return args


def main() -> None:
    """Read the pictures, train the teacher, then the student, save and measure it."""
    args = options()
    device = set_up(args.seed)
    journal = Journal(args.out, vars(args))
    splits, classes = read(args.data, args.workers)  # before the first use of the GPU: processes are forked
    if args.train:
        splits["train"] = subset(splits["train"], args.train)
    if args.smoke:
        splits["test"] = subset(splits["test"], 500)
    data, test = (Split(s.images.to(device), s.labels.to(device)) for s in (splits["train"], splits["test"]))
    lessons, compiled = Lessons(data, len(classes)), device.type == "cuda" and not args.no_compile

    def accuracy(model: nn.Module, fast: bool) -> float:
        logits = predict(model, test.images, {"mean": MEAN, "std": STD}, device, fast)
        return (logits.argmax(1) == test.labels).float().mean().item()

    def shown(model: nn.Module) -> float:
        return accuracy(model, fast=True)

    count = len(data.labels)
    net: nn.Module = Teacher(len(classes), *((8, 16),) * args.smoke).to(device)
    teacher = copy.deepcopy(net).eval().requires_grad_(False)
    recipe = replace(TEACHING, batch=args.batch or TEACHING.batch, epochs=args.epochs)
    task = Task("teacher", net, teacher, count, lessons.alone, shown, None)
    taught = train(task, recipe, Clock.now() + 60 * args.teacher_minutes, device, journal, compiled=False)
    teaching = {
        "parameters": sum(p.numel() for p in teacher.parameters()), "test_top1": accuracy(teacher, fast=False),
        "recipe": asdict(recipe), **asdict(taught), "label_smoothing": SMOOTHING,
    }  # fmt: skip

    architecture = {**ARCHITECTURE, **(TINY if args.smoke else {})}
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=args.epochs)
    net = TrainedViT(architecture, recipe.drop_path)
    if args.start:
        net.load_state_dict({name: value.float() for name, value in load_file(args.start).items()})
    model = plain_copy(net, architecture).to(device)
    about = describe(architecture, classes, MEAN, STD, name=NAME, data="CIFAR-10, the training pictures")
    task = Task(NAME, net.to(device), model, count, lessons.taught(teacher), shown, about)
    trained = train(task, recipe, STARTED + 60 * args.minutes - RESERVE, device, journal, compiled)
    described = {
        "training": f"CIFAR-10, {count} training pictures", "test": f"{len(test.labels)} test pictures",
        "augmentation": "crop with 4 px reflected, flip, warp, recolour, erase, mixup and CutMix by halves",
        "teacher": teaching, "trust_in_teacher": TRUST, "started_from": args.start and args.start.name,
    }  # fmt: skip
    journal.finish(task, recipe, trained, described, args.seed, lambda m: {"test_top1": accuracy(m, False)}, device)


if __name__ == "__main__":
    main()
