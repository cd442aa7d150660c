"""Tones: spectrograms of several sounds at known times and frequencies, rendered from a seed and an index.

A spectrogram shows one to three tones of different kinds on noise. The kinds differ in how the tone changes, not in
when and where it sounds. The same seed and index give the same bytes on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from vitrail.data.scenes import SPLIT_OFFSETS, scene_generator
from vitrail.data.textures import smooth_wave, triangle_wave, uniform, uniform_int
from vitrail.errors import InputError

__all__ = ["TONES", "ToneScene", "render_tones"]

Floats = NDArray[np.float64]

TONES: tuple[str, ...] = ("steady", "rising", "falling", "vibrato", "pulsed", "double", "noisy", "stepped")
"""Names of the kinds of tone, which are the classes, by index."""

FRAMES, BINS = 128, 64
"""Time steps and frequency bins of a spectrogram."""

SECONDS_PER_FRAME, HERTZ_PER_BIN = 0.016, 62.5
"""What a time step and a bin stand for: 2 seconds and 4 kHz in all."""

LENGTH, MAX_TRIES = (36, 60), 20
"""Shortest and longest tone in time steps, and positions tried for one."""


@dataclass(frozen=True, eq=False)
class ToneScene:
    """A rendered spectrogram and its ground truth.

    Attributes:
        levels: Sound level, uint8, shape (frames, bins): first time, then frequency from low to high.
        tones: Kind of each tone.
        masks: Where each tone sounds, shape (tones, frames, bins). No element belongs to two tones.
        spans: First time step and the one after the last of each tone, shape (tones, 2).
    """

    levels: NDArray[np.uint8]
    tones: tuple[int, ...]
    masks: NDArray[np.bool_]
    spans: NDArray[np.int64]

    @property
    def labels(self) -> NDArray[np.float32]:
        """Target distribution: 1, shared equally by the kinds present, shape (8,)."""
        labels = np.zeros(len(TONES), dtype=np.float32)
        labels[list(self.tones)] = 1 / len(self.tones)
        return labels


def render_tones(seed: int, index: int, *, pairs: bool = False, split: str | None = None) -> ToneScene:
    """Render one spectrogram of 128 time steps and 64 frequency bins.

    Args:
        seed: Seed of a family of spectrograms, 0 or more.
        index: Index of the spectrogram, 0 or more.
        pairs: Render exactly two tones; otherwise one to three.
        split: "train", "val" or "test": no two splits share a spectrogram. None counts all.

    Returns:
        The spectrogram.

    Example:
        >>> scene = render_tones(0, 3, pairs=True)
        >>> scene.levels.shape, scene.masks.shape, len(set(scene.tones))
        ((128, 64), (2, 128, 64), 2)
    """
    if split is not None and split not in SPLIT_OFFSETS:
        raise InputError(f"unknown split {split!r}: use one of {', '.join(SPLIT_OFFSETS)}")
    rng = scene_generator(seed, index + SPLIT_OFFSETS.get(split or "", 0), 4)
    count = 2 if pairs else uniform_int(rng, 1, 3)
    kinds = [int(kind) for kind in np.argsort(rng.random(len(TONES)), kind="stable")[:count]]
    masks = np.zeros((count, FRAMES, BINS), np.bool_)
    spans = np.zeros((count, 2), np.int64)
    level = uniform(rng, 0.12, 0.25) + uniform(rng, 0.05, 0.12) * _smooth_noise(rng)
    level += uniform(rng, 0.10, 0.18) * (rng.random((FRAMES, BINS)) - 0.5)
    for k, kind in enumerate(kinds):
        energy = np.zeros((FRAMES, BINS))
        for _ in range(MAX_TRIES):
            energy, first, last = _draw_tone(rng, kind)
            masks[k] = energy >= 0.3
            if not (_grown(masks[k]) & masks[:k].any(0)).any():
                break
        spans[k] = first, last
        level += uniform(rng, 0.35, 0.6) * energy
    masks[1:] &= ~np.logical_or.accumulate(masks[:-1], 0) if count > 1 else True
    levels = np.rint(np.clip(level, 0, 1) * 255).astype(np.uint8)
    return ToneScene(levels, tuple(kinds), masks, spans)


def _draw_tone(rng: Generator, kind: int) -> tuple[Floats, int, int]:
    """Energy from 0 to 1 of a tone at a random time and frequency, shape (frames, bins), its first step and its end."""
    name, length = TONES[kind], uniform_int(rng, *LENGTH)
    first = uniform_int(rng, 2, FRAMES - length - 2)
    time: Floats = np.arange(FRAMES, dtype=np.float64)[:, None] - first + 0.5
    inside = np.clip(np.minimum(time, length - time) / 2, 0, 1)  # a short fade at both ends
    base, bins = uniform(rng, 11, BINS - 12), np.arange(BINS)[None, :] + 0.0
    along = np.clip(time / length, 0, 1) - 0.5
    sweep = uniform(rng, 14, 18)
    centre = np.full_like(time, base)
    if name == "rising":
        centre = base + sweep * along
    elif name == "falling":
        centre = base - sweep * along
    elif name == "vibrato":
        depth, period = uniform(rng, 2.5, 3.5), uniform(rng, 11, 15)
        centre = base + depth * smooth_wave(_periods(time, period))
    elif name == "stepped":
        centre = base + 5 * np.sign(triangle_wave(_periods(time, uniform(rng, 18, 24))) - 0.25)
    energy = np.clip(1.8 - np.abs(bins - centre), 0, 1)
    if name == "double":
        apart = uniform(rng, 3.5, 5)
        energy = np.clip(1.5 - np.abs(np.abs(bins - centre) - apart), 0, 1)
    elif name == "pulsed":
        energy = energy * np.clip((triangle_wave(_periods(time, uniform(rng, 7, 10))) - 0.22) * 8, 0, 1)
    elif name == "noisy":
        energy = np.clip(4.5 - np.abs(bins - centre), 0, 1) * (0.25 + 0.75 * rng.random((FRAMES, BINS)))
    return energy * inside, first, first + length


def _periods(time: Floats, period: float) -> Floats:
    """Number of periods that have passed at each time step."""
    passed: Floats = time / period
    return passed


def _smooth_noise(rng: Generator) -> Floats:
    """Slow changes of the background over time and frequency, from -1 to 1, shape (frames, bins)."""
    time, bins = np.arange(FRAMES)[:, None] / FRAMES, np.arange(BINS)[None, :] / BINS
    a, b = (uniform(rng, -2, 2) for _ in range(2))
    return smooth_wave(time * a + bins * b + rng.random())


def _grown(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A mask with a margin of three elements."""
    found = mask.copy()
    for axis in (0, 1):
        for _ in range(3):
            found = found | np.roll(found, 1, axis) | np.roll(found, -1, axis)
    return found
