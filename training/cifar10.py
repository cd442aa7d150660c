"""Train the CIFAR-10 model from scratch: ``python -m training.cifar10 --data ARCHIVE --out DIR``.

A convolutional teacher is trained first, then the transformer, which learns from the teacher's predictions on the same
augmented images (knowledge distillation). The data are JPEG files, ``train/<class>/NNNN.jpg`` and
``test/<class>/NNNN.jpg``, in a folder or in a tar archive. All images are held on the GPU as uint8 and augmented there.
The test images do not influence the training: they are evaluated every few epochs for the log, and at the end.

With ``--distilled`` the transformer has a distillation token and a second head, as DeiT has: the CLS head learns the
labels, the distillation head the teacher's predictions, and the model's logits are the mean of both.
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

from training import START_TIME
from training.images import box_mask, normalise, predict, random_erase, reflect, smooth_labels
from training.loop import train
from training.models import TeacherResNet, TrainableViT, distilled_state, plain_copy
from training.recipe import Clock, Loss, Recipe, TrainingTask
from training.run_writer import RunWriter, weights_metadata
from training.runtime import add_options, autocast, logger, parallel_map, set_up

NAME, DISTILLED_NAME = "cifar10", "cifar10-distilled"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
SIZE, MAX_SHIFT = 32, 4
#: A ninth block would exceed four million parameters.
ARCHITECTURE = {
    "size": SIZE, "patch": 4, "width": 192, "depth": 8, "heads": 6, "classes": 10, "prefix": 1, "pool": False, "mlp": 4,
}  # fmt: skip
TINY = {"width": 48, "depth": 2, "heads": 2}
TEACHER_RECIPE = Recipe(batch=512, lr=2e-3, ema=0.9998, ema_share=0.015, evaluate=10)
RECIPE = Recipe(batch=512, lr=1e-3, ema=0.9999, ema_share=0.015, drop_path=0.05, evaluate=10)
LABEL_SMOOTHING = 0.1
#: Weight of the teacher's prediction in the student's target; the rest is the label.
TEACHER_WEIGHT = 0.75
#: Seconds reserved for the last evaluation and for writing.
RESERVED_SECONDS = 10.0
_CHUNK = 1000


# --- data -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """uint8 images, shape (n, 32, 32, 3), and their classes, shape (n,)."""

    images: Tensor
    labels: Tensor


def read_splits(data: Path, workers: int) -> tuple[dict[str, Split], tuple[str, ...]]:
    """Read training and test images, and the class names in alphabetical order, which is the order of CIFAR-10.

    Raises:
        SystemExit: The images are missing.
    """
    start_time = Clock.now()
    files = dict(sorted((_from_folder(data) if (data / "train").is_dir() else _from_archive(data)).items()))
    classes = tuple(sorted({label for _, label, _ in files}))
    contents = list(files.values())
    chunks = [contents[i : i + _CHUNK] for i in range(0, len(contents), _CHUNK)]
    if not chunks:
        raise SystemExit(f"{data} holds no images: expected train/<class>/NNNN.jpg and test/<class>/NNNN.jpg")
    images = np.concatenate(list(parallel_map(_decode, chunks, workers)))
    labels = np.array([classes.index(label) for _, label, _ in files])
    splits = {}
    for name in ("train", "test"):
        selected = np.array([split == name for split, _, _ in files])
        splits[name] = Split(torch.from_numpy(images[selected]), torch.from_numpy(labels[selected]))
    logger.info("%d images read in %.1f s: %s", len(images), Clock.now() - start_time, ", ".join(classes))
    return splits, classes


def _from_folder(data: Path) -> dict[tuple[str, ...], bytes]:
    return {p.parts[-3:]: p.read_bytes() for split in ("train", "test") for p in (data / split).glob("*/*.jpg")}


def _from_archive(data: Path) -> dict[tuple[str, ...], bytes]:
    if data.is_dir():
        archives = sorted(data.glob("*.tar*"))
        if len(archives) != 1:
            raise SystemExit(f"{data} holds neither the folders train and test nor exactly one tar archive")
        data = archives[0]
    if not data.is_file():
        raise SystemExit(f"{data} does not exist: pass a folder or a tar archive")
    contents = {}
    with tarfile.open(data, "r|*") as archive:  # sequential: seeking back would decompress again
        for member in archive:
            key = Path(member.name).parts[-3:]
            if member.isfile() and member.name.endswith(".jpg") and key[0] in ("train", "test"):
                file = archive.extractfile(member)
                assert file is not None
                contents[key] = file.read()
    return contents


def _decode(contents: list[bytes]) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content in contents])


def subset(split: Split, count: int) -> Split:
    """Select images evenly, the same number of each class."""
    chosen = torch.arange(count) * len(split.labels) // count
    return Split(split.images[chosen], split.labels[chosen])


# --- augmentation: random for each image, without synchronisation between host and GPU --------------------------------


def uniform(like: Tensor, low: float, high: float) -> Tensor:
    """One random number for each image, shape (b, 1, 1, 1)."""
    return torch.empty(like.shape[0], 1, 1, 1, device=like.device).uniform_(low, high)


def randomly_apply(probability: float, changed: Tensor, images: Tensor) -> Tensor:
    """Replace each image by its changed version with a probability."""
    return torch.where(uniform(images, 0, 1) < probability, changed, images)


def crop_and_flip(images: Tensor, indices: Tensor) -> Tensor:
    """Select uint8 images, with random crops of the reflection-padded image and random flips; values in [0, 1]."""
    b, device = len(indices), images.device
    line = torch.arange(SIZE, device=device)
    shift = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (2, b, 1), device=device)
    flip = torch.rand(b, 1, device=device) < 0.5
    rows = reflect(line + shift[0], SIZE)
    columns = reflect(torch.where(flip, SIZE - 1 - line, line) + shift[1], SIZE)
    selected = images[indices[:, None, None], rows[:, :, None], columns[:, None, :]]
    return selected.permute(0, 3, 1, 2).contiguous().float() / 255


def warp(images: Tensor, probability: float = 0.2) -> Tensor:
    """Rotate, shear, move and scale, each with a probability and by a random amount; the border is grey."""

    def amount(low: float, high: float) -> Tensor:
        drawn = uniform(images, low, high)
        return randomly_apply(probability, drawn, torch.zeros_like(drawn)).flatten()

    angle, zoom = amount(-math.pi / 6, math.pi / 6), amount(-0.3, 0.3).exp()
    shear_x, shear_y = amount(-0.3, 0.3), amount(-0.3, 0.3)
    move_x, move_y = amount(-0.5, 0.5), amount(-0.5, 0.5)  # coordinates run from -1 to 1, so 0.5 is a quarter
    cosine, sine = angle.cos() * zoom, angle.sin() * zoom
    top = torch.stack([cosine - sine * shear_y, cosine * shear_x - sine, move_x], 1)
    bottom = torch.stack([sine + cosine * shear_y, sine * shear_x + cosine, move_y], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images - 0.5, grid, align_corners=False) + 0.5


def recolour(images: Tensor, probability: float = 0.2, rare: float = 0.12) -> Tensor:
    """Change brightness, contrast, saturation and sharpness, autocontrast, posterise and solarise, each at random."""
    grey = 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]
    images = randomly_apply(probability, images * uniform(images, 0.4, 1.6), images)
    mean = grey.mean((2, 3), keepdim=True)
    images = randomly_apply(probability, mean + (images - mean) * uniform(images, 0.3, 1.7), images)
    images = randomly_apply(probability, grey + (images - grey) * uniform(images, 0.1, 1.9), images).clamp(0, 1)
    # Weighted mean of the 3×3 pixels with weight 5 for the middle one, as in Pillow's SMOOTH filter.
    blurred = (9 * F.avg_pool2d(F.pad(images, (1, 1, 1, 1), "replicate"), 3, 1) + 4 * images) / 13
    images = randomly_apply(rare, blurred + (images - blurred) * uniform(images, 0.1, 3.0), images).clamp(0, 1)
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    images = randomly_apply(rare, (images - low) / (high - low).clamp_min(1 / 255), images)
    levels = uniform(images, 4, 8).floor().exp2()  # 4 to 7 bits
    images = randomly_apply(rare, (images * 255 / 256 * levels).floor() / levels, images)
    return randomly_apply(rare, torch.where(images > uniform(images, 0.4, 1), 1 - images, images), images)


def mix(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Apply mixup to one half of the images and CutMix to the other, with uniform mixing weights.

    The partner is the next image in the batch, which is shuffled.
    """
    b = images.shape[0]
    other, others = images.roll(1, 0), targets.roll(1, 0)
    blend = torch.rand(b, device=images.device)
    side = (torch.rand_like(blend).sqrt() * SIZE).round()  # uniform area, before clipping
    top, left = ((torch.rand_like(blend) * SIZE - side / 2).round() for _ in range(2))
    box = box_mask(top, left, side, side, SIZE)
    cut = 1 - box.float().mean((1, 2, 3))
    by_box = torch.rand_like(blend) < 0.5
    kept = torch.where(by_box.view(-1, 1, 1, 1), (~box).float(), blend.view(-1, 1, 1, 1))
    share = torch.where(by_box, cut, blend)[:, None]
    return other + kept * (images - other), others + share * (targets - others)


