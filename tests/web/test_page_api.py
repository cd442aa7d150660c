"""What the page asks the server for: contrasts, checks, coarse curves, times, originals, papers and photographs."""

from __future__ import annotations

from importlib.resources import files
from io import BytesIO

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

import vitrail
from tests.text.texts import FILLERS, text_model
from tests.web.web_case import error_text, image_file, small_app, tiny_model, upload, upload_id
from vitrail.models.loaded import LoadedModel
from vitrail.scores.sanity import randomisation_steps
from vitrail.trust import VERDICTS
from vitrail.viz.map_encoding import decode_map
from vitrail.web import map_checks, runner
from vitrail.web.curve_levels import level_passes
from vitrail.web.served_model import serve_model


@pytest.fixture(scope="module")
def client():
    with TestClient(small_app()) as client:
        client.get("/")
        yield client


@pytest.fixture(scope="module")
def image_id(client):
    return upload_id(client)


def test_contrast_explains_the_difference_of_two_logits(client, image_id):
    body = {"model": "tiny", "picture": image_id, "methods": ["gradcam", "transformer_mm"], "targets": [1]}
    plain = client.post("/api/explain?wait=true", json=body).json()
    job = client.post("/api/explain?wait=true", json={**body, "contrast": 2}).json()
    assert (job["targets"], job["contrast"], [i["contrast"] for i in job["items"]]) == ([1], 2, [2, 2])
    assert all(a["map"] != b["map"] for a, b in zip(job["items"], plain["items"], strict=True)), "not the cached maps"
    served = tiny_model()
    raw = np.asarray(Image.open(BytesIO(client.get(f"/api/pictures/{image_id}.png?model=tiny").content)))
    inputs = served.model_inputs(raw).tensors[0]
    expected = vitrail.explain(served.loaded, inputs, "gradcam", target=lambda logits: logits[:, 1] - logits[:, 2])
    found = decode_map(next(i for i in job["items"] if i["method"] == "gradcam")["map"])
    assert np.allclose(found, expected.grid[0, 0].numpy(), atol=1e-4 * found.max())
    assert "vitrail.contrast(1, 2)" in client.get(f"/api/jobs/{job['id']}/code.py").text
    for wrong in ({"contrast": 1}, {"contrast": 9}, {"targets": [0, 1], "contrast": 2}):
        error_text(client.post("/api/explain", json={**body, **wrong}), 422)
    refused = client.post("/api/explain", json={**body, "methods": ["vit_shapley"], "contrast": 2})
    assert "vit_shapley" in error_text(refused, 422)


def test_check_job_gives_a_verdict_for_each_map(client, image_id):
    body = {"model": "tiny", "picture": image_id, "methods": ["transformer_mm", "random"], "targets": [1, 2]}
    job = client.post("/api/check?wait=true", json=body).json()
    assert (job["kind"], job["state"]) == ("check", "done")
    assert [(i["method"], i["target"]) for i in job["items"]] == [
        ("transformer_mm", 1), ("transformer_mm", 2), ("random", 1), ("random", 2)
    ]  # fmt: skip
    for item in job["items"]:
        check = item["check"]
        assert check["verdict"] in VERDICTS
        assert check["passed"] == (check["verdict"] == "faithful") == (check["failures"] == [])
        assert len(check["sentences"]) == 3
    contrast = client.post("/api/check?wait=true", json={**body, "targets": [1], "contrast": 0}).json()
    assert contrast["state"] == "done"


def test_a_map_is_checked_once(client, image_id, monkeypatch):
    calls = []

    def count(*given):
        calls.append(given)
        return map_checks.check_map(*given)

    monkeypatch.setattr(runner, "check_map", count)
    body = {"model": "tiny", "picture": image_id, "methods": ["gradcam", "rollout"], "targets": [3, 4]}
    first = client.post("/api/check?wait=true", json={**body, "methods": ["gradcam"]}).json()
    assert len(calls) == 2
    both = client.post("/api/check?wait=true", json=body).json()
    assert len(calls) == 4, "the maps of gradcam are known"
    found = {(item["method"], item["target"]): item["check"] for item in both["items"]}
    assert all(item["check"] == found["gradcam", item["target"]] for item in first["items"])
    monkeypatch.setattr(client.app.state.server.map_cache, "get", None)  # neither are the maps computed again
    again = client.post("/api/check?wait=true", json={**body, "targets": [4]}).json()
    monkeypatch.undo()
    assert (again["state"], len(calls)) == ("done", 4)
    assert [item["check"] for item in again["items"]] == [found["gradcam", 4], found["rollout", 4]]
    other = client.post("/api/check?wait=true", json={**body, "methods": ["gradcam"], "targets": [4], "seed": 1}).json()
    assert other["items"][0]["check"]["sentences"] != found["gradcam", 4]["sentences"], "another seed, other copies"


