"""Moving scenes: paths, masks and the frames of the movement."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data import MOVEMENTS, render_motion
from vitrail.data.motions import EVENT, FRAMES, movement_path
from vitrail.errors import InputError


@pytest.fixture(scope="module")
def scenes():
    return [render_motion(0, index, pairs=True, split="val") for index in range(12)]


def centres(mask):
    """Mean x and y of a mask in each frame; NaN where it is empty."""
    points = [np.argwhere(frame) for frame in mask]
    return np.array([p.mean(0)[::-1] if len(p) else (np.nan, np.nan) for p in points])


def test_objects_rest_before_the_movement_and_move_as_named(scenes):
    directions = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
    seen = set()
    for scene in scenes:
        for movement, mask in zip(scene.movements, scene.masks, strict=True):
            path = centres(mask)
            rest = path[: scene.start + (movement is None) * FRAMES]
            assert np.allclose(rest, path[:1] if scene.start else rest, atol=1e-9) or movement is not None
            if movement is None:
                assert np.allclose(path, path[0])
                continue
            name = MOVEMENTS[movement]
            seen.add(name)
            if name == "blink":
                shown = mask.any((1, 2))
                assert not shown[scene.start : scene.stop : 2].any()
                assert shown[: scene.start].all()
            elif name in directions and not mask[:, [0, -1]].any() and not mask[:, :, [0, -1]].any():
                step = path[-1] - path[0]
                assert np.allclose(np.sign(np.round(step)), directions[name]), name
    assert len(seen) > 4


def test_a_circle_and_a_swing_return(scenes):
    for name in ("circle", "shake", "bounce"):
        path = movement_path(MOVEMENTS.index(name), 2)
        assert (path[:2] == path[0]).all()
        assert (path[2 + EVENT :] == path[0]).all()
        assert np.abs(path).max() >= 4
    assert not movement_path(MOVEMENTS.index("shake"), 0)[:, 1].any()
    assert not movement_path(None, 0).any()


def test_pairs_have_two_movements_and_no_pixel_of_two_objects(scenes):
    for scene in scenes:
        assert sum(movement is not None for movement in scene.movements) == 2
        assert scene.labels.sum() == 1
        assert (scene.labels > 0).sum() == 2
        assert scene.masks.sum(0).max() == 1
        assert scene.stop - scene.start == EVENT


def test_the_same_bytes_every_time_and_other_ones_in_each_split():
    first, second, other = (render_motion(0, 3, split=split) for split in ("val", "val", "test"))
    assert np.array_equal(first.frames, second.frames)
    assert not np.array_equal(first.frames, other.frames)
    with pytest.raises(InputError, match="unknown split 'dev'"):
        render_motion(0, 3, split="dev")
