"""`vitrail explain`: classes that the model does not predict, and names that are checked first."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import vitrail
from tests.inputs.test_media_files import write_wave
from vitrail.cli import explain_directory
from vitrail.cli.app import app
from vitrail.cli.explain_texts import unlikely_targets
from vitrail.testing import tiny_vit


def test_a_class_that_the_model_rejects_is_reported_with_what_it_predicts():
    model = tiny_vit()
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.head.bias[0] += 20.0
    e = vitrail.explain(model, image, "rollout", target=[[0, 1]])
    (sentence,) = unlikely_targets(e)
    assert "does not predict class 1 (less than 0.1 %)" in sentence
    assert "predicts class 0 (100.0 %)" in sentence
    with torch.no_grad():
        model.head.bias[0] -= 20.0
    assert not unlikely_targets(vitrail.explain(model, image, "rollout", target=[[0, 1]]))


def test_many_classes_that_the_model_rejects_are_counted():
    model = tiny_vit(classes=9)
    with torch.no_grad():
        model.head.bias[0] += 20.0
    e = vitrail.explain(model, torch.randn(2, 3, 32, 32), "rollout", target="top9")
    sentences = unlikely_targets(e)
    assert len(sentences) == 2, "one for each image"
    assert "does not predict 8 of the explained classes (less than 0.1 % each); it predicts class 0" in sentences[0]


def test_an_unknown_method_is_reported_before_a_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(explain_directory, "require_bench", pytest_fail)
    result = CliRunner().invoke(app, ["explain", str(tmp_path), "--method", "nosuch"])
    assert result.exit_code != 0
    assert "nosuch" in str(result.exception) + result.output


def pytest_fail():
    raise AssertionError("the folder was opened first")


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "num_labels": 4}


def saved_video_model(folder):
    transformers = pytest.importorskip("transformers")
    config = transformers.VideoMAEConfig(image_size=16, patch_size=8, num_frames=4, tubelet_size=2, **SIZES)
    transformers.VideoMAEForVideoClassification(config).save_pretrained(folder)
    crop = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    transformers.VideoMAEImageProcessor(**crop).save_pretrained(folder)
    return f"hf:{folder}"


def saved_sound_model(folder):
    transformers = pytest.importorskip("transformers")
    strides = {"patch_size": 16, "frequency_stride": 16, "time_stride": 16}
    config = transformers.ASTConfig(max_length=48, num_mel_bins=32, **strides, **SIZES)
    transformers.ASTForAudioClassification(config).save_pretrained(folder)
    transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=48).save_pretrained(folder)
    return f"hf:{folder}"


def explained(folder, *words):
    result = CliRunner().invoke(app, ["explain", *map(str, words), "-o", str(folder), "--method", "rollout"])
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    return json.loads(next(folder.rglob("manifest.json")).read_text())


def test_a_video_file_is_explained(tmp_path):
    frames = [Image.new("RGB", (24, 20), (20 * i, 0, 0)) for i in range(6)]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:], duration=100)
    manifest = explained(tmp_path / "out", tmp_path / "clip.gif", "-m", saved_video_model(tmp_path / "model"))
    assert manifest["maps"]["shape"] == [1, 1, 4, 16, 16]
    assert manifest["grid"] == [1, 1, 2, 2, 2]
    assert manifest["overlays"] == ["overlay.png", "overlay.gif"]
    assert manifest["inputs"] == ["clip.gif"]


def test_a_sound_file_is_explained(tmp_path):
    tone = np.sin(np.arange(8000) * 0.4)[:, None] / 2
    write_wave(tmp_path / "sound.wav", tone, rate=16000)
    model = saved_sound_model(tmp_path / "model")
    manifest = explained(tmp_path / "out", tmp_path / "sound.wav", "-m", model)
    assert manifest["maps"]["shape"] == [1, 1, 48, 32]
    assert [axis["unit"] for axis in manifest["axes"]] == ["s", "Hz"]
    write_wave(tmp_path / "stereo.wav", np.repeat(tone, 2, 1), rate=16000)
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "stereo.wav"), "-m", model])
    assert result.exit_code != 0
    assert "2 channels" in f"{result.output}{result.exception}"
