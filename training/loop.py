"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.net import TrainedViT, plain_copy
from training.schedule import Clock, Recipe
from training.start import logger
from vitrail.models.plain import PlainViT

if TYPE_CHECKING:
    from training.journal import Journal


#: Seconds between copies of the weights on disk, which are all that is left of a run that is cut short.
SNAPSHOT = 60.0


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
