from __future__ import annotations

import sys
import wave

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import InputError
from vitrail.inputs.media_files import is_sound, is_video, read_sound, read_video


def write_wave(path, values, width=2, rate=8000):
    """Values between −1 and 1, shape (samples, channels)."""
    whole = (np.asarray(values) * (2 ** (8 * width - 1) - 1)).round().astype(np.int64)
    if width == 1:
        data = (whole + 128).astype(np.uint8).tobytes()
    else:
        data = b"".join(int(v).to_bytes(width, "little", signed=True) for v in whole.flatten())
    with wave.open(str(path), "wb") as file:
        file.setnchannels(whole.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_of_every_width_are_the_same_sound(tmp_path, width):
    values = np.array([[0.0, 1.0], [0.5, -0.5], [-0.75, 0.25], [1.0, -1.0]])
    sound = read_sound(write_wave(tmp_path / "a.wav", values, width))
    assert sound.rate == 8000
    assert sound.samples.shape == (2, 4)
    assert np.abs(sound.samples - values.T).max() < 2.5 / 2 ** (8 * width - 1) + 1e-6


def test_frames_of_a_gif_have_their_times(tmp_path):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "green", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=[100, 300, 100])
    clip = read_video(tmp_path / "a.gif")
    assert np.allclose(clip.times, [0.0, 0.1, 0.4])
    assert [frame.getpixel((4, 3)) for frame in clip.frames] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]


def test_the_suffix_says_what_a_file_is():
    assert [is_sound(name) for name in ("a.wav", "b.FLAC", "c.mp4", "d.png")] == [True, True, False, False]
    assert [is_video(name) for name in ("a.wav", "b.MP4", "c.gif", "d.png")] == [False, True, True, False]


def test_files_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "noise.wav").write_bytes(b"no sound at all")
    (tmp_path / "noise.gif").write_bytes(b"no video at all")
    with pytest.raises(InputError, match=r"missing.wav does not exist"):
        read_sound(tmp_path / "missing.wav")
    with pytest.raises(InputError, match=r"noise.wav is no .wav file .*16-bit PCM"):
        read_sound(tmp_path / "noise.wav")
    with pytest.raises(InputError, match=r"noise.gif cannot be read"):
        read_video(tmp_path / "noise.gif")
    write_wave(tmp_path / "empty.wav", np.zeros((0, 1)))
    with pytest.raises(InputError, match=r"empty.wav holds no samples"):
        read_sound(tmp_path / "empty.wav")


@pytest.mark.parametrize(("name", "other"), [("a.mp4", ".gif"), ("a.flac", ".wav")])
def test_without_the_decoder_the_extra_is_named(tmp_path, monkeypatch, name, other):
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=rf"vitrail\[media\].*{other}"):
        (read_sound if is_sound(name) else read_video)(tmp_path / name)


def test_the_decoder_reads_what_it_wrote(tmp_path):
    pytest.importorskip("av", reason="needs PyAV, the extra 'media'")
    from vitrail.viz.clip import save_animation

    frames = [np.full((32, 48, 3), value, np.uint8) for value in (0, 80, 160, 240)]
    clip = read_video(save_animation(frames, tmp_path / "a.mp4", rate=4))
    assert len(clip.frames) == 4
    assert np.allclose(np.diff(clip.times), 0.25, atol=0.01)
    for frame, value in zip(clip.frames, (0, 80, 160, 240), strict=True):
        assert abs(float(np.asarray(frame).mean()) - value) < 12
    with pytest.raises(InputError, match=r"a.mp3 cannot be read as a sound"):
        read_sound((tmp_path / "a.mp4").rename(tmp_path / "a.mp3"))
