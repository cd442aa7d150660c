"""Maps of sound, series and features drawn over their inputs, with axes in seconds, hertz or names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.inputs.map_axis import MapAxis
from vitrail.viz.axis_plot import FAINT, INK, AxisPlot, round_ticks, tick_label
from vitrail.viz.clip import contact_sheet, frame_overlays
from vitrail.viz.colormap import blend, colours, stretch, to_image

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]

#: Most features that are drawn as bars: the most relevant ones.
BARS = 24
_WIDTH, _HEIGHT, _PANEL, _BAR = 640, 256, 150, 20
_POSITIVE, _NEGATIVE = (190, 60, 50), (50, 95, 170)
#: Grey of a waveform where it has no relevance.
_WAVE = 0.62


def draw_signal(
    signal: Array, relevance: Array, axes: Sequence[MapAxis], signed: bool = False, opacity: float = 0.75
) -> Image:
    """Draw one map over its input: a contact sheet, a spectrogram, lines of a series, or bars of features.

    Args:
        signal: The input with its channels first, (channels, axes of the map …): uint8 RGB for videos, numbers else.
        relevance: In [0, 1], or [-1, 1] if signed, in the shape of a map.
        axes: The axes of the map.
        signed: Whether negative relevance means evidence against the target.
        opacity: Opacity of the colour where relevance is highest.
    """
    names = [axis.name for axis in axes]
    if len(names) == 3:
        frames = frame_overlays(signal.transpose(1, 2, 3, 0), relevance, signed, opacity)
        return contact_sheet(frames, frame_captions(axes[0], len(frames)))
    if names == ["features"]:
        return feature_bars(relevance, axes[0], signed)
    if set(names) == {"time", "frequency"}:
        turned = names[0] == "time"
        spectrum, found = (one.T if turned else one for one in (signal[0], relevance))
        return spectrogram(spectrum, found, axes[names.index("time")], axes[names.index("frequency")], signed, opacity)
    lines = signal[0][:, None] if len(names) == 1 else signal[0]
    found = relevance[:, None] if len(names) == 1 else relevance
    return series_lines(lines, found, axes[0], axes[1] if len(axes) > 1 else None, signed, opacity)


def frame_captions(axis: MapAxis, count: int) -> list[str]:
    """A caption for each frame of a video: its time, or its index where that is unknown."""
    return [f"{axis.at(i):.2f} s" if axis.unit == "s" else f"frame {i}" for i in range(count)]


def spectrogram(
    values: Array, relevance: Array, time: MapAxis, frequency: MapAxis, signed: bool = False, opacity: float = 0.75
) -> Image:
    """Draw a map over a spectrogram: time to the right, frequency upwards.

    Args:
        values: The spectrogram, shape (frequency, time); the first row is the lowest frequency.
        relevance: Shape (frequency, time).
        time: The axis of time.
        frequency: The axis of frequencies.
        signed: Whether zero is in the middle of the colour map.
        opacity: Opacity of the colour where relevance is highest.
    """
    from PIL import Image as PILImage

    low, high = np.quantile(values, (0.01, 0.99))
    grey = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    background = np.repeat((grey * 255).astype(np.uint8)[..., None], 3, -1)
    pixels = blend(background, stretch(relevance), signed, opacity)[::-1]
    plot = AxisPlot(_WIDTH, _HEIGHT)
    drawn = to_image(np.ascontiguousarray(pixels)).resize((_WIDTH, _HEIGHT), PILImage.Resampling.NEAREST)
    plot.image.paste(drawn, plot.box[:2])
    plot.horizontal(_ticks(time, values.shape[1]), time.title)
    plot.vertical(_ticks(frequency, values.shape[0]), frequency.title)
    plot.frame()
    return plot.image


def series_lines(
    values: Array,
    relevance: Array,
    time: MapAxis,
    variables: MapAxis | None = None,
    signed: bool = False,
    opacity: float = 0.75,
) -> Image:
    """Draw each variable of a series as a line, over a background whose colour is its relevance.

    Args:
        values: Shape (time, variables).
        relevance: Shape (time, variables).
        time: The axis of time.
        variables: The axis of variables, whose names are drawn; None for a series of one variable.
        signed: Whether zero is in the middle of the colour map.
        opacity: Opacity of the colour where relevance is highest.
    """
    count = values.shape[1]
    height = _PANEL if count == 1 else max(48, _HEIGHT // count)
    plot = AxisPlot(_WIDTH, height * count)
    left, top, right, _ = plot.box
    scaled = stretch(relevance)
    for i in range(count):
        strip = _strip(scaled[:, i], _WIDTH, signed)
        alpha = opacity * np.abs(_columns(scaled[:, i], _WIDTH))[:, None]
        row, ink = (((1 - alpha) * shade + alpha * strip) * 255 for shade in (1.0, _WAVE))
        pixels = np.repeat(row.round().astype(np.uint8)[None], height, 0)
        plot.image.paste(to_image(pixels), (left, top + i * height))
        _line(plot, values[:, i], (left, top + i * height, right, top + (i + 1) * height), ink)
        if i:
            plot.draw.line((left, top + i * height, right, top + i * height), fill=FAINT)
    if variables is not None:
        plot.vertical([(1 - (i + 0.5) / count, _short(variables.label(i), 9)) for i in range(count)])
    plot.horizontal(_ticks(time, len(values)), time.title)
    plot.frame()
    return plot.image


def feature_bars(relevance: Array, axis: MapAxis, signed: bool = False) -> Image:
    """Draw the relevance of features as bars with their names, the most relevant first.

    Args:
        relevance: Shape (features,).
        axis: The axis of the features, with their names.
        signed: Whether bars go to both sides of zero.
    """
    order = np.argsort(-np.abs(relevance), kind="stable")[:BARS]
    names = [_short(axis.label(int(i)), 28) for i in order]
    plot = AxisPlot(_WIDTH - 200, _BAR * len(order), left=40 + 7 * max(len(name) for name in names))
    left, top, right, bottom = plot.box
    zero = (left + right) / 2 if signed else left
    scale = (right - left) / 2 if signed else right - left
    for row, i in enumerate(order):
        end, y = zero + float(relevance[i]) * scale, top + row * _BAR
        colour = _NEGATIVE if relevance[i] < 0 else _POSITIVE
        plot.draw.rectangle((min(zero, end), y + 3, max(zero, end), y + _BAR - 3), fill=colour)
    plot.vertical([(1 - (row + 0.5) / len(order), name) for row, name in enumerate(names)])
    ends = (-1.0, 1.0) if signed else (0.0, 1.0)
    ticks = round_ticks(*ends, count=4)
    plot.horizontal([((t - ends[0]) / (ends[1] - ends[0]), tick_label(t)) for t in ticks], "relevance")
    plot.draw.line((zero, top, zero, bottom), fill=INK)
    return plot.image


def _ticks(axis: MapAxis, size: int) -> list[tuple[float, str]]:
    """Ticks of an axis as (position between 0 and 1, label)."""
    low, high = axis.at(0), axis.at(size if axis.values is None else size - 1)
    found = round_ticks(low, high)
    if axis.values is None:
        return [((t - low) / (high - low or 1), tick_label(t, axis.unit)) for t in found]
    index = np.interp(found, axis.values, np.arange(size))
    return [((float(i) + 0.5) / size, tick_label(t, axis.unit)) for i, t in zip(index, found, strict=True)]


def _columns(values: Array, width: int) -> Array:
    """The value of largest magnitude at each of some columns, so that a short event is not lost."""
    edges = np.linspace(0, len(values), width + 1)
    found = np.empty(width)
    for i in range(width):
        piece = values[int(edges[i]) : max(int(edges[i]) + 1, int(np.ceil(edges[i + 1])))]
        found[i] = piece[np.abs(piece).argmax()]
    return found


def _strip(values: Array, width: int, signed: bool) -> Array:
    """The colour of each column, shape (width, 3), in [0, 1]; a strong colour where relevance is high."""
    columns = _columns(values, width)
    if signed:
        table = colours(True)
        return table[np.clip((columns + 1) / 2 * 255, 0, 255).round().astype(int)]  # type: ignore[no-any-return]
    return np.broadcast_to(np.array(_POSITIVE) / 255, (width, 3)).copy()


def _line(plot: AxisPlot, values: Array, box: tuple[int, int, int, int], ink: Array) -> None:
    """Draw values as a line; a waveform, whose line would fill its area, in the colour of each column."""
    left, top, right, bottom = box
    low, high = float(values.min()), float(values.max())
    span = (high - low) or 1.0
    x = left + (np.arange(len(values)) + 0.5) / len(values) * (right - left)
    y = bottom - 4 - (values - low) / span * (bottom - top - 8)
    if len(values) > 4 * (right - left):  # a waveform: minimum and maximum of each column
        place = np.minimum((x - left).astype(int), right - left - 1)
        for column in range(right - left):
            inside = y[place == column]
            red, green, blue = (int(c) for c in ink[column])
            plot.draw.line((left + column, inside.min(), left + column, inside.max()), fill=(red, green, blue))
        return
    points = list(zip(x.tolist(), y.tolist(), strict=True))
    plot.draw.line(points, fill=INK, width=1)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
