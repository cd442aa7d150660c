from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.inputs.test_media_files import write_wave
from vitrail.errors import InputError
from vitrail.testing import tiny_vit

transformers = pytest.importorskip("transformers")

WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
PREPARE = vitrail.Preprocess((16, 16), (0.5,) * 3, (0.5,) * 3, squash=True, resample="nearest")


def video_model():
    torch.manual_seed(0)
    sizes = {"image_size": 16, "patch_size": 8, "num_frames": 4, "tubelet_size": 2, "num_labels": 4}
    return transformers.VideoMAEForVideoClassification(transformers.VideoMAEConfig(**sizes, **WIDTH)).eval()


def sound_model():
    torch.manual_seed(0)
    sizes = {"max_length": 48, "num_mel_bins": 32, "num_labels": 4, "patch_size": 16}
    config = transformers.ASTConfig(**sizes, frequency_stride=16, time_stride=16, **WIDTH)
    return transformers.ASTForAudioClassification(config).eval()


EXTRACTOR = transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=48)


def gif(path, count, duration=200):
    frames = [Image.new("RGB", (20, 16), (0, 0, 20 * i)) for i in range(count)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=duration)
    return path


def tone(path, rate=16000, channels=1):
    time = np.arange(rate // 2) / rate
    return write_wave(path, np.repeat(0.5 * np.sin(2 * np.pi * 1000 * time)[:, None], channels, 1), rate=rate)


def test_frames_are_taken_at_equal_distances(tmp_path):
    e = vitrail.explain(video_model(), gif(tmp_path / "a.gif", 7), "rollout", preprocess=PREPARE, target=1)
    assert e.maps.shape == (1, 1, 4, 16, 16)
    blue = (e.signal[0, 2, :, 0, 0] + 1) / 2 * 255
    assert torch.allclose(blue, torch.tensor([0.0, 40.0, 80.0, 120.0]), atol=1)
    assert (e.axes[0].unit, round(e.axes[0].step, 6)) == ("s", 0.4)
    assert e.provenance.inputs == ("a.gif",)


def test_several_videos_are_one_batch(tmp_path):
    paths = [gif(tmp_path / "a.gif", 4), gif(tmp_path / "b.gif", 8)]
    together = vitrail.explain(video_model(), paths, "rollout", preprocess=PREPARE, target=1)
    alone = vitrail.explain(video_model(), paths[1], "rollout", preprocess=PREPARE, target=1)
    assert together.maps.shape[0] == 2
    assert torch.allclose(together.grid[1], alone.grid[0], atol=1e-6)


def test_a_video_of_another_length_names_the_length(tmp_path):
    with pytest.raises(InputError, match=r"a.gif has 3 frames, the model takes 4"):
        vitrail.explain(video_model(), gif(tmp_path / "a.gif", 3), "rollout", preprocess=PREPARE)
    with pytest.raises(InputError, match=r"time 6, height 16, width 16.*takes time 4"):
        vitrail.explain(video_model(), torch.zeros(1, 6, 3, 16, 16), "rollout")


def test_a_sound_has_seconds_and_hertz(tmp_path):
    e = vitrail.explain(sound_model(), tone(tmp_path / "a.wav"), "gradient_x_input", preprocess=EXTRACTOR, target=1)
    assert e.maps.shape == (1, 1, 48, 32)
    time, frequency = e.axes
    assert (time.name, time.unit, time.step) == ("time", "s", 0.01)
    assert (frequency.name, frequency.unit) == ("frequency", "Hz")
    strongest = int(e.signal[0, 0].mean(0).argmax())
    assert abs(frequency.at(strongest) - 1000) < 120
    assert np.all(np.diff(frequency.values) > 0)


@pytest.mark.parametrize(("options", "message"), [
    ({"channels": 2}, "2 channels, the model takes one: mix them first"),
    ({"rate": 44100}, "44100 samples a second, .* takes 16000: resample it"),
])  # fmt: skip
def test_sound_that_does_not_fit_names_the_fix(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        vitrail.explain(sound_model(), tone(tmp_path / "a.wav", **options), "rollout", preprocess=EXTRACTOR)


def test_files_of_another_kind_than_the_model_takes(tmp_path):
    sound, clip = tone(tmp_path / "a.wav"), gif(tmp_path / "a.gif", 4)
    with pytest.raises(InputError, match=r"is a sound, and .* takes no sound"):
        vitrail.explain(video_model(), sound, "rollout", preprocess=PREPARE)
    with pytest.raises(InputError, match="takes sound or series"):
        vitrail.explain(sound_model(), clip, "rollout", preprocess=EXTRACTOR)
    with pytest.raises(InputError, match="only sound files, only video files, or only images"):
        vitrail.explain(video_model(), [sound, clip], "rollout", preprocess=PREPARE)
    with pytest.raises(InputError, match="feature extractor"):
        vitrail.explain(sound_model(), sound, "rollout")
    (tmp_path / "b.mp4").write_bytes(b"")
    with pytest.raises(InputError, match="takes no videos"):
        vitrail.explain(tiny_vit(), tmp_path / "b.mp4", "rollout", preprocess=vitrail.Preprocess((32, 32)))


def test_a_gif_is_an_image_for_a_model_of_images(tmp_path):
    e = vitrail.explain(tiny_vit(), gif(tmp_path / "a.gif", 3), "rollout", preprocess=vitrail.Preprocess((32, 32)))
    assert e.maps.shape == (1, 1, 32, 32)
