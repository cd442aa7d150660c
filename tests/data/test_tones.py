"""Tones: where they sound, and that kinds differ as named."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data import TONES, render_tones
from vitrail.data.tones import BINS, FRAMES
from vitrail.errors import InputError


@pytest.fixture(scope="module")
def scenes():
    return [render_tones(0, index, pairs=True, split="val") for index in range(40)]


def test_tones_are_louder_than_what_surrounds_them(scenes):
    for scene in scenes:
        quiet = scene.levels[~scene.masks.any(0)].mean()
        for mask, (first, end) in zip(scene.masks, scene.spans, strict=True):
            assert mask.sum() >= 20
            assert scene.levels[mask].mean() > quiet + 25
            assert not mask[:first].any()
            assert not mask[end:].any()


def test_pitch_changes_as_the_kind_says(scenes):
    signs = {"rising": 1, "falling": -1, "steady": 0}
    checked = 0
    for scene in scenes:
        for tone, mask in zip(scene.tones, scene.masks, strict=True):
            if TONES[tone] in signs:
                times = np.flatnonzero(mask.any(1))
                pitch = [np.flatnonzero(mask[t]).mean() for t in times[[2, -3]]]
                assert np.sign(round((pitch[1] - pitch[0]) / 4)) == signs[TONES[tone]], TONES[tone]
                checked += 1
    assert checked > 10


def test_a_pulsed_tone_has_gaps_and_a_double_one_two_lines(scenes):
    for scene in scenes:
        for tone, mask, (first, end) in zip(scene.tones, scene.masks, scene.spans, strict=True):
            inside = mask[first:end].any(1)
            if TONES[tone] == "pulsed":
                assert (np.diff(inside.astype(int)) == 1).sum() >= 2
            if TONES[tone] == "double":
                row = mask[(first + end) // 2]
                assert (np.diff(np.r_[0, row.astype(int)]) == 1).sum() == 2


def test_kinds_differ_and_bytes_repeat():
    one, again, other = (render_tones(0, 3, split=split) for split in ("val", "val", "test"))
    assert np.array_equal(one.levels, again.levels)
    assert not np.array_equal(one.levels, other.levels)
    assert one.levels.shape == (FRAMES, BINS)
    assert one.labels.sum() == pytest.approx(1)
    with pytest.raises(InputError, match="unknown split"):
        render_tones(0, 0, split="dev")
