"""The recipe of a run and the clock that keeps it within its time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


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

    def ema_decay(self, step: int, progress: float) -> float:
        """Decay of the averaged weights after a step: less at first, when there is little to average."""
        expected = step / max(progress, 1e-6)
        return min(self.ema, (1 + step) / (10 + step), 1 - 1 / max(2.0, self.ema_share * expected))


class Clock:
    """Progress of a run from 0 to 1, by time, so that its schedule is complete at the deadline on any machine.

    Args:
        deadline: When the last step must be over, on the monotonic clock.
        most: Largest number of steps; where they come first, they are the measure.
    """

    def __init__(self, deadline: float, most: int | None) -> None:
        self._deadline, self._most = deadline, most
        self._begun: float | None = None

    @staticmethod
    def now() -> float:
        """The monotonic clock."""
        return time.monotonic()

    def begin(self) -> None:
        """Count time from now on: the steps before were for the compiler."""
        self._begun = self.now()

    def progress(self, step: int) -> float:
        """Progress after so many steps."""
        now = self.now()
        if now >= self._deadline:
            return 1.0
        by_time = 0.0 if self._begun is None else (now - self._begun) / (self._deadline - self._begun)
        by_steps = 0.0 if self._most is None else step / self._most
        return min(1.0, max(by_time, by_steps))
