"""The training loop."""

from __future__ import annotations

import math

import torch

from training.recipe import Clock, Recipe, TrainingResult, TrainingTask
from training.run_writer import RunWriter
from training.runtime import logger
from training.step import TrainingStep, WeightAverage

#: Seconds between snapshots of the weights, which remain if a run is interrupted.
SNAPSHOT_SECONDS = 60.0


def train(
    task: TrainingTask, recipe: Recipe, deadline: float, device: torch.device, writer: RunWriter, compiled: bool
) -> TrainingResult:
    """Train one model until its schedule is complete, at the latest at the deadline.

    Raises:
        RuntimeError: The loss is not finite, or there are fewer images than one batch.
    """
    run_start = Clock.now()
    steps_per_epoch = task.count // recipe.batch
    if not steps_per_epoch:
        raise RuntimeError(f"{task.count} images are fewer than one batch of {recipe.batch}: lower --batch")
    average = WeightAverage(task.net, task.model)
    train_step = TrainingStep(task.net.train(), task.loss, average, recipe, device, compiled)
    clock = Clock(deadline, None if recipe.epochs is None else recipe.epochs * steps_per_epoch)
    logger.info("%s: %d parameters, %d images, %d steps per epoch, %.0f s left", task.name,
                sum(p.numel() for p in task.model.parameters()), task.count, steps_per_epoch,
                deadline - run_start)  # fmt: skip
    step, epoch, last_snapshot, progress, lr, loss = 0, 0, run_start, 0.0, 0.0, math.nan
    while progress < 1:
        epoch_start, first_step = Clock.now(), step
        train_step.total.zero_()
        order = torch.randperm(task.count, device=device)
        for indices in torch.split(order[: steps_per_epoch * recipe.batch], recipe.batch):
            lr = recipe.learning_rate(progress)
            step += 1
            train_step(indices, lr, recipe.ema_decay(step, progress))
            if train_step.ready == step:
                clock.start()
            progress = clock.progress(step)
            if progress >= 1:
                break
        epoch += 1
        loss = train_step.total.item() / (step - first_step)
        if not math.isfinite(loss):
            raise RuntimeError(f"{task.name}: the loss is {loss} in epoch {epoch}: lower --lr")
        seconds = Clock.now() - epoch_start
        accuracy = task.evaluate(task.model) if epoch % recipe.evaluate == 0 or progress >= 1 else None
        writer.log_epoch(model=task.name, epoch=epoch, step=step, progress=round(progress, 4), lr=lr, train_loss=loss,
                         val_accuracy=accuracy, seconds=round(seconds, 3))  # fmt: skip
        if task.metadata is not None and Clock.now() - last_snapshot > SNAPSHOT_SECONDS:
            writer.save_weights(task.name, task.model, {**task.metadata, "state": f"unfinished: epoch {epoch}"})
            last_snapshot = Clock.now()
    seconds = Clock.now() - run_start
    return TrainingResult(epoch, step, loss, seconds, train_step.compiled, train_step.captured)
