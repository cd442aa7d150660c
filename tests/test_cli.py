"""The command line: what it writes, what it says, and how it refuses."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from vitrail.cli import app as cli
from vitrail.testing import tiny_vit

MODEL = ["--model", "timm:vit_tiny_patch16_224", "--weights", "random"]


def vitrail(*args, cwd=None):
    """The command as it runs in a process of its own, in this one: starting a process costs more than most commands."""
    told, trouble, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", ["vitrail", *map(str, args)]),
        patch.object(cli.out, "_width", 200),
        patch.object(cli.err, "_width", 200),
        redirect_stdout(told),
        redirect_stderr(trouble),
        chdir(cwd or Path.cwd()),
        warnings.catch_warnings(),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return SimpleNamespace(returncode=code, stdout=told.getvalue(), stderr=trouble.getvalue())


def vitrail_apart(*args, cwd=None):
    """The command in a process of its own."""
    environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "vitrail", *map(str, args)]
    settings = {"capture_output": True, "text": True, "cwd": cwd, "env": environment, "timeout": 300}
    return subprocess.run(command, check=False, **settings)  # noqa: S603


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "red.png"
    Image.effect_noise((80, 60), 90).convert("RGB").save(path)
    return path


def test_explain_writes_pictures_maps_and_manifests(picture, tmp_path):
    done = vitrail("explain", picture, *MODEL, "--method", "rollout", "--method", "vtranm:af", "--target", "top2",
                   "--out", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "out" in done.stdout
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert "red/figure.png" in found
    assert {"red/rollout/manifest.json", "red/rollout/maps.safetensors", "red/vtranm-af/manifest.json"} <= set(found)
    assert sum(name.endswith(".png") for name in found) == 5
    manifest = json.loads((tmp_path / "out/red/vtranm-af/manifest.json").read_text())
    assert manifest["options"]["variant"] == "af"
    assert len(manifest["targets"][0]) == 2


def test_without_an_image_the_embedded_scenes_are_explained(tmp_path):
    done = vitrail("explain", "--out", tmp_path / "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "here" / "index.html").read_text()
    assert (tmp_path / "here" / "figure.png").is_file()
    assert page.count("GradToken") >= 6
    assert "http" not in page.replace("http-equiv", ""), "the page fetches nothing"
    assert str(tmp_path / "here" / "index.html") in done.stdout.replace("\n", "")


def test_explain_by_name(picture, tmp_path):
    done = vitrail("explain", picture, *MODEL, "--target", "zebra", "--target", "386", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "zebra" in done.stdout
    assert "African elephant" in done.stdout


@pytest.mark.parametrize(("args", "says"), [
    (["{picture}", *MODEL, "--target", "elephant"], "385 Indian elephant, 386 African elephant"),
    (["{picture}", *MODEL, "--target", "1000"], "class 1000 does not exist"),
    (["{picture}", *MODEL, "--method", "gradtokens"], "did you mean gradtoken"),
    (["{picture}", "--model", "timm:resnet18", "--weights", "random"], "no attention was found in ResNet"),
    (["{picture}", "--model", "timm:swin_tiny_patch4_window7_224", "--weights", "random"], "attends inside windows"),
    (["{picture}", "--model", "timm:vit_tiny", "--weights", "random"], "did you mean"),
    (["{picture}", "--model", "timm:vit_tiny_patch16_224", "--weights", "{wrong}"], "does not fit VisionTransformer"),
    (["{picture}", "--model", "timm:vit_tiny_patch16_224", "--weights", "{text}"], "cannot be read as weights"),
    (["{text}", *MODEL], "not an image"),
    (["nowhere.png", *MODEL], "does not exist"),
    (["{picture}", *MODEL, "--device", "tpu"], "device 'tpu' cannot be used"),
    (["{picture}", *MODEL, "--out", "{text}"], "cannot write"),
    (["{picture}", "--model", "hf:someone/some-model"], "cannot create"),
])  # fmt: skip
def test_refusals_are_one_line_and_exit_code_2(args, says, picture, tmp_path):
    (tmp_path / "text.jpg").write_text("not a picture")
    save_file(tiny_vit().state_dict(), tmp_path / "wrong.safetensors")
    names = {"picture": picture, "text": tmp_path / "text.jpg", "wrong": tmp_path / "wrong.safetensors"}
    run = vitrail_apart if "hf:someone/some-model" in args else vitrail  # it must not ask the hub
    done = run("explain", *(a.format(**names) for a in args), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1
    assert says in lines[0]
    assert "Traceback" not in done.stderr


def test_usage_errors_exit_with_2():
    assert vitrail("explain", "--no-such-option").returncode == 2
    assert vitrail("exlpain").returncode == 2


def test_lists():
    methods = vitrail_apart("methods")
    assert methods.returncode == 0
    for name in ("raw_attention", "rollout", "gradcam", "transformer_mm", "vtranm", "gradtoken"):
        assert name in methods.stdout
    one = vitrail("methods", "gradtoken")
    assert "depth" in one.stdout
    assert "cheng2025gradtoken" in one.stdout
    models = vitrail("models")
    assert "open_clip:ViT-B-32" in models.stdout
    assert "timm:vit_tiny_patch16_224" in vitrail("models", "vit_tiny_patch16_224").stdout


def test_doctor_tells_what_it_found():
    done = vitrail("doctor", "--model", "timm:deit_tiny_distilled_patch16_224", "--weights", "random")
    assert done.returncode == 0, done.stderr
    assert "198 = 2 prefix + 14×14 patches" in done.stdout
    assert "mean of the CLS and distillation tokens" in done.stdout
    assert torch.__version__ in done.stdout
