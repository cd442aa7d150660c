"""Training recipe, task and result, and the clock that keeps a run within its time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

#: Function from a model and indices of training images to the loss; it applies the augmentation itself.
Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a training run.

    Attributes:
        batch: Batch size; an incomplete batch at the end of an epoch is skipped.
        lr: Peak learning rate.
        final_lr: Learning rate at the end.
        warmup: Fraction of the schedule with linear warm-up.
        decay: Weight decay of the matrices.
        betas: Betas of AdamW.
        clip: Maximum gradient norm.
        ema: Maximum decay of the averaged weights.
        ema_share: Maximum length of the average as a fraction of all steps; limits it in short runs.
        drop_path: Stochastic depth rate of the last block.
        epochs: Maximum number of epochs.
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

    def learning_rate(self, progress: float) -> float:
        """Learning rate at a progress from 0 to 1: linear warm-up, then cosine decay."""
        if progress < self.warmup:
            return self.lr * progress / self.warmup
        angle = math.pi * min(1.0, (progress - self.warmup) / (1 - self.warmup))
        return self.final_lr + (self.lr - self.final_lr) * (1 + math.cos(angle)) / 2

    def ema_decay(self, step: int, progress: float) -> float:
        """Decay of the averaged weights after a step; smaller in the first steps."""
        expected_steps = step / max(progress, 1e-6)
        return min(self.ema, (1 + step) / (10 + step), 1 - 1 / max(2.0, self.ema_share * expected_steps))


@dataclass
class TrainingTask:
    """A model and the data and loss it is trained with.

    Attributes:
        name: Name of the model and its file.
        net: The module that is trained, on the device.
        model: The module that holds the averaged weights; it is evaluated and saved.
        count: Number of training images.
        loss: Loss of the net on some of them.
        evaluate: Accuracy of the model for the log; it does not influence the training.
        metadata: Metadata to store with the weights; None if the weights are not saved.
    """

    name: str
    net: nn.Module
    model: nn.Module
    count: int
    loss: Loss
    evaluate: Callable[[nn.Module], float]
    metadata: dict[str, Any] | None


@dataclass(frozen=True)
class TrainingResult:
    """Summary of a finished training run."""

    epochs: int
    steps: int
    train_loss: float
    seconds: float
    compiled: bool
    captured: bool


class Clock:
    """Progress of a run from 0 to 1 by time, so that the schedule is complete at the deadline on any machine.

    Args:
        deadline: End of the last step, on the monotonic clock.
        max_steps: Maximum number of steps; if they are done before the deadline, progress follows the steps.
    """

    def __init__(self, deadline: float, max_steps: int | None) -> None:
        self._deadline, self._max_steps = deadline, max_steps
        self._start: float | None = None

    @staticmethod
    def now() -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def start(self) -> None:
        """Start to count time; call it when compilation is done."""
        self._start = self.now()

    def progress(self, step: int) -> float:
        """Progress after a number of steps."""
        now = self.now()
        if now >= self._deadline:
            return 1.0
        by_time = 0.0 if self._start is None else (now - self._start) / (self._deadline - self._start)
        by_steps = 0.0 if self._max_steps is None else step / self._max_steps
        return min(1.0, max(by_time, by_steps))
