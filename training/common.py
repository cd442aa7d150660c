"""What the training scripts share: the model as it is trained, the schedule, the loop, and what a run leaves behind."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import logging
import math
import multiprocessing
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training import STARTED
from vitrail.models.plain import Block, PlainViT

logger = logging.getLogger("training")

Job = TypeVar("Job")
Done = TypeVar("Done")

#: Steps before the pace is measured (kernels are chosen and memory is taken in the first ones), and steps measured.
SETTLE, MEASURE = 20, 100
#: Share of the time left that is planned for; the rest is for evaluations and for a machine that slows down.
PLANNED = 0.98
#: Seconds between copies of the weights on disk, which are all that is left of a run that is cut short.
SNAPSHOT = 60.0


# --- set-up -----------------------------------------------------------------------------------------------------------


def set_up(seed: int) -> torch.device:
    """Seed everything, choose the device and the precision, and send the log to stdout."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- nothing here draws from it, but a library might
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(os.cpu_count() or 1)  # one thread is for the workers, see training/__init__.py
    return device


def add_options(parser: argparse.ArgumentParser, minutes: float, what: str) -> None:
    """Options of every script."""
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, log.jsonl and manifest.json")
    parser.add_argument("--minutes", type=float, default=minutes, help=f"wall-clock limit for {what} (%(default)s)")
    parser.add_argument("--epochs", type=int, default=None, help="end after so many epochs, if time allows as many")
    parser.add_argument("--batch", type=int, default=None, help="pictures per step")
    parser.add_argument("--lr", type=float, default=None, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and augmentation (%(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that prepare the data")
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    parser.add_argument("--smoke", action="store_true", help="a run of seconds with tiny settings, to try the script")


def in_parallel(work: Callable[[Job], Done], jobs: Sequence[Job], workers: int) -> Generator[Done, None, None]:
    """Results of ``work`` in the order of ``jobs``, from several processes; leaving the loop early stops them.

    Where possible the processes are forked, which spares each of them the import of torch; this is why data are
    prepared before the first use of CUDA, which does not survive a fork.
    """
    if workers <= 1:
        yield from map(work, jobs)
        return
    untouched = not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    method = "fork" if sys.platform == "linux" and untouched else "spawn"
    with multiprocessing.get_context(method).Pool(min(workers, max(1, len(jobs)))) as pool:
        yield from pool.imap(work, jobs)


# --- the model as it is trained ---------------------------------------------------------------------------------------


class DropBlock(Block):
    """A block whose two branches are each left out for a random share of the samples while training."""

    def __init__(self, width: int, heads: int, mlp: int, rate: float) -> None:
        super().__init__(width, heads, mlp)
        self.rate = rate

    def _drop(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate
        return branch * (kept.to(branch.dtype) / (1 - self.rate))

    def forward(self, x: Tensor) -> Tensor:
        """(b, n, d) to (b, n, d)."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self._drop(self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return x + self._drop(self.mlp(self.norm2(x)))


class TrainedViT(PlainViT):
    """A ``PlainViT`` with the same parameters under the same names, plus stochastic depth and an initialisation.

    Args:
        architecture: The arguments of ``PlainViT``.
        drop_path: Share of samples that skip a branch of the last block; it grows linearly from none in the first.
    """

    def __init__(self, architecture: Mapping[str, Any], drop_path: float = 0.0) -> None:
        super().__init__(**architecture)
        first: Any = self.blocks[0]
        width, heads, mlp = first.proj.in_features, first.heads, first.mlp[0].out_features // first.proj.in_features
        depth = len(self.blocks)
        rates = [drop_path * i / max(1, depth - 1) for i in range(depth)]
        self.blocks = nn.Sequential(*(DropBlock(width, heads, mlp, rate) for rate in rates))
        self._initialise(width)

    def _initialise(self, width: int) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.embed.weight, std=self.embed.weight[0].numel() ** -0.5)
        assert self.embed.bias is not None
        nn.init.zeros_(self.embed.bias)
        prefix = self.prefix.shape[1]
        side = math.isqrt(self.position.shape[1] - prefix)
        with torch.no_grad():
            if prefix:  # trunc_normal_ warns of tensors without elements
                nn.init.trunc_normal_(self.prefix, std=0.02)
            # Neighbours start out alike. Learned from nothing, that costs a small model a good part of its schedule.
            self.position.zero_()
            self.position[0, prefix:] = 0.5 * waves(side, width)

    def forward(self, images: Tensor) -> Tensor:
        """(b, 3, h, w) to logits, shape (b, classes)."""
        x = self.embed(images).flatten(2).transpose(1, 2)
        prefix = self.prefix.shape[1]
        if prefix:  # the compiler should not have to see tensors without elements
            x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], 1)
        x = self.norm(self.blocks(x + self.position))
        return self.head(x[:, prefix:].mean(1) if self.pool else x[:, 0])  # type: ignore[no-any-return]


def waves(side: int, width: int) -> Tensor:
    """Sines and cosines of the two coordinates of a square grid, shape (side², width), at falling frequencies."""
    quarter = width // 4
    frequency = 10_000.0 ** (-torch.arange(quarter) / quarter)
    angle = torch.arange(side)[:, None] * frequency
    line = torch.cat([angle.sin(), angle.cos()], 1)
    grid = torch.cat([line[:, None].expand(side, side, -1), line[None].expand(side, side, -1)], -1).flatten(0, 1)
    return F.pad(grid, (0, width - grid.shape[1]))


def plain_copy(net: TrainedViT, architecture: Mapping[str, Any]) -> PlainViT:
    """The plain model with a net's weights, for evaluation; refuses a net that would not answer like it.

    Raises:
        RuntimeError: ``PlainViT`` computes something else than the model that is trained.
    """
    plain = PlainViT(**architecture)
    plain.load_state_dict(net.state_dict(), strict=True)
    plain.eval().requires_grad_(False)
    size = architecture["size"]
    images = torch.randn(2, 3, size, size)
    training = net.training
    with torch.no_grad():
        alike = torch.allclose(plain(images), net.eval()(images), atol=1e-4)
    net.train(training)
    if not alike:
        raise RuntimeError("TrainedViT and PlainViT give other logits: bring training/common.py up to date")
    return plain


# --- pictures ---------------------------------------------------------------------------------------------------------


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes (b, h, w, 3) or values in [0, 1] (b, 3, h, w) to what a model takes, (b, 3, h, w)."""
    if images.dtype == torch.uint8:
        images = images.permute(0, 3, 1, 2).contiguous().float() / 255
    return (images - constant(tuple(mean), images.device)) / constant(tuple(std), images.device)


@functools.cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One value per channel, shape (1, channels, 1, 1); kept, because each copy to a GPU waits for all of its work."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def reflect(index: Tensor, size: int) -> Tensor:
    """Indices outside ``0 … size - 1`` mirrored at the first and the last, as in padding by reflection."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)


def box_mask(top: Tensor, left: Tensor, height: Tensor, width: Tensor, size: int) -> Tensor:
    """True inside one box per sample; takes shapes (b,), gives (b, 1, size, size)."""
    line = torch.arange(size, device=top.device)
    rows = (line >= top[:, None]) & (line < (top + height)[:, None])
    columns = (line >= left[:, None]) & (line < (left + width)[:, None])
    return rows[:, None, :, None] & columns[:, None, None, :]


def erase(images: Tensor, probability: float, area: tuple[float, float], fill: Tensor) -> Tensor:
    """Random erasing: a box of a share of the picture in ``area``, aspect 0.3 to 3.3, replaced by ``fill``."""
    b, size, device = images.shape[0], images.shape[-1], images.device
    share = torch.empty(b, device=device).uniform_(*area)
    aspect = torch.empty(b, device=device).uniform_(-1.2, 1.2).exp()
    height = ((share * aspect).sqrt() * size).round().clamp(1, size)
    width = ((share / aspect).sqrt() * size).round().clamp(1, size)
    top = (torch.rand(b, device=device) * (size - height + 1)).floor()
    left = (torch.rand(b, device=device) * (size - width + 1)).floor()
    hit = box_mask(top, left, height, width, size) & (torch.rand(b, device=device) < probability).view(-1, 1, 1, 1)
    return torch.where(hit, fill, images)


def smooth(targets: Tensor, amount: float) -> Tensor:
    """Give a share of each target to all classes alike."""
    return targets * (1 - amount) + amount / targets.shape[1]


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, about: Mapping[str, Any], device: torch.device, fast: bool) -> Tensor:
    """Logits of byte pictures, shape (n, classes); ``fast`` uses bfloat16 on a GPU, otherwise all is float32."""
    logits = []
    for part in torch.split(images, 1000):
        with torch.autocast(device.type, torch.bfloat16, enabled=fast and device.type == "cuda"):
            logits.append(model(normalise(part.to(device), about["mean"], about["std"])).float())
    return torch.cat(logits)


# --- the schedule -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        batch: Pictures per step; what is left at the end of an epoch is left out of it.
        lr: Peak learning rate.
        final_lr: Learning rate at the end.
        warmup: Share of the schedule in which the rate rises.
        decay: Weight decay of the matrices.
        betas: Of AdamW.
        clip: Largest norm of the gradient.
        ema: Decay of the averaged weights, at most.
        ema_share: Share of all steps that the average reaches back, at most; what matters in short runs.
        drop_path: Stochastic depth of the last block.
        epochs: Largest number of epochs.
        evaluate: Epochs between evaluations.
    """

    batch: int
    lr: float
    final_lr: float = 1e-5
    warmup: float = 0.05
    decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float = 1.0
    ema: float = 0.999
    ema_share: float = 0.03
    drop_path: float = 0.0
    epochs: int | None = None
    evaluate: int = 5

    def rate(self, progress: float) -> float:
        """Learning rate: up in a line, down in half a cosine."""
        if progress < self.warmup:
            return self.lr * progress / self.warmup
        angle = math.pi * min(1.0, (progress - self.warmup) / (1 - self.warmup))
        return self.final_lr + (self.lr - self.final_lr) * (1 + math.cos(angle)) / 2

    def ema_decay(self, step: int, total: int | None) -> float:
        """Decay of the averaged weights: less at first, when there is little to average."""
        decay = min(self.ema, (1 + step) / (10 + step))
        return decay if total is None else min(decay, 1 - 1 / max(2.0, self.ema_share * total))


class Clock:
    """Progress of a run from 0 to 1 that ends before its deadline, however fast the machine is.

    The pace of the first steps says how many there will be. Should the machine slow down later, time takes over as
    the measure, so that the schedule is complete in any case.

    Args:
        deadline: When the last step must be over, on the monotonic clock.
        most: Largest number of steps.
    """

    def __init__(self, deadline: float, most: int | None) -> None:
        self.deadline, self.total = deadline, most
        self._begun = self._settled = self.now()

    @staticmethod
    def now() -> float:
        """The monotonic clock."""
        return time.monotonic()

    def mark(self, step: int, synchronise: Callable[[], None]) -> None:
        """To be called after each step, counted from 1; waits for the device only where the pace is measured."""
        if step == 1:  # compiling is over
            synchronise()
            self._begun = self.now()
        elif step == SETTLE:
            synchronise()
            self._settled = self.now()
        elif step == SETTLE + MEASURE:
            synchronise()
            pace = (self.now() - self._settled) / MEASURE
            planned = step + max(0, int(PLANNED * (self.deadline - self.now()) / pace))
            self.total = planned if self.total is None else min(self.total, planned)
            logger.info("%.2f ms per step: %d steps in all", 1000 * pace, self.total)

    def progress(self, step: int) -> float:
        """Progress before a step, counted from 0."""
        if self.now() >= self.deadline:
            return 1.0
        by_time = 0.0 if step == 0 else (self.now() - self._begun) / (self.deadline - self._begun)
        by_steps = 0.0 if self.total is None else step / self.total
        return min(1.0, max(by_time, by_steps))


# --- the loop ---------------------------------------------------------------------------------------------------------


@dataclass
class Task:
    """What is trained on what.

    Attributes:
        name: Of the model and its file.
        architecture: Arguments of ``PlainViT``.
        count: Number of training pictures.
        batch: From indices of training pictures and progress to pictures as the model takes them and soft targets.
        evaluate: Accuracy of a model that is shown while training; nothing is chosen by it.
        about: The strings that are stored beside the weights, before they are written as JSON.
    """

    name: str
    architecture: dict[str, Any]
    count: int
    batch: Callable[[Tensor, float], tuple[Tensor, Tensor]]
    evaluate: Callable[[PlainViT], float]
    about: dict[str, Any]


class Average:
    """An exponential moving average of a net's weights, held by a plain model of its own."""

    def __init__(self, net: TrainedViT, architecture: Mapping[str, Any], device: torch.device) -> None:
        self.model = plain_copy(net, architecture).to(device)
        pairs = [(a, p) for a, p in zip(self.model.parameters(), net.to(device).parameters(), strict=True) if p.numel()]
        self._own: list[Tensor] = [a.data for a, _ in pairs]
        self._source: list[Tensor] = [p.data for _, p in pairs]

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Move towards the net's weights."""
        torch._foreach_lerp_(self._own, self._source, 1 - decay)  # one kernel instead of a hundred


def make_optimizer(net: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """AdamW without decay on norms, biases, positions and prefix tokens."""
    decayed, free = [], []
    for name, parameter in net.named_parameters():
        if not parameter.numel():  # the prefix of a model without one
            parameter.requires_grad_(False)
        elif parameter.ndim < 2 or name in ("position", "prefix"):
            free.append(parameter)
        else:
            decayed.append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, fused=device.type == "cuda")


class Stepper:
    """One step of training: forward, backward, clip, update. Compiled if that works, eagerly if not."""

    def __init__(self, net: TrainedViT, recipe: Recipe, device: torch.device, compiled: bool) -> None:
        self.net, self.recipe, self.device = net, recipe, device
        self.optimizer = make_optimizer(net, recipe, device)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.compiled = compiled
        self._run: Any = torch.compile(net) if compiled else net
        self._proven = not compiled

    def __call__(self, images: Tensor, targets: Tensor, lr: float) -> Tensor:
        """The loss, still on the device: reading it would wait for the GPU."""
        try:
            loss = self._backward(images, targets)
        except Exception as error:
            if self._proven:  # the compiler has done its work before: this is another matter
                raise
            self._fall_back(error)
            loss = self._backward(images, targets)
        self._proven = True
        torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _backward(self, images: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self._run(images)
        loss = F.cross_entropy(logits.float(), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def _fall_back(self, error: Exception) -> None:
        reason = (str(error).strip().splitlines() or [""])[0][:300]
        logger.warning("torch.compile failed, training eagerly (%s: %s)", type(error).__name__, reason)
        self.compiled, self._run = False, self.net
        self.optimizer.zero_grad(set_to_none=True)


def train(
    task: Task, recipe: Recipe, deadline: float, device: torch.device, journal: Journal, compiled: bool
) -> Trained:
    """Train one model until its schedule is complete, which is before the deadline.

    Raises:
        RuntimeError: The loss is no longer a number, or there are fewer pictures than one batch.
    """
    began = Clock.now()
    each = task.count // recipe.batch
    if not each:
        raise RuntimeError(f"{task.count} pictures are fewer than one batch of {recipe.batch}")
    net = TrainedViT(task.architecture, recipe.drop_path)
    average = Average(net, task.architecture, device)
    stepper = Stepper(net.train(), recipe, device, compiled)
    clock = Clock(deadline, None if recipe.epochs is None else recipe.epochs * each)
    logger.info("%s: %d parameters, %d pictures, %d steps per epoch, %.0f s left", task.name,
                sum(p.numel() for p in net.parameters()), task.count, each, deadline - began)  # fmt: skip
    step, epoch, saved, progress, lr, loss = 0, 0, began, 0.0, 0.0, math.nan
    while progress < 1:
        epoch_began, total, steps = Clock.now(), torch.zeros((), device=device), 0
        order = torch.randperm(task.count, device=device)
        for indices in torch.split(order[: each * recipe.batch], recipe.batch):
            lr = recipe.rate(progress)
            total += stepper(*task.batch(indices, progress), lr)
            step, steps = step + 1, steps + 1
            average.update(recipe.ema_decay(step, clock.total))
            clock.mark(step, lambda: _wait(device))
            progress = clock.progress(step)
            if progress >= 1:
                break
        epoch += 1
        loss = total.item() / steps
        if not math.isfinite(loss):
            raise RuntimeError(f"{task.name}: the loss is {loss} in epoch {epoch}; lower --lr")
        seconds = Clock.now() - epoch_began
        accuracy = task.evaluate(average.model) if epoch % recipe.evaluate == 0 or progress >= 1 else None
        journal.epoch(model=task.name, epoch=epoch, step=step, progress=round(progress, 4), lr=lr, train_loss=loss,
                      val_accuracy=accuracy, seconds=round(seconds, 3))  # fmt: skip
        if Clock.now() - saved > SNAPSHOT:
            journal.weights(task.name, average.model, {**task.about, "state": f"unfinished: epoch {epoch}"})
            saved = Clock.now()
    return Trained(average.model, epoch, step, loss, Clock.now() - began, stepper.compiled)


@dataclass(frozen=True)
class Trained:
    """A trained model and how it came about."""

    model: PlainViT
    epochs: int
    steps: int
    train_loss: float
    seconds: float
    compiled: bool


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# --- what a run leaves behind -----------------------------------------------------------------------------------------


class Journal:
    """A folder with weights, one line of ``log.jsonl`` per epoch, and ``manifest.json``.

    Lines and entries of models that an earlier run left in the folder are kept.
    """

    def __init__(self, out: Path, options: Mapping[str, Any]) -> None:
        self.out = out
        self.options = {k: v.name if isinstance(v, Path) else v for k, v in options.items() if k != "out"}
        out.mkdir(parents=True, exist_ok=True)

    def epoch(self, **record: Any) -> None:
        """Write one epoch to the log file and to stdout."""
        with (self.out / "log.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        accuracy = record["val_accuracy"]
        logger.info("%s epoch %d  %.0f%%  lr %.2e  loss %.4f  accuracy %s  %.2f s", record["model"], record["epoch"],
                    100 * record["progress"], record["lr"], record["train_loss"],
                    "-" if accuracy is None else f"{accuracy:.4f}", record["seconds"])  # fmt: skip

    def weights(self, name: str, model: PlainViT, about: Mapping[str, Any]) -> Path:
        """Write a model's weights in float16, with what is needed to use them as JSON beside them.

        Raises:
            RuntimeError: A weight does not fit into float16.
        """
        state = {k: v.detach().to("cpu", torch.float16).contiguous() for k, v in model.state_dict().items()}
        broken = [k for k, v in state.items() if not torch.isfinite(v).all()]
        if broken:
            raise RuntimeError(f"{name}: not finite in float16: {', '.join(broken[:4])}")
        path = self.out / f"{name}.safetensors"
        beside = path.with_suffix(".partial")  # a run cut short in the middle of writing leaves the last whole file
        save_file(state, beside, metadata={k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()})
        beside.chmod(0o644)
        beside.replace(path)
        return path

    def finish(self, task: Task, recipe: Recipe, trained: Trained, data: Mapping[str, Any], seed: int,
               measure: Callable[[PlainViT], dict[str, float]], device: torch.device) -> dict[str, float]:  # fmt: skip
        """Write the weights, read them back, measure what was read, and enter it in the manifest."""
        path = self.weights(task.name, trained.model, task.about)
        accuracies = measure(load_back(path, device))
        entry = {
            "file": path.name, "bytes": path.stat().st_size, "dtype": "float16",
            "parameters": sum(p.numel() for p in trained.model.parameters()), "architecture": task.architecture,
            "accuracy": accuracies, "data": dict(data), "recipe": asdict(recipe), "seed": seed, "options": self.options,
            "epochs": trained.epochs, "steps": trained.steps, "train_loss": trained.train_loss,
            "training_seconds": round(trained.seconds, 1), "run_seconds": round(Clock.now() - STARTED, 1),
            "compiled": trained.compiled, "device": device_name(device), "versions": versions(),
        }  # fmt: skip
        manifest = self.out / "manifest.json"
        whole = json.loads(manifest.read_text()) if manifest.is_file() else {"models": {}}
        whole["models"][task.name] = entry
        manifest.write_text(json.dumps(whole, indent=2) + "\n")
        shown = "  ".join(f"{k} {v:.4f}" for k, v in accuracies.items())
        logger.info("%s done: %s  (%d epochs, %.0f s, %d bytes)", task.name, shown, trained.epochs, trained.seconds,
                    entry["bytes"])  # fmt: skip
        return accuracies


def load_back(path: Path, device: torch.device) -> PlainViT:
    """The model in a file, made from nothing but that file, in float32."""
    with safe_open(path, "pt") as file:
        architecture = json.loads(file.metadata()["architecture"])
    model = PlainViT(**architecture)
    model.load_state_dict({k: v.float() for k, v in load_file(path).items()}, strict=True)
    return model.to(device).eval().requires_grad_(False)


def describe(architecture: Mapping[str, Any], classes: Iterable[str], mean: Sequence[float], std: Sequence[float],
             **more: Any) -> dict[str, Any]:  # fmt: skip
    """What is stored beside the weights."""
    size = architecture["size"]
    preprocess = {"size": [size, size], "mean": list(mean), "std": list(std), "crop": 1.0}
    return {"format": "pt", "architecture": dict(architecture), "preprocess": preprocess, "classes": list(classes),
            **more}  # fmt: skip


def device_name(device: torch.device) -> str:
    """The GPU, or what stands in for it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"


def versions() -> dict[str, str | None]:
    """Versions of what the run was made with."""
    found: dict[str, str | None] = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in ("torch", "numpy", "pillow", "safetensors", "vitrail"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found
