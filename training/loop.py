"""The training loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from training.average import Average
from training.schedule import Clock, Recipe
from training.start import logger
from training.step import Loss, Step

if TYPE_CHECKING:
    from training.journal import Journal


#: Seconds between copies of the weights on disk, which are all that is left of a run that is cut short.
SNAPSHOT = 60.0


@dataclass
class Task:
    """What is trained on what.

    Attributes:
        name: Of the model and its file.
        net: What is trained, on the device.
        model: Holds the averaged weights of the net; what is measured and saved.
        count: Number of training pictures.
        loss: Of the net on some of them.
        evaluate: Accuracy of the model that is shown while training; nothing is chosen by it.
        about: The strings that are stored beside the weights, before they are written as JSON; None if they are not
            to be stored.
    """

    name: str
    net: nn.Module
    model: nn.Module
    count: int
    loss: Loss
    evaluate: Callable[[nn.Module], float]
    about: dict[str, Any] | None


@dataclass(frozen=True)
class Trained:
    """How a trained model came about."""

    epochs: int
    steps: int
    train_loss: float
    seconds: float
    compiled: bool
    captured: bool


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
    take = Step(task.net.train(), task.loss, Average(task.net, task.model), recipe, device, compiled)
    clock = Clock(deadline, None if recipe.epochs is None else recipe.epochs * each)
    logger.info("%s: %d parameters, %d pictures, %d steps per epoch, %.0f s left", task.name,
                sum(p.numel() for p in task.model.parameters()), task.count, each, deadline - began)  # fmt: skip
    step, epoch, saved, progress, lr, loss = 0, 0, began, 0.0, 0.0, math.nan
    while progress < 1:
        epoch_began, steps = Clock.now(), step
        take.total.zero_()
        order = torch.randperm(task.count, device=device)
        for indices in torch.split(order[: each * recipe.batch], recipe.batch):
            lr = recipe.rate(progress)
            step += 1
            take(indices, lr, recipe.ema_decay(step, progress))
            if take.ready == step:
                clock.begin()
            progress = clock.progress(step)
            if progress >= 1:
                break
        epoch += 1
        loss = take.total.item() / (step - steps)
        if not math.isfinite(loss):
            raise RuntimeError(f"{task.name}: the loss is {loss} in epoch {epoch}; lower --lr")
        seconds = Clock.now() - epoch_began
        accuracy = task.evaluate(task.model) if epoch % recipe.evaluate == 0 or progress >= 1 else None
        journal.epoch(model=task.name, epoch=epoch, step=step, progress=round(progress, 4), lr=lr, train_loss=loss,
                      val_accuracy=accuracy, seconds=round(seconds, 3))  # fmt: skip
        if task.about is not None and Clock.now() - saved > SNAPSHOT:
            journal.weights(task.name, task.model, {**task.about, "state": f"unfinished: epoch {epoch}"})
            saved = Clock.now()
    return Trained(epoch, step, loss, Clock.now() - began, take.compiled, take.captured)
