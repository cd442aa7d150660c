"""Render the training sets of the worlds in parallel: coloured scenes, moving scenes and tones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.recipe import Clock
from training.rendered_data import RenderedData
from training.runtime import logger, parallel_map
from vitrail.data.motions import MOVEMENTS, render_motion
from vitrail.data.scenes import Scenes
from vitrail.data.tones import TONES, render_tones

OBJECTS = 4
NONE = 255
JOB = 64
Arrays = tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True)
class WorldData(RenderedData):
    """Rendered examples.

    Attributes:
        inputs: Images, shape (n, size, size, 3), videos, shape (n, frames, size, size, 3), or spectrograms, shape
            (n, frames, bins); uint8.
        owners: Of scenes, the object at each pixel; of videos and spectrograms, the class at each pixel, or the number
            of classes where there is none. uint8.
        labels: Of scenes, shape and colour of each object, −1 where there is none, shape (n, 4, 2); otherwise target
            distributions, shape (n, classes).
        description: What the examples are, for the manifest.
    """

    inputs: Tensor
    owners: Tensor
    labels: Tensor
    description: str


def _scene_rows(split: str, indices: Sequence[int], pairs: bool) -> Arrays:
    mixed, paired = Scenes(split, 1 << 20, coloured=True), Scenes(split, 1 << 20, pairs=True, coloured=True)
    images, owners, labels = [], [], np.full((len(indices), OBJECTS, 2), -1, np.int8)
    for row, index in enumerate(indices):
        scene = (paired if pairs or index % 4 == 0 else mixed)[index]
        owner = np.full(scene.image.shape[:2], NONE, np.uint8)
        for k, mask in enumerate(scene.masks):
            owner[mask] = k
        labels[row, : len(scene.classes)] = np.stack([scene.classes, scene.colours], 1)
        images.append(scene.image)
        owners.append(owner)
    return np.stack(images), np.stack(owners), labels


def _motion_rows(split: str, indices: Sequence[int], pairs: bool) -> Arrays:
    rows = []
    for index in indices:
        scene = render_motion(0, index, pairs=pairs or index % 4 == 0, split=split)
        owner = np.full(scene.masks.shape[1:], len(MOVEMENTS), np.uint8)
        for movement, mask in zip(scene.movements, scene.masks, strict=True):
            if movement is not None:
                owner[scene.start : scene.stop][mask[scene.start : scene.stop]] = movement
        rows.append((scene.frames, owner, scene.labels))
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


def _tone_rows(split: str, indices: Sequence[int], pairs: bool) -> Arrays:
    rows = []
    for index in indices:
        scene = render_tones(0, index, pairs=pairs or index % 4 == 0, split=split)
        owner = np.full(scene.levels.shape, len(TONES), np.uint8)
        for tone, mask in zip(scene.tones, scene.masks, strict=True):
            owner[mask] = tone
        rows.append((scene.levels, owner, scene.labels))
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


ROWS: Mapping[str, Callable[[str, Sequence[int], bool], Arrays]] = {
    "scenes": _scene_rows,
    "motions": _motion_rows,
    "tones": _tone_rows,
}


def _job(world: str, split: str, pairs: bool, indices: Sequence[int]) -> Arrays:
    return ROWS[world](split, indices, pairs)


def render_world(
    world: str, split: str, count: int, pairs: bool, workers: int, seconds: float = float("inf")
) -> WorldData:
    """Render examples of a world in parallel, until all are done or the time limit is reached.

    Args:
        world: "scenes", "motions" or "tones".
        split: "train", "val" or "test".
        count: Number of examples.
        pairs: Whether all are pairs; otherwise every fourth is one.
        workers: Number of processes.
        seconds: Time limit.
    """
    start = Clock.now()
    jobs = [range(first, min(first + JOB, count)) for first in range(0, count, JOB)]
    parts: list[Arrays] = []
    with contextlib.closing(parallel_map(partial(_job, world, split, pairs), jobs, workers)) as results:
        for part in results:
            parts.append(part)
            if Clock.now() - start > seconds:
                break
    inputs, owners, labels = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
    description = f"{len(inputs)} of {world}, {split} split, {'pairs' if pairs else 'every fourth a pair'}"
    logger.info("%s rendered in %.1f s", description, Clock.now() - start)
    return WorldData(inputs, owners, labels, description)