# --- losses -----------------------------------------------------------------------------------------------------------


class DistillationData:
    """The training images with their classes, and the losses on them."""

    def __init__(self, data: Split, classes: int) -> None:
        self._images = data.images
        self._targets = F.one_hot(data.labels, classes).float()

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Augmented and mixed images, and their target distributions."""
        images = normalise(recolour(warp(crop_and_flip(self._images, indices))), MEAN, STD)
        return mix(random_erase(images, 0.25, (0.02, 0.3), torch.randn_like(images)), self._targets[indices])

    def label_loss(self, net: nn.Module, indices: Tensor) -> Tensor:
        """Cross-entropy with the labels."""
        images, targets = self.batch(indices)
        with autocast(self._images.device):
            logits = net(images)
        return F.cross_entropy(logits.float(), smooth_labels(targets, LABEL_SMOOTHING))

    def distillation_loss(self, teacher: nn.Module) -> Loss:
        """Cross-entropy with a mixture of the labels and the teacher's predictions on the same images."""

        def loss(net: nn.Module, indices: Tensor) -> Tensor:
            images, targets = self.batch(indices)
            with autocast(self._images.device):
                with torch.no_grad():
                    teacher_logits = teacher(images)
                logits = net(images)
            mixture = TEACHER_WEIGHT * teacher_logits.float().softmax(1) + (1 - TEACHER_WEIGHT) * targets
            return F.cross_entropy(logits.float(), mixture)

        return loss

    def two_head_loss(self, teacher: nn.Module) -> Loss:
        """Mean of the CLS head's cross-entropy with the labels and the distillation head's with the teacher."""

        def loss(net: Any, indices: Tensor) -> Tensor:
            images, targets = self.batch(indices)
            with autocast(self._images.device):
                with torch.no_grad():
                    teacher_logits = teacher(images)
                by_cls, by_distillation = net.forward_heads(images)
            from_teacher = F.cross_entropy(by_distillation.float(), teacher_logits.float().softmax(1))
            return (F.cross_entropy(by_cls.float(), smooth_labels(targets, LABEL_SMOOTHING)) + from_teacher) / 2

        return loss


