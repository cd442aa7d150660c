"""The command line: files it writes, output it prints, errors and exit codes."""

from __future__ import annotations

import io
import json
import os
import sys
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from vitrail.cli import common
from vitrail.cli.app import GROUPS, main
from vitrail.data.scenes import render
from vitrail.testing import tiny_vit
from vitrail.tools import diagnose

MODEL = ["--model", "timm:vit_tiny_patch16_224", "--weights", "random"]


def vitrail(*args, cwd=None):
    """Run the command in this process, which is much faster than starting one."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", ["vitrail", *map(str, args)]),
        patch.object(common.out, "_width", 200),
        patch.object(common.err, "_width", 200),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        chdir(cwd or Path.cwd()),
        warnings.catch_warnings(),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return SimpleNamespace(returncode=code, stdout=stdout.getvalue(), stderr=stderr.getvalue())


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "noise.png"
    Image.effect_noise((80, 60), 90).convert("RGB").save(path)
    return path


def test_explain_writes_overlays_maps_and_manifests(image, tmp_path):
    done = vitrail("explain", image, *MODEL, "--method", "rollout", "--method", "vtranm:af", "--target", "top2",
                   "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "out" in done.stdout
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert "noise/figure.png" in found
    assert {"noise/rollout/manifest.json", "noise/rollout/maps.safetensors", "noise/vtranm-af/manifest.json"} <= set(
        found
    )
    assert sum(name.endswith(".png") for name in found) == 5
    manifest = json.loads((tmp_path / "out/noise/vtranm-af/manifest.json").read_text())
    assert manifest["options"]["variant"] == "af"
    assert len(manifest["targets"][0]) == 2


def test_explain_without_images_explains_the_embedded_scenes(tmp_path):
    done = vitrail("explain", "--out", tmp_path / "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "here" / "index.html").read_text()
    assert (tmp_path / "here" / "figure.png").is_file()
    assert page.count("Leadlight") >= 6
    assert "http" not in page.replace("http-equiv", ""), "the page loads nothing"
    assert str(tmp_path / "here" / "index.html") in done.stdout.replace("\n", "")


@pytest.mark.slow
def test_explain_smooths_maps(image, tmp_path):
    done = vitrail("explain", image, "--method", "rollout", "--smooth", "flips", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "noise/rollout/manifest.json").read_text())["smoothing"] == {"smooth": "flips"}
    refused = vitrail("explain", tmp_path, "--smooth", "flips")
    assert refused.returncode == 2
    assert "--smooth is for image files" in refused.stderr


def test_explain_takes_class_names_and_indices(image, tmp_path):
    done = vitrail("explain", image, *MODEL, "--target", "zebra", "--target", "386", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "zebra" in done.stdout
    assert "African elephant" in done.stdout


@pytest.mark.parametrize(("args", "message"), [
    (["{image}", *MODEL, "--target", "elephant"], "385 Indian elephant, 386 African elephant"),
    (["{image}", *MODEL, "--target", "1000"], "class 1000 does not exist"),
    (["{image}", *MODEL, "--method", "gradtokens"], "did you mean gradtoken"),
    (["{image}", "--model", "timm:resnet18", "--weights", "random"], "leadlight does not apply to ResNet"),
    (["{image}", "--model", "timm:tiny_vit_5m_224", "--weights", "random"], "attends inside windows"),
    (["{image}", "--model", "timm:vit_tiny", "--weights", "random"], "did you mean"),
    (["{image}", "--model", "timm:vit_tiny_patch16_224", "--weights", "{wrong}"], "does not fit VisionTransformer"),
    (["{image}", "--model", "timm:vit_tiny_patch16_224", "--weights", "{text}"], "cannot be read as weights"),
    (["{text}", *MODEL], "not an image"),
    (["nowhere.png", *MODEL], "does not exist"),
    (["{image}", *MODEL, "--smooth", "blur"], "smooth='blur' is not one of"),
    (["{image}", *MODEL, "--device", "tpu"], "device 'tpu' cannot be used"),
    (["{image}", *MODEL, "--out", "{text}"], "cannot write"),
    (["{image}", "--model", "hf:someone/some-model"], "cannot create hf:someone"),
    (["--target", "kite"], "--target and --check are for files and texts"),
])  # fmt: skip
def test_errors_are_one_line_with_exit_code_2(args, message, image, tmp_path):
    (tmp_path / "text.jpg").write_text("not an image")
    save_file(tiny_vit().state_dict(), tmp_path / "wrong.safetensors")
    names = {"image": image, "text": tmp_path / "text.jpg", "wrong": tmp_path / "wrong.safetensors"}
    # Offline, so that no hub is contacted.
    with patch("huggingface_hub.constants.HF_HUB_OFFLINE", True), patch.dict(os.environ, HF_HUB_OFFLINE="1"):
        done = vitrail("explain", *(a.format(**names) for a in args), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in done.stderr


def test_version_is_printed():
    done = vitrail("--version")
    assert done.returncode == 0
    assert done.stdout.strip() == f"vitrail {version('vitrail')}"


def test_help_describes_every_command_in_one_line():
    with patch.dict(os.environ, COLUMNS="80", NO_COLOR="1"):
        lines = vitrail("--help").stdout.splitlines()
    for group, commands in GROUPS.items():
        (start,) = (i for i, line in enumerate(lines) if line.startswith(f"╭─ {group} "))
        for command, line in zip(commands, lines[start + 1 :], strict=False):
            name, _, description = line.strip("│ ").partition(" ")
            assert name == command.__name__.replace("_", "-"), "one line per command"
            assert description.strip().endswith("."), "a complete sentence"


def test_usage_errors_exit_with_2():
    assert vitrail("explain", "--no-such-option").returncode == 2
    assert vitrail("exlpain").returncode == 2


def test_methods_and_models_are_listed():
    methods = vitrail("methods")
    assert methods.returncode == 0
    for name in ("raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"):
        assert name in methods.stdout
    one = vitrail("methods", "gradtoken")
    assert "depth" in one.stdout
    assert "cheng2025gradtoken" in one.stdout
    models = vitrail("models")
    assert "open_clip:ViT-B-32" in models.stdout
    assert "timm:vit_tiny_patch16_224" in vitrail("models", "vit_tiny_patch16_224").stdout


@pytest.mark.slow
def test_doctor_prints_structure_and_versions():
    done = vitrail("doctor", "--model", "cifar10-distilled")
    assert done.returncode == 0, done.stderr
    assert "66 = 2 prefix + 8×8 patches" in done.stdout
    assert "mean of the CLS and distillation tokens" in done.stdout
    assert torch.__version__ in done.stdout


@pytest.mark.slow
def test_doctor_takes_what_the_user_states(monkeypatch):
    monkeypatch.setattr(diagnose, "METHODS", {"rollout": diagnose.METHODS["rollout"]})  # the test above runs them all
    done = vitrail("doctor", "--model", "cifar10", "--role", "[0]=image", "--of", "[0]", "--scores", "sigmoid")
    assert done.returncode == 0, done.stderr
    lines = " ".join(done.stdout.split())
    assert "image (batch, channels, height, width), one of each example; known by its argument" in lines
    assert "scores of single classes over axis 1" in lines
    assert "sigmoid (given by scores=)" in lines
    for option, message in (("--role=foo", "NAME=ROLE"), ("--of=foo", "it has [0]"), ("--output=2", "output=2 is not")):
        failed = vitrail("doctor", option)
        assert failed.returncode != 0
        assert message in failed.stderr


@pytest.mark.slow
def test_check_prints_sentences_and_writes_numbers(tmp_path):
    image = tmp_path / "scene.png"
    Image.fromarray(render(0, 1).image).save(image)
    result = vitrail("check", image, "--method", "transformer_mm", "--out", tmp_path / "checks")
    assert result.returncode == 0, result.stderr
    assert "most relevant patches" in result.stdout
    assert json.loads((tmp_path / "checks" / "scene-0.json").read_text())["transformer_mm"]["verdict"]
    assert (tmp_path / "checks" / "scene-0.png").is_file()


@pytest.mark.slow
def test_compare_ranks_methods(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for index in range(3):
        Image.fromarray(render(0, index).image).save(tmp_path / f"{index}.png")
    result = vitrail("compare", tmp_path, "--method", "transformer_mm", "--out", tmp_path / "found.json")
    assert "=: not significantly different from the first" in result.stdout
    assert result.returncode == 0, result.stderr
    assert {row["method"] for row in json.loads((tmp_path / "found.json").read_text())["rows"]} >= {"transformer_mm"}
