"""Prompts, boxes and regions on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import vitrail
from tests.targets.target_models import build, tokenizer
from vitrail.cli.app import app
from vitrail.cli.named_targets import NamedTargetOptions
from vitrail.data import Scenes
from vitrail.errors import InputError
from vitrail.targets import box, prompt, region, saved_targets
from vitrail.tools import diagnose


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (80, 100, 3), dtype=np.uint8)).save(path)
    return path


def saved(model, config, folder):
    torch.manual_seed(0)
    build(model, config).float().save_pretrained(folder)
    build.cache_clear()  # other tests take it in float64
    return f"hf:{folder}"


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=True)


def test_boxes_are_listed_and_explained(tmp_path, photo):
    model = saved("YolosForObjectDetection", "Yolos", tmp_path / "yolos")
    result = run("explain", photo, "-m", model, "--box", "3", "--method", "transformer_mm", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "query 3" in result.output
    assert "probability" in result.output
    folder = tmp_path / "out" / "photo" / "transformer-mm"
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    ((record,),) = manifest["named_targets"]
    assert record["pinned"]["query"] == 3
    assert len(record["box"]) == 4
    assert saved_targets(folder) == [[box(3)]]
    result = run("explain", photo, "-m", model, "-o", tmp_path / "none")
    assert result.exit_code != 0
    assert "--box" in result.output + str(result.exception)
    result = run("explain", photo, "-m", model, "--box", "77", "--method", "transformer_mm", "-o", tmp_path / "none")
    assert "query 77 does not exist" in result.output + str(result.exception)


def test_prompts_with_words(tmp_path, photo):
    model = saved("CLIPModel", "Clip", tmp_path / "clip")
    tokenizer().save_pretrained(tmp_path / "clip")
    arguments = ("-m", model, "--prompt", "a red dog", "--against", "a cat", "--method", "transformer_mm")
    result = run("explain", photo, *arguments, "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "a red dog against a cat" in result.output
    (record,) = json.loads((tmp_path / "out/photo/transformer-mm/words.json").read_text(encoding="utf-8"))
    assert record["words"] == ["a", "red", "dog"]
    result = run("check", photo, *arguments)
    assert result.exit_code == 0, result.output


def test_regions_of_a_pixel_and_a_mask(tmp_path, photo):
    mask = np.zeros((80, 100), np.uint8)
    mask[20:50, 30:60] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    model = saved("DPTForSemanticSegmentation", "DPT", tmp_path / "segmenter")
    result = run("explain", photo, "-m", model, "--region", "50,40", "--region", tmp_path / "mask.png", "--label", "2",
                 "--method", "gradient_x_input", "-o", tmp_path / "out")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "class 2, 1 pixel" in result.output


@pytest.mark.parametrize(("options", "message"), [
    ({"against": ["a cat"]}, "--against goes with --prompt"),
    ({"label": "cat"}, "--label goes with --box or --region"),
    ({"boxes": ["3,4"]}, "--box 3,4 is not understood"),
    ({"regions": ["here"]}, "--region here is not understood"),
])  # fmt: skip
def test_options_that_contradict_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        NamedTargetOptions(**options).row()


def test_options_name_targets():
    row = NamedTargetOptions(prompts=["a dog"], boxes=["3", "1,2,3.5,4"], regions=["5,6"], label="7").row()
    assert row == [[prompt("a dog"), box(3, label=7), box(nearest=(1, 2, 3.5, 4), label=7), region((5.0, 6.0), 7)]]
    with pytest.raises(InputError, match="does not go with"):
        NamedTargetOptions(prompts=["a dog"]).row(["cat"])


@pytest.fixture
def scenes_folder(tmp_path):
    folder = tmp_path / "scenes"
    folder.mkdir()
    scenes = Scenes("test", pairs=True, coloured=True)
    for index in (3, 5):
        Image.fromarray(scenes[index].image).save(folder / f"scene{index}.png")
    return folder


@pytest.mark.slow
def test_a_folder_is_explained_for_prompts_and_boxes(tmp_path, scenes_folder):
    polars = pytest.importorskip("polars")
    arguments = ("explain", scenes_folder, "-m", "scenes-clip", "--method", "transformer_mm")
    result = run(*arguments, "--prompt", "a kite", "--prompt", "a star", "-o", tmp_path / "prompts")
    assert result.exit_code == 0, result.output
    rows = polars.read_parquet(tmp_path / "prompts" / "index.parquet")
    assert rows["name"].to_list() == ["a kite", "a star"] * 2
    # Maps of the folder are those of the single image.
    from vitrail.bench.folder import read_map

    found = read_map(tmp_path / "prompts", rows.row(1, named=True))
    photo = Image.open(scenes_folder / "scene3.png")
    e = vitrail.explain(vitrail.load("scenes-clip"), photo, "transformer_mm", target=prompt("a star"))
    expected = (e.grid[0, 0] - e.grid.min()) / (e.grid.max() - e.grid.min())
    assert torch.allclose(found.float(), expected, atol=2e-3)
    result = run("explain", scenes_folder, "-m", "scenes-detr", "--method", "rollout", "--box", 0, "-o", tmp_path / "b")
    assert result.exit_code == 0, result.output
    names = polars.read_parquet(tmp_path / "b" / "index.parquet")["name"].to_list()
    assert all(name.endswith("query 0") for name in names)
    result = run("explain", scenes_folder, "-m", "scenes-detr", "--method", "rollout", "--box", "0,0,9,9")
    assert "name a place in one image" in result.output + str(result.exception)


def test_methods_are_compared_for_a_box(tmp_path, scenes_folder):
    file = tmp_path / "numbers.json"
    methods = ("--method", "transformer_mm", "--method", "rollout")
    result = run("compare", scenes_folder, "-m", "scenes-detr", "--box", 0, *methods, "-o", file)
    assert result.exit_code == 0, result.output
    assert "transformer_mm" in result.output
    assert json.loads(file.read_text(encoding="utf-8"))
    result = run("compare", scenes_folder, "-m", "scenes-detr", "--box", 99, *methods)
    assert "query 99 does not exist" in result.output + str(result.exception)


@pytest.mark.slow
def test_doctor_lists_what_a_detector_detects(scenes_folder, monkeypatch):
    monkeypatch.setattr(diagnose, "METHODS", {"rollout": diagnose.METHODS["rollout"]})
    result = run("doctor", "-m", "scenes-detr", "--image", scenes_folder / "scene3.png")
    assert result.exit_code == 0, result.output
    assert "star" in result.output
    assert "kite" in result.output
    result = run("doctor", "-m", "scenes-clip", "--image", scenes_folder / "scene3.png")
    assert "35 names" not in result.output  # its words are no classes
