"""Render scenes in parallel, with the class of every pixel."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.recipe import Clock
from training.rendered_data import RenderedData
from training.runtime import logger, parallel_map
from vitrail.data import SCENE_CLASSES, Scene, Scenes

SIZE = 128
#: Scenes of one to four objects, and pairs, in each mixed job (their ratio is that of the whole set), and scenes in
#: every other job.
MIXED, PAIRED, SINGLE = 96, 32, 128

#: Scenes with the range of indices to render.
SceneRange = tuple[Scenes, int, int]


@dataclass(frozen=True)
class SceneImages(RenderedData):
    """Rendered scenes.

    Attributes:
        images: uint8, shape (n, size, size, 3).
        pixel_classes: Class of the object at each pixel, or the number of classes where there is none; uint8, shape
            (n, size, size).
        labels: Target distributions: 1, shared by the classes present, shape (n, classes).
        description: What the scenes are, for the manifest.
    """

    images: Tensor
    pixel_classes: Tensor
    labels: Tensor
    description: str


def _pixel_classes(scene: Scene) -> np.ndarray[Any, Any]:
    classes = np.full(scene.image.shape[:2], len(SCENE_CLASSES), dtype=np.uint8)
    for mask, label in zip(scene.masks, scene.classes, strict=True):
        classes[mask] = label
    return classes


def _render_job(job: Sequence[SceneRange]) -> tuple[np.ndarray[Any, Any], ...]:
    rendered = [scenes[i] for scenes, start, stop in job for i in range(start, stop)]
    rows = ((scene.image, _pixel_classes(scene), scene.labels) for scene in rendered)
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


def render_scenes(jobs: Sequence[Sequence[SceneRange]], workers: int, seconds: float, description: str) -> SceneImages:
    """Render scenes in parallel, in the order of the jobs, until all are done or the time limit is reached."""
    start_time = Clock.now()
    count = sum(stop - start for job in jobs for _, start, stop in job)
    arrays: list[np.ndarray[Any, Any]] = [
        np.empty((count, SIZE, SIZE, 3), dtype=np.uint8),
        np.empty((count, SIZE, SIZE), dtype=np.uint8),
        np.empty((count, len(SCENE_CLASSES)), dtype=np.float32),
    ]
    done = 0
    with contextlib.closing(parallel_map(_render_job, jobs, workers)) as results:
        for parts in results:
            for array, part in zip(arrays, parts, strict=True):
                array[done : done + len(part)] = part
            done += len(parts[0])
            if Clock.now() - start_time > seconds:
                break
    logger.info("%d of %d scenes rendered in %.1f s: %s", done, count, Clock.now() - start_time, description)
    images, pixel_classes, labels = (torch.from_numpy(array[:done]) for array in arrays)
    return SceneImages(images, pixel_classes, labels, f"{done} scenes: {description}")


def mixed_jobs(count: int) -> list[list[SceneRange]]:
    """Jobs with scenes of one to four objects, every fourth a pair, in the same ratio in every job."""
    jobs = math.ceil(count / (MIXED + PAIRED))
    mixed, pairs = Scenes("train", jobs * MIXED), Scenes("train", jobs * PAIRED, pairs=True)
    return [[(mixed, k * MIXED, (k + 1) * MIXED), (pairs, k * PAIRED, (k + 1) * PAIRED)] for k in range(jobs)]


def jobs_of(scenes: Scenes) -> list[list[SceneRange]]:
    """Split a set of scenes into jobs."""
    return [[(scenes, start, min(start + SINGLE, len(scenes)))] for start in range(0, len(scenes), SINGLE)]
