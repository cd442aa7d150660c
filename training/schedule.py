"""The recipe of a run and the clock that keeps it within its time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from training.start import logger

#: Steps before the pace is measured (kernels are chosen and memory is taken in the first ones), and steps measured.
SETTLE, MEASURE = 20, 100
#: Share of the time left that is planned for; the rest is for evaluations and for a machine that slows down.
PLANNED = 0.98


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
