"""`vitrail train-explainer`: refusals, a folder of images, a killed run."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.cli.test_app import vitrail as run_command

STEPS = ["--surrogate-steps", "3", "--explainer-steps", "3", "--batch", "2", "--pairs", "1", "--checkpoint", "1"]


def test_command_refuses_bad_input(tmp_path):
    out = tmp_path / "a.safetensors"
    for options, message in (
        (["--data", tmp_path / "nowhere", "--out", out], "no training data at"),
        (["--data", "scenes", "--out", tmp_path / "a.pt"], "must be a safetensors file"),
        (["--data", "scenes", "--out", out, "--batch", "0"], "batch=0 must be at least 1"),
        (["--data", "scenes", "--out", out, "--removal", "zero"], "removal='zero' is not one of"),
    ):
        done = run_command("train-explainer", *options)
        assert done.returncode == 2
        assert message in done.stderr


@pytest.mark.slow
def test_command_trains_on_a_folder_and_explain_uses_the_file(tmp_path):
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for k, name in enumerate(("a.png", "b.jpg", "more/c.png")):
        Image.effect_noise((150, 140), 60 + 20 * k).convert("RGB").save(tmp_path / "photos" / name)
    out = tmp_path / "scenes.safetensors"
    done = run_command("train-explainer", "--data", tmp_path / "photos", "--out", out, *STEPS)
    assert done.returncode == 0, done.stderr
    assert "3 image files of the folder photos" in done.stdout
    image = tmp_path / "photos" / "a.png"
    done = run_command("explain", image, "--method", f"vit_shapley:weights={out}", "--out", tmp_path / "maps")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(next((tmp_path / "maps").rglob("manifest.json")).read_text())
    assert manifest["options"]["weights"] == str(out)


@pytest.mark.slow
def test_killed_command_continues(tmp_path):
    command = ["train-explainer", "--data", "scenes", "--limit", "4", *STEPS, "--out"]
    whole, killed = (tmp_path / name / "e.safetensors" for name in ("whole", "killed"))
    assert run_command(*command, whole).returncode == 0
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "vitrail", *command, str(killed)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    checkpoint = killed.with_suffix(".checkpoint")
    end = time.monotonic() + 240
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert run_command(*command, killed).returncode == 0
    expected, found = load_file(whole), load_file(killed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert not checkpoint.exists()
