from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitrail
from vitrail.errors import InputError
from vitrail.inputs.map_axis import MapAxis
from vitrail.viz.signal_overlay import feature_bars, series_lines, spectrogram


def near(image, colour, tolerance=40):
    return (np.abs(np.asarray(image).astype(int) - colour).max(-1) < tolerance)[12:-42]


def test_a_spectrogram_has_low_frequencies_below_and_early_times_left():
    relevance = np.zeros((8, 10))
    relevance[0, 0] = 1.0
    drawn = np.asarray(spectrogram(np.zeros((8, 10)), relevance, MapAxis("time"), MapAxis("frequency"))).astype(int)
    area = drawn[14:266, 66:702].sum(-1)  # without the line around it
    y, x = np.unravel_index(area.argmax(), area.shape)
    assert y >= 220
    assert x < 64


def test_a_series_has_its_colour_where_its_relevance_is():
    relevance = np.zeros((40, 2))
    relevance[30, 1] = 1.0
    drawn = series_lines(np.zeros((40, 2)), relevance, MapAxis("time"), MapAxis("variables"), opacity=1.0)
    red = near(drawn, (190, 60, 50))
    rows, columns = np.nonzero(red)
    assert rows.min() >= 126
    assert 64 + 30 * 16 - 1 <= columns.min() <= columns.max() <= 64 + 31 * 16 + 1


def test_bars_have_the_length_and_the_side_of_the_relevance():
    drawn = feature_bars(np.array([0.25, -1.0, 0.5]), MapAxis("features", labels=("a", "b", "c")), signed=True)
    blue, red = near(drawn, (50, 95, 170)), near(drawn, (190, 60, 50))
    assert np.nonzero(blue)[0].max() < np.nonzero(red)[0].min()  # the most relevant feature comes first
    widths = sorted({int(row.sum()) for row in red if row.any()})
    assert abs(widths[-1] - 2 * widths[0]) <= 3
    assert np.nonzero(blue)[1].max() <= np.nonzero(red)[1].min() + 1


class OfVideo(nn.Module):
    """The score is the brightness of one frame."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Conv3d(3, 4, 1), nn.Linear(4, 2)
        nn.init.ones_(self.mix.weight)

    def forward(self, video):
        return self.head(self.mix(video.transpose(1, 2))[:, :, 2].mean((2, 3)))


def test_a_video_is_saved_as_a_sheet_and_an_animation(tmp_path):
    e = vitrail.explain(OfVideo(), torch.rand(1, 5, 3, 12, 16), "gradient_x_input", target=0).with_axes(time=0.5)
    frames = [np.asarray(frame).astype(int) for frame in e.frames()]
    colour = [np.abs(f - f.mean(-1, keepdims=True)).mean() for f in frames]
    assert len(frames) == 5
    assert int(np.argmax(colour)) == 2
    e.save(tmp_path)
    with Image.open(tmp_path / "overlay.gif") as file:
        assert (file.n_frames, file.info["duration"]) == (5, 500)
    with Image.open(tmp_path / "overlay.png") as sheet:
        assert sheet.size == e.overlay().size
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["overlays"] == ["overlay.png", "overlay.gif"]
    assert manifest["axes"][0] == {"name": "time", "unit": "s", "step": 0.5}
    assert "data:image/png" in e._repr_html_()


def test_axes_that_do_not_fit_are_refused():
    e = vitrail.explain(OfVideo(), torch.rand(1, 5, 3, 12, 16), "gradient_x_input", target=0)
    with pytest.raises(InputError, match="no axis 'frequency': the axes of these maps are time, height, width"):
        e.with_axes(frequency=1.0)
    with pytest.raises(InputError, match=r"4 entries: give the step .* or 5 numbers or 5 names"):
        e.with_axes(time=[0, 1, 2, 3])
    with pytest.raises(InputError, match=r"\.gif or an \.mp4"):
        e.animate("clip.avi")


def test_a_figure_has_one_panel_for_each_method():
    pytest.importorskip("matplotlib")
    both = vitrail.explain(OfVideo(), torch.rand(1, 5, 3, 12, 16), methods=["gradient_x_input", "occlusion"], target=0)
    titles = [axes.get_title() for axes in both.figure().axes]
    assert [title.partition(":")[0] for title in titles] == ["gradient_x_input", "occlusion"]
