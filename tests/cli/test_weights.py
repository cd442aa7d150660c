"""``--weights`` with a file whose head and image size are not those of the library's model."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from safetensors.torch import save_file

from tests.cli.test_app import vitrail


def test_number_of_classes_and_image_size_are_read_from_the_file(tmp_path):
    timm = pytest.importorskip("timm")
    fitted = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=7)
    save_file(fitted.state_dict(), tmp_path / "fitted.safetensors")
    Image.effect_noise((90, 60), 60).convert("RGB").save(tmp_path / "noise.png")
    done = vitrail("explain", tmp_path / "noise.png", "-m", "timm:vit_tiny_patch16_224", "-w",
                   tmp_path / "fitted.safetensors", "--method", "rollout", "-o", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out/noise/rollout/manifest.json").read_text())
    assert manifest["maps"]["shape"] == [1, 1, 64, 64]
    assert manifest["targets"][0][0] < 7
    assert manifest["geometry"][0]["squashed"], "images are squashed to a size that is not the library's"


@pytest.mark.slow
def test_dinov2_with_a_fitted_head_explains_from_the_command_line(assets, tmp_path):
    pytest.importorskip("timm")
    image = next((assets / "imagenet" / "val" / "n01440764").iterdir())
    weights = assets / "weights" / "vit_small_patch14_dinov2.safetensors"
    done = vitrail("explain", image, "-m", "timm:vit_small_patch14_dinov2", "-w", weights, "--method", "rollout",
                   "-o", tmp_path / "out")  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = json.loads(next((tmp_path / "out").glob("*/rollout/manifest.json")).read_text())
    assert manifest["grid"] == [1, 1, 16, 16]
    assert "tench" in manifest["target_names"][0][0]
