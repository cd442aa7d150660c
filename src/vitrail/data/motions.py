"""Moving scenes: short videos in which objects perform movements, rendered from a seed and an index.

A video shows several objects. One or two of them move, each in its own way, after a beginning in which everything
rests. The same seed and index give the same bytes on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from vitrail.data import textures
from vitrail.data.scenes import SPLIT_OFFSETS, scene_generator
from vitrail.data.shapes import SCENE_CLASSES, DrawnObject, draw_object, window_slices
from vitrail.data.textures import uniform, uniform_int
from vitrail.errors import InputError

__all__ = ["MOVEMENTS", "MotionScene", "render_motion"]

Path = NDArray[np.int64]

MOVEMENTS: tuple[str, ...] = ("left", "right", "up", "down", "circle", "shake", "bounce", "blink")
"""Names of the movements, which are the classes, by index."""

FRAMES, SIZE, EVENT = 12, 64, 8
"""Frames of a video, height and width in pixels, and frames that a movement lasts."""

REACH = 18
"""Pixels that an object covers when it moves in one direction."""

# A turn of eight frames in pixels: a circle of radius 6, written out because cosines differ in the last bit.
_CIRCLE = ((0, 0), (2, -4), (6, -6), (10, -4), (12, 0), (10, 4), (6, 6), (2, 4))
_SWING = (0, 4, 0, -4, 0, 4, 0, -4)


@dataclass(frozen=True, eq=False)
class MotionScene:
    """A rendered video and its ground truth. Objects are listed from front to back.

    Attributes:
        frames: uint8, shape (frames, size, size, 3).
        movements: Movement of each object, or None for one that rests.
        shapes: Shape of each object, an index in `SCENE_CLASSES`; it does not depend on the movement.
        masks: Visible pixels of each object in each frame, shape (objects, frames, size, size).
        start: First frame of the movements; before it everything rests.
        stop: Frame after their last one.
    """

    frames: NDArray[np.uint8]
    movements: tuple[int | None, ...]
    shapes: tuple[int, ...]
    masks: NDArray[np.bool_]
    start: int
    stop: int

    @property
    def labels(self) -> NDArray[np.float32]:
        """Target distribution: 1, shared equally by the movements in the video, shape (8,)."""
        labels = np.zeros(len(MOVEMENTS), dtype=np.float32)
        present = sorted({movement for movement in self.movements if movement is not None})
        labels[present] = 1 / len(present)
        return labels


def movement_path(movement: int | None, start: int) -> Path:
    """Displacement of an object in each frame, as x and y in pixels, shape (frames, 2).

    Args:
        movement: Index in ``MOVEMENTS``, or None for rest. "blink" rests too.
        start: First frame of the movement.

    Example:
        >>> movement_path(1, 2)[:, 0].tolist()
        [0, 0, 2, 5, 7, 9, 11, 14, 16, 18, 18, 18]
    """
    steps = np.clip(np.arange(FRAMES) - start + 1, 0, EVENT)
    path = np.zeros((FRAMES, 2), np.int64)
    name = None if movement is None else MOVEMENTS[movement]
    if name in ("left", "right", "up", "down"):
        axis, sign = (0, 1)[name in ("up", "down")], (-1, 1)[name in ("right", "down")]
        path[:, axis] = sign * ((2 * REACH * steps + EVENT) // (2 * EVENT))
    elif name == "circle":
        path += np.array(_CIRCLE)[steps % EVENT]
    elif name in ("shake", "bounce"):
        path[:, (0, 1)[name == "bounce"]] = np.array(_SWING)[steps % EVENT]
    return path


def render_motion(seed: int, index: int, *, pairs: bool = False, split: str | None = None) -> MotionScene:
    """Render one video of 12 frames of 64×64 pixels.

    Args:
        seed: Seed of a family of videos, 0 or more.
        index: Index of the video, 0 or more.
        pairs: Let exactly two objects move in two different ways, beside one that rests. Otherwise one or two move,
            and there are two or three objects.
        split: "train", "val" or "test": no two splits share a video. None counts all videos.

    Returns:
        The video.

    Example:
        >>> scene = render_motion(0, 3, pairs=True)
        >>> scene.frames.shape, scene.masks.shape, sum(m is not None for m in scene.movements)
        ((12, 64, 64, 3), (3, 12, 64, 64), 2)
        >>> bool((scene.masks[:, 0] == scene.masks[:, max(scene.start - 1, 0)]).all())
        True
    """
    if split is not None and split not in SPLIT_OFFSETS:
        raise InputError(f"unknown split {split!r}: use one of {', '.join(SPLIT_OFFSETS)}")
    rng = scene_generator(seed, index + SPLIT_OFFSETS.get(split or "", 0), 3)
    start = 2 * uniform_int(rng, 0, (FRAMES - EVENT) // 2)
    objects = 3 if pairs else uniform_int(rng, 2, 3)
    moving = 2 if pairs else uniform_int(rng, 1, 2)
    kinds = np.argsort(rng.random(len(MOVEMENTS)), kind="stable")[:moving]
    movements: list[int | None] = [*(int(kind) for kind in kinds), *[None] * (objects - moving)]
    placed = None
    while placed is None:
        placed = _place(rng, movements, start)
    order = np.argsort(rng.random(objects), kind="stable")
    placed, movements = [placed[k] for k in order], [movements[k] for k in order]
    _, background = textures.background(rng, SIZE)
    contrast, brightness, noise = uniform(rng, 0.9, 1.08), uniform(rng, -0.05, 0.05), uniform(rng, 0.01, 0.05)
    frames, masks = [], np.zeros((objects, FRAMES, SIZE, SIZE), np.bool_)
    for time in range(FRAMES):
        planes = background.copy()
        occupied = np.zeros((SIZE, SIZE), np.bool_)
        hidden = start <= time < start + EVENT and (time - start) % 2 == 0
        shown = [not (hidden and movement == MOVEMENTS.index("blink")) for movement in movements]
        for k, (drawn, path) in enumerate(placed):
            in_image, in_window = window_slices((int(path[time, 0]), int(path[time, 1])), len(drawn.mask), SIZE)
            if shown[k]:
                masks[k, time][in_image] = drawn.mask[in_window] & ~occupied[in_image]
                occupied |= masks[k, time]
        for k, (drawn, path) in reversed(list(enumerate(placed))):
            in_image, in_window = window_slices((int(path[time, 0]), int(path[time, 1])), len(drawn.mask), SIZE)
            if shown[k]:
                view = planes[(slice(None), *in_image)]
                view += drawn.alpha[in_window] * (drawn.colours[(slice(None), *in_window)] - view)
        planes = (planes - 0.5) * contrast + 0.5 + brightness + noise * (rng.random(planes.shape) - 0.5)
        frames.append(np.rint(np.clip(planes * 255, 0, 255)).astype(np.uint8))
    images = np.ascontiguousarray(np.moveaxis(np.stack(frames), 1, 3))
    shapes = tuple(drawn.label for drawn, _ in placed)
    return MotionScene(images, tuple(movements), shapes, masks, start, start + EVENT)


def _place(rng: Generator, movements: list[int | None], start: int) -> list[tuple[DrawnObject, Path]] | None:
    """Draw the objects and find paths inside the image whose areas do not overlap; None if there is no room."""
    taken = np.zeros((SIZE, SIZE), np.bool_)
    placed = []
    for movement in movements:
        drawn = draw_object(rng, uniform_int(rng, 0, len(SCENE_CLASSES) - 1), uniform(rng, 7.5, 9.5))
        side = len(drawn.mask)
        path = movement_path(movement, start)
        low, high = -path.min(0), SIZE - side - path.max(0)
        for _ in range(12):
            x, y = (
                uniform_int(rng, int(low[0]) - 3, int(high[0]) + 3),
                uniform_int(rng, int(low[1]) - 3, int(high[1]) + 3),
            )
            covered = np.zeros_like(taken)
            for dx, dy in np.unique(path, axis=0):
                in_image, in_window = window_slices((x + int(dx), y + int(dy)), side, SIZE)
                covered[in_image] |= drawn.mask[in_window]
            if not (covered & taken).any():
                break
        else:
            return None
        taken |= covered
        placed.append((drawn, path + np.array([x, y])))
    return placed
