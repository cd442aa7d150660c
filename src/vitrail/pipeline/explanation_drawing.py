"""Drawings of an explanation: its maps over images, original images, videos and other signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.errors import InputError
from vitrail.inputs.map_axis import MapAxis
from vitrail.models.preprocess import to_bytes
from vitrail.pipeline.explanation_data import ExplanationData
from vitrail.viz.colormap import mark_failure, overlay, to_image
from vitrail.viz.original_overlay import original_overlay, outline_box

if TYPE_CHECKING:
    from PIL.Image import Image


def draw_overlay(e: ExplanationData, image: int, k: int, opacity: float = 0.75, original: bool = False) -> Image:
    """One map over its input; see `vitrail.Explanation.overlay`."""
    relevance = e.maps[image, k].float().cpu().numpy()
    if e.signal is not None:
        drawn = _draw_signal(e, image, relevance, opacity)
    elif e.rgb_images is None:
        raise InputError("this is an explanation of texts, which have no overlay: use vitrail.text.html")
    elif original:
        drawn = _draw_on_original(e, image, relevance, opacity)
    else:
        drawn = to_image(overlay(e.rgb_images[image], relevance, e.signed, opacity))
    drawn = _with_box(e, drawn, image, k, original)
    check = e.checks.get((image, k))
    return drawn if check is None or check.passed else mark_failure(drawn, check.verdict)


def _with_box(e: ExplanationData, drawn: Image, image: int, k: int, original: bool) -> Image:
    """The overlay with the box of its target, if that has one."""
    record = None if e.named_targets is None else e.named_targets[image][k]
    if record is None or record.corners is None:
        return drawn
    geometry = e.originals[image].geometry if original and e.originals else None
    return outline_box(drawn, record.corners, geometry)


def _draw_on_original(e: ExplanationData, image: int, relevance: np.ndarray[Any, Any], opacity: float) -> Image:
    if e.originals is None:
        raise InputError("tensors were explained, so there is no original image: pass paths or PIL images")
    source = e.originals[image]
    if source.geometry is None:
        raise InputError(
            "the preprocessing is a function, so it is unknown which part of the image the model saw: pass "
            "preprocess=vitrail.Preprocess(size, mean, std, crop)"
        )
    return original_overlay(source.open(), relevance, source.geometry, e.signed, opacity)


def _draw_signal(e: ExplanationData, image: int, relevance: np.ndarray[Any, Any], opacity: float) -> Image:
    from vitrail.viz.signal_overlay import draw_signal

    if relevance.ndim != len(e.axes):
        raise InputError(
            "the map is one of tokens whose places in the input could not be measured, so it cannot be drawn: pass "
            "layout=vitrail.Layout(prefix=…, grid=…), or use a method that needs the model's outputs alone"
        )
    return draw_signal(_drawn_signal(e, image), relevance, e.axes, e.signed, opacity)


def _drawn_signal(e: ExplanationData, image: int) -> np.ndarray[Any, Any]:
    """The input with its channels first: uint8 RGB for videos, numbers otherwise."""
    assert e.signal is not None
    signal = e.signal[image].float()
    if len(e.axes) != 3:
        return signal.cpu().numpy()
    frames = signal.transpose(0, 1)
    known = e.preprocess is not None and len(e.preprocess.mean) == frames.shape[1]
    if known and e.preprocess:
        return e.preprocess.denormalise(frames).transpose(3, 0, 1, 2)
    low, high = frames.min(), frames.max()
    return to_bytes((frames - low) / (high - low).clamp_min(1e-12)).transpose(3, 0, 1, 2)


def draw_frames(e: ExplanationData, image: int, k: int, opacity: float = 0.75) -> list[np.ndarray[Any, Any]]:
    """The map of a video over each of its frames, as uint8, shape (height, width, 3)."""
    from vitrail.viz.clip import frame_overlays

    relevance = e.maps[image, k].float().cpu().numpy()
    if e.signal is None or relevance.ndim != 3 or len(e.axes) != 3:
        raise InputError("only the maps of videos have frames: draw this explanation with overlay()")
    return frame_overlays(_drawn_signal(e, image).transpose(1, 2, 3, 0), relevance, e.signed, opacity)


def frame_rate(e: ExplanationData) -> float | None:
    """Frames a second of a video, or None where that is unknown."""
    time = e.axes[0]
    return 1 / time.step if time.unit == "s" and time.values is None else None


def axes_given(e: ExplanationData, axes: Mapping[str, Any]) -> tuple[MapAxis, ...]:
    """The axes with other units or names; see `vitrail.Explanation.with_axes`."""
    known = {axis.name: i for i, axis in enumerate(e.axes)}
    unknown = [name for name in axes if name not in known]
    if unknown:
        listed = ", ".join(known) or "none"
        raise InputError(f"there is no axis {unknown[0]!r}: the axes of these maps are {listed}")
    found = list(e.axes)
    sizes = [int(n) for n in (e.maps if e.signal is None else e.signal).shape[2:]]
    for name, value in axes.items():
        found[known[name]] = found[known[name]].given(value, sizes[known[name]])
    return tuple(found)