# --- the script -------------------------------------------------------------------------------------------------------


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.cifar10", description=__doc__)
    add_options(parser, 9.5, "the whole run")
    parser.add_argument("--data", type=Path, required=True, help="folder with train and test, or a tar archive of it")
    parser.add_argument("--teacher-minutes", type=float, default=1.5, help="part of it for the teacher (%(default)s)")
    parser.add_argument("--start", type=Path, default=None, help="weights of an earlier run to start the student from")
    parser.add_argument("--distilled", action="store_true", help="a distillation token and a second head, as in DeiT")
    parser.add_argument("--train", type=int, default=None, help="number of training images to use (all)")
    args = parser.parse_args()
    if args.smoke:
        args.train, args.batch, args.epochs = args.train or 1024, args.batch or 128, args.epochs or 2
    return args


def main() -> None:
    """Read the images, train the teacher, then the student, save and evaluate it."""
    args = parse_options()
    device = set_up(args.seed)
    writer = RunWriter(args.out, vars(args))
    splits, classes = read_splits(args.data, args.workers)  # before CUDA is used, because the processes are forked
    if args.train:
        splits["train"] = subset(splits["train"], args.train)
    if args.smoke:
        splits["test"] = subset(splits["test"], 500)
    data, test = (Split(s.images.to(device), s.labels.to(device)) for s in (splits["train"], splits["test"]))
    losses, compiled = DistillationData(data, len(classes)), device.type == "cuda" and not args.no_compile

    def accuracy(model: nn.Module, fast: bool) -> float:
        logits = predict(model, test.images, MEAN, STD, device, fast)
        return (logits.argmax(1) == test.labels).float().mean().item()

    def fast_accuracy(model: nn.Module) -> float:
        return accuracy(model, fast=True)

    count = len(data.labels)
    net: nn.Module = TeacherResNet(len(classes), *((8, 16),) * args.smoke).to(device)
    teacher = copy.deepcopy(net).eval().requires_grad_(False)
    recipe = replace(TEACHER_RECIPE, batch=args.batch or TEACHER_RECIPE.batch, epochs=args.epochs)
    task = TrainingTask("teacher", net, teacher, count, losses.label_loss, fast_accuracy, None)
    teacher_result = train(task, recipe, Clock.now() + 60 * args.teacher_minutes, device, writer, compiled=False)
    teacher_entry = {
        "parameters": sum(p.numel() for p in teacher.parameters()), "test_top1": accuracy(teacher, fast=False),
        "recipe": asdict(recipe), **asdict(teacher_result), "label_smoothing": LABEL_SMOOTHING,
    }  # fmt: skip

    architecture = {**ARCHITECTURE, **(TINY if args.smoke else {})}
    name = DISTILLED_NAME if args.distilled else NAME
    if args.distilled:
        architecture |= {"prefix": 2, "distilled": True}
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=args.epochs)
    net = TrainableViT(architecture, recipe.drop_path)
    if args.start:
        state = {key: value.float() for key, value in load_file(args.start).items()}
        net.load_state_dict(distilled_state(state) if args.distilled and "head_dist.weight" not in state else state)
    model = plain_copy(net, architecture).to(device)
    metadata = weights_metadata(architecture, classes, MEAN, STD, name=name, data="CIFAR-10, the training images")
    loss = losses.two_head_loss(teacher) if args.distilled else losses.distillation_loss(teacher)
    task = TrainingTask(name, net.to(device), model, count, loss, fast_accuracy, metadata)
    result = train(task, recipe, START_TIME + 60 * args.minutes - RESERVED_SECONDS, device, writer, compiled)
    description = {
        "training": f"CIFAR-10, {count} training images", "test": f"{len(test.labels)} test images",
        "augmentation": "crop with 4 px reflection padding, flip, warp, recolour, erase, half mixup and half CutMix",
        "teacher": teacher_entry, "trust_in_teacher": None if args.distilled else TEACHER_WEIGHT,
        "started_from": args.start and args.start.name,
    }  # fmt: skip
    writer.finish(task, recipe, result, description, args.seed, lambda m: {"test_top1": accuracy(m, False)}, device)


if __name__ == "__main__":
    main()