def test_checks_leave_the_weights_that_other_threads_read(monkeypatch):
    app = small_app(workers=2)
    seen = []
    with TestClient(app) as client:
        copies = app.state.server.models["tiny"].copies
        head = randomisation_steps(copies[0].module, torch.randn(1, 3, 32, 32))[0].parameters
        before = {name: value.clone() for name, value in copies[0].module.state_dict().items()}

        def explain(loaded, *given, **keywords):
            kept = [torch.equal(before[name], v) for one in copies for name, v in one.module.state_dict().items()]
            own = loaded.module.state_dict()
            seen.append((all(kept), all(torch.equal(before[name], own[name]) for name in head)))
            return vitrail.explain(loaded, *given, **keywords)

        monkeypatch.setattr(map_checks, "explain", explain)
        body = {"model": "tiny", "picture": upload_id(client), "methods": ["gradcam"], "targets": [1]}
        job = client.post("/api/check?wait=true", json=body).json()
    assert "with a random head" in job["items"][0]["check"]["sentences"][2]
    assert all(kept for kept, _ in seen)
    assert not all(same for _, same in seen), "the check randomises weights of its own"


@pytest.mark.slow
def test_word_scores_are_checked():
    model, tokenizer = text_model("bert", max_position_embeddings=64, num_labels=2)
    served = serve_model(LoadedModel(model.float()), "hf:reviews", tokenizer=tokenizer)
    text = " ".join(FILLERS)
    with TestClient(small_app(served)) as client:
        body = {"model": served.id, "text": text, "methods": ["transformer_mm"], "targets": [1]}
        job = client.post("/api/check?wait=true", json=body).json()
        short = client.post("/api/check?wait=true", json={**body, "text": "the film is superb"}).json()
        error_text(client.post("/api/check", json={**body, "picture": "none"}), 422)
    expected = vitrail.explain(model, text, "transformer_mm", target=1, tokenizer=tokenizer, check=True).checks[0, 0]
    check = job["items"][0]["check"]
    assert check["sentences"] == list(expected.sentences)
    assert check["meaning"] == expected.meaning
    assert "words" in check["meaning"]
    assert "4 words is too short" in short["items"][0]["error"]["what"]


def test_curves_start_with_a_coarse_pass(client, image_id):
    assert level_passes(20)[0] == [0, 25, 50, 75, 100]
    assert sorted(level for levels in level_passes(7) for level in levels) == [round(100 * i / 7) for i in range(8)]
    body = {"model": "tiny", "picture": image_id, "methods": ["gradcam"], "steps": 10}
    job = client.post("/api/curves?wait=true", json=body).json()
    for item in job["items"]:
        assert item["fractions"] == [i / 10 for i in range(11)]
        assert len(item["deletion"]) == len(item["insertion"]) == 11
        assert item["deletion_auc"] is not None


def test_times_are_of_one_method_or_of_a_shared_pass(client):
    image = upload_id(client)
    body = {"model": "tiny", "picture": image, "methods": ["agcam", "legrad", "occlusion:2x2"], "targets": [4]}
    shared, also, alone = client.post("/api/explain?wait=true", json=body).json()["items"]
    assert shared["shared"] == also["shared"] == 2
    assert shared["seconds"] == also["seconds"]
    assert alone["shared"] is None
    assert alone["seconds"] > 0
    again = client.post("/api/explain?wait=true", json=body).json()["items"]
    assert [item["seconds"] for item in again] == [None, None, alone["seconds"]]


def test_originals_are_kept_with_the_part_the_model_sees(client):
    image = upload(client, image_file(400, 100)).json()["picture"]
    info = client.get(f"/api/pictures/{image}?model=tiny").json()
    left, top, right, bottom = info["geometry"]["box"]
    assert (info["width"], info["height"], info["geometry"]["cropped"]) == (400, 100, True)
    assert right - left == pytest.approx(0.875 / 4, abs=0.01)
    assert (top, bottom) == (pytest.approx(0.0625, abs=0.02), pytest.approx(0.9375, abs=0.02))
    original = Image.open(BytesIO(client.get(f"/api/pictures/{image}/original.jpg").content))
    assert (original.size, original.format) == ((400, 100), "JPEG")
    large = upload(client, image_file(3000, 300)).json()["picture"]
    assert Image.open(BytesIO(client.get(f"/api/pictures/{large}/original.jpg").content)).size == (2048, 205)
    error_text(client.get("/api/pictures/none?model=tiny"), 404)
    error_text(client.get("/api/pictures/none/original.jpg"), 404)


def test_probabilities_of_classes_outside_the_top(client, image_id):
    body = {"model": "tiny", "picture": image_id, "classes": [3, 0]}
    found = client.post("/api/predict", json=body).json()
    assert [one["index"] for one in found["asked"]] == [3, 0]
    top = {one["index"]: one["probability"] for one in found["top"]}
    assert all(one["probability"] == top[one["index"]] for one in found["asked"])
    error_text(client.post("/api/predict", json={**body, "classes": [5]}), 422)


def test_methods_have_a_line_and_a_paper(client):
    methods = {m["name"]: m for m in client.get("/api/models").json()[0]["methods"]}
    assert all(m["summary"].endswith(".") for m in methods.values())
    assert methods["rollout"]["paper"]["url"].startswith("https://")
    assert methods["random"]["paper"] is None


def test_photographs_are_samples_of_photograph_models(client):
    samples = client.get("/api/samples?model=tiny").json()
    assert {"cat", "rocket"} <= {sample["id"] for sample in samples}
    assert all(sample["credit"] for sample in samples)
    credited = files("vitrail.web").joinpath("photos", "CREDITS.md").read_text(encoding="utf-8")
    for sample in samples:
        assert f"`{sample['id']}.jpg`" in credited
        assert Image.open(BytesIO(client.get(sample["url"]).content)).size[0] > 400
