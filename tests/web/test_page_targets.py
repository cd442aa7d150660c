"""Prompts, boxes, regions, videos and sound over HTTP: candidates, maps, checks, code and errors of the library."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.web.web_case import error_text
from vitrail.viz.map_encoding import decode_map

pytest.importorskip("fastapi", reason='the page needs the web extra: pip install "vitrail[web]"')
testclient = pytest.importorskip("fastapi.testclient")

from vitrail.cli.serve import DEFAULT_MODELS, load_models  # noqa: E402
from vitrail.web.fastapi_app import make_app  # noqa: E402
from vitrail.web.page_targets import PageTarget  # noqa: E402

KITE, STAR = {"kind": "prompt", "text": "a kite"}, {"kind": "prompt", "text": "a star"}


@pytest.fixture(scope="module")
def client():
    with testclient.TestClient(make_app(load_models(DEFAULT_MODELS, []))) as one:
        yield one


def sample(client, model, name):
    response = client.post("/api/pictures/sample", json={"model": model, "sample": name})
    assert response.status_code == 200, response.text
    return {"model": model, "picture": response.json()["picture"]}


def explain(client, body, path="explain"):
    response = client.post(f"/api/{path}?wait=true", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def run_code(client, job, tmp_path, monkeypatch):
    """Run the code of a job beside the file that it names, and return its explanations."""
    code = client.get(f"/api/jobs/{job['id']}/code.py").text
    name, suffix = ("input", "npy") if "input.npy" in code else ("image", "png")
    url = f"/api/pictures/{job['picture']}.{suffix}?model={job['model']}"
    (tmp_path / f"{name}.{suffix}").write_bytes(client.get(url).content)
    monkeypatch.chdir(tmp_path)
    found: dict[str, object] = {}
    exec(code.replace('explanations.figure().savefig("figure.png")', ""), found)  # noqa: S102 - our own code
    return found["explanations"]


def test_models_say_what_they_take_and_explain(client):
    models = {model["id"]: model for model in client.get("/api/models").json()}
    assert {name: (one["media"], one["targets"]) for name, one in models.items()} == {
        "scenes": ("image", "class"), "scenes-clip": ("image", "prompt"), "scenes-detr": ("image", "box"),
        "scenes-seg": ("image", "region"), "scenes-video": ("video", "class"), "tones": ("sound", "class"),
        "scenes-vlm": ("image", "token"), "lm-recall": ("image", "token"),
    }  # fmt: skip
    assert models["scenes-clip"]["classes"] is None
    assert models["scenes-clip"]["class_count"] == 0
    assert models["scenes-video"]["frames"] == 12
    assert models["tones"]["grid"] == [8, 16]  # frequency upwards


def test_prompts_with_words_and_differences(client, tmp_path, monkeypatch):
    body = sample(client, "scenes-clip", "colours-1")
    shares = client.post("/api/predict", json={**body, "targets": [KITE, STAR]}).json()["asked"]
    assert [one["name"] for one in shares] == ["a kite", "a star"]
    assert sum(one["probability"] for one in shares) == pytest.approx(1)
    job = explain(client, {**body, "methods": ["attnlrp"], "targets": [KITE], "contrast": STAR})
    (item,) = job["items"]
    words = {word["text"]: word["score"] for word in item["words"]}
    assert list(words) == ["a", "kite"]
    assert words["kite"] == max(words.values())
    again = run_code(client, job, tmp_path, monkeypatch)["attnlrp"]
    shown = decode_map(item["map"])
    assert np.allclose(shown, again.grid[0, 0].numpy(), atol=2e-4 * np.abs(shown).max())
    assert again.label(0, 0) == "a kite against a star"
    figure = client.get(f"/api/jobs/{job['id']}/figure.png")
    assert Image.open(BytesIO(figure.content)).size[0] > 200
    (record,) = client.get(f"/api/jobs/{job['id']}/manifest.json").json()["targets"]
    assert record == KITE


def test_boxes_are_listed_and_each_map_lies_on_its_object(client):
    body = sample(client, "scenes-detr", "colours-1")
    rows = client.post("/api/predict", json=body).json()["top"]
    assert {row["name"] for row in rows} == {"kite", "star"}
    targets = [row["target"] for row in rows]
    job = explain(client, {**body, "methods": ["transformer_mm"], "targets": targets})
    for item, row in zip(job["items"], rows, strict=True):
        assert item["target"] == row["target"]
        assert item["target_name"].startswith(row["name"])
        left, top, right, bottom = (round(16 * v) for v in row["corners"])
        shown = decode_map(item["map"])
        assert shown[top:bottom, left:right].sum() > 0.6 * shown.sum()


@pytest.mark.parametrize("target", [{"point": [30, 80]}, {"patches": [164, 165, 180, 181], "label": 2}])
def test_regions_by_a_point_and_by_patches(client, tmp_path, monkeypatch, target):
    body = sample(client, "scenes-seg", "colours-1")
    target = {"kind": "region", **target}
    (entry,) = client.post("/api/predict", json={**body, "targets": [target]}).json()["asked"]
    assert entry["name"].startswith("star")
    assert 0.5 < entry["probability"] <= 1
    job = explain(client, {**body, "methods": ["transformer_mm"], "targets": [target]})
    again = run_code(client, job, tmp_path, monkeypatch)["transformer_mm"]
    shown = decode_map(job["items"][0]["map"])
    assert np.allclose(shown, again.grid[0, 0].numpy(), atol=1e-4 * np.abs(shown).max())


@pytest.mark.parametrize(
    ("model", "name", "shape"), [("scenes-video", "motion-1", (6, 8, 8)), ("tones", "tones-1", (8, 16))]
)
def test_videos_and_sound(client, tmp_path, monkeypatch, model, name, shape):
    body = sample(client, model, name)
    job = explain(client, {**body, "methods": ["transformer_mm"], "targets": [2]})
    shown = decode_map(job["items"][0]["map"])
    assert shown.shape == shape
    again = run_code(client, job, tmp_path, monkeypatch)["transformer_mm"].grid[0, 0]
    again = torch.flip(again.T, (0,)) if model == "tones" else again
    assert np.allclose(shown, again.numpy(), atol=1e-4 * np.abs(shown).max())
    image = Image.open(BytesIO(client.get(f"/api/pictures/{body['picture']}.png?model={model}&frame=3").content))
    assert image.size == ((64, 64) if model == "scenes-video" else (128, 64))
    figure = client.get(f"/api/jobs/{job['id']}/figure.png")
    assert figure.status_code == 200
    error = client.post("/api/explain", json={"model": "scenes", "picture": body["picture"], "methods": ["rollout"]})
    assert "scenes takes images" in error_text(error, 422)


@pytest.mark.slow
def test_checks_of_every_kind(client):
    cases = {
        ("scenes-clip", "colours-1"): KITE, ("tones", "tones-2"): 2,
    }  # fmt: skip
    for (model, name), target in cases.items():
        body = sample(client, model, name)
        (item,) = explain(client, {**body, "methods": ["attnlrp"], "targets": [target]}, "check")["items"]
        assert item["error"] is None, (model, item["error"])
        assert item["check"]["verdict"] == "faithful", (model, item["check"]["sentences"])


def animation(frames, kind="GIF"):
    buffer = BytesIO()
    images = [Image.new("RGB", (80, 60), (12 * i, 100, 50)) for i in range(frames)]
    images[0].save(buffer, kind, save_all=True, append_images=images[1:])
    return buffer.getvalue()


def test_an_animated_file_is_a_video(client):
    files = {"file": ("clip.gif", animation(20))}
    stored = client.post("/api/pictures?model=scenes-video", files=files).json()
    assert stored["frames"] == 12
    values = np.load(BytesIO(client.get(f"/api/pictures/{stored['picture']}.npy?model=scenes-video").content))
    assert values.shape == (12, 64, 64, 3)
    assert values[0, 0, 0, 0] < 6
    assert values[11, 0, 0, 0] > 220
    files = {"file": ("photo.png", animation(1, "PNG"))}
    error = client.post("/api/pictures?model=scenes-video", files=files)
    assert "one frame" in error_text(error, 422)
    error = client.post("/api/pictures?model=tones", files=files)
    assert "spectrograms" in error_text(error, 422)


@pytest.mark.parametrize(
    ("model", "name", "target", "message"),
    [
        ("scenes", "scene-1", KITE, "a prompt is not a target of scenes"),
        ("scenes-clip", "colours-1", 3, "a class is not a target of scenes-clip"),
        ("scenes-clip", "colours-1", {"kind": "prompt", "text": " "}, "the prompt is empty"),
        ("scenes-clip", "colours-1", None, "no predicted class"),
        ("scenes-detr", "colours-1", {"kind": "box"}, "the box has no query"),
        ("scenes-seg", "colours-1", {"kind": "region"}, "the region is empty"),
        ("scenes-seg", "colours-1", {"kind": "region", "patches": [999]}, "patch 999 does not exist"),
        ("scenes-seg", "colours-1", {"kind": "region", "text": "x" * 501}, "500"),
    ],
)
def test_bad_targets_are_refused_before_they_run(client, model, name, target, message):
    body = {**sample(client, model, name), "methods": ["rollout"], "targets": None if target is None else [target]}
    assert message in error_text(client.post("/api/explain", json=body), 422)


@pytest.mark.parametrize(
    ("model", "target", "message"),
    [
        ("scenes-clip", {"kind": "prompt", "text": "a zebra"}, "'zebra' in 'a zebra' is not a word"),
        ("scenes-detr", {"kind": "box", "query": 99}, "query 99 does not exist"),
        ("scenes-detr", {"kind": "box", "query": 0, "label": 99}, "label 99 does not exist"),
        ("scenes-seg", {"kind": "region", "point": [300, 20]}, "outside of the image"),
    ],
)
def test_what_the_output_decides_gives_the_error_of_the_library(client, model, target, message):
    body = sample(client, model, "colours-1")
    assert message in error_text(client.post("/api/predict", json={**body, "targets": [target]}), 422)
    job = explain(client, {**body, "methods": ["gradient_x_input"], "targets": [target]})
    assert message in job["items"][0]["error"]["what"]


def test_targets_as_code():
    served = load_models(["scenes-seg"], [])[0]
    target = PageTarget("region", label=2, patches=(3, 4))
    assert target.code(served) == "region(patches_mask([3, 4], (16, 16), (128, 128)), label=2)"
    mask = target.named(served).where.tensor()
    assert mask.shape == (128, 128)
    assert mask[:8, 24:40].all()
    assert int(mask.sum()) == 8 * 16
    assert vitrail.load("scenes-clip").classes is None  # its words are no classes
