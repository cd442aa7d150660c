"""Scenes drawn in parallel, with the class of every pixel."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.schedule import Clock
from training.start import in_parallel, logger
from vitrail.data import SCENE_CLASSES, Scenes
from vitrail.data.scenes import Scene

SIZE = 128
#: Scenes of one to four things and pairs that a worker draws in one go; their ratio is that of the whole set.
MIXED, PAIRED, SINGLE = 96, 32, 128

Part = tuple[Scenes, int, int]


@dataclass(frozen=True)
class Pictures:
    """Drawn scenes.

    Attributes:
        images: Bytes, shape (n, size, size, 3).
        kinds: The class of the thing seen at each pixel, bytes, shape (n, size, size); one past the last class where
            there is none.
        labels: One, shared by the classes present, shape (n, classes).
        note: What they are, for the manifest.
    """

    images: Tensor
    kinds: Tensor
    labels: Tensor
    note: str

    def to(self, device: torch.device) -> Pictures:
        """The same on a device."""
        return Pictures(self.images.to(device), self.kinds.to(device), self.labels.to(device), self.note)


def _kinds(scene: Scene) -> np.ndarray[Any, Any]:
    kinds = np.full(scene.image.shape[:2], len(SCENE_CLASSES), dtype=np.uint8)
    for mask, kind in zip(scene.masks, scene.classes, strict=True):
        kinds[mask] = kind
    return kinds


def _draw(job: Sequence[Part]) -> tuple[np.ndarray[Any, Any], ...]:
    drawn = [scenes[i] for scenes, start, stop in job for i in range(start, stop)]
    return tuple(np.stack(what) for what in zip(*((s.image, _kinds(s), s.labels) for s in drawn), strict=True))


def draw(jobs: Sequence[Sequence[Part]], workers: int, seconds: float, what: str) -> Pictures:
    """Draw scenes in parallel, in the order of the jobs, until all are drawn or the time is over."""
    began = Clock.now()
    count = sum(stop - start for job in jobs for _, start, stop in job)
    images = np.empty((count, SIZE, SIZE, 3), dtype=np.uint8)
    kinds = np.empty((count, SIZE, SIZE), dtype=np.uint8)
    labels = np.empty((count, len(SCENE_CLASSES)), dtype=np.float32)
    done = 0
    with contextlib.closing(in_parallel(_draw, jobs, workers)) as results:
        for some in results:
            for whole, part in zip((images, kinds, labels), some, strict=True):
                whole[done : done + len(part)] = part
            done += len(some[0])
            if Clock.now() - began > seconds:
                break
    logger.info("%d of %d scenes drawn in %.1f s: %s", done, count, Clock.now() - began, what)
    return Pictures(*(torch.from_numpy(whole[:done]) for whole in (images, kinds, labels)), f"{done} scenes: {what}")


def mixed_jobs(count: int) -> list[list[Part]]:
    """Scenes of one to four things, every fourth a pair; any first part of the jobs has the same mixture."""
    jobs = math.ceil(count / (MIXED + PAIRED))
    mixed, pairs = Scenes("train", jobs * MIXED), Scenes("train", jobs * PAIRED, pairs=True)
    return [[(mixed, k * MIXED, (k + 1) * MIXED), (pairs, k * PAIRED, (k + 1) * PAIRED)] for k in range(jobs)]


def jobs_of(scenes: Scenes) -> list[list[Part]]:
    """A split in pieces."""
    return [[(scenes, start, min(start + SINGLE, len(scenes)))] for start in range(0, len(scenes), SINGLE)]
