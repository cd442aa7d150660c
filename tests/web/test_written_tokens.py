"""Words that language and vision-language models write, over HTTP: known answers, checks, code and refusals."""

from __future__ import annotations

import re

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import vitrail
from tests.web.web_case import error_text
from vitrail.cli.serve import load_models
from vitrail.data import QuestionProcessor, draw_recall
from vitrail.targets import token
from vitrail.text import load_tokenizer
from vitrail.web.fastapi_app import make_app

TOO_LARGE = {"kind": "token", "token": 999}
PROMPT = "Jane has the cup. Kim has the kite. The sun is out. Gus has the comb. Leo has the tent. Leo has the"
QUESTION = "What colour is the star?"


@pytest.fixture(scope="module")
def client():
    with TestClient(make_app(load_models(["lm-recall", "scenes-vlm"], []))) as one:
        one.get("/")
        yield one


@pytest.fixture(scope="module")
def picture(client):
    body = {"model": "scenes-vlm", "sample": "colours-1"}
    return client.post("/api/pictures/sample", json=body).json()["picture"]


def run_job(client, path, **body):
    job = client.post(f"/api/{path}?wait=true", json=body).json()
    assert job["state"] == "done", job
    return job


def test_a_prompt_is_continued_and_each_word_explained(client):
    first = draw_recall(0, 5, task="lookup", split="test")[0]
    assert first.text == PROMPT
    found = client.post("/api/predict", json={"model": "lm-recall", "text": PROMPT}).json()
    assert [one["name"] for one in found["written"]] == ["tent", "."]
    assert found["top"][0]["name"] == first.answer
    assert found["before"] == PROMPT
    body = {"model": "lm-recall", "text": PROMPT, "methods": ["attnlrp"], "targets": [found["written"][0]["target"]]}
    (item,) = run_job(client, "explain", **body)["items"]
    best = max(item["words"], key=lambda word: word["raw"])
    assert best["text"] == "tent."
    assert PROMPT[best["start"] : best["end"]] == "tent."
    later = {**body, "targets": [found["written"][1]["target"]]}
    (item,) = run_job(client, "explain", **later)["items"]
    assert [word["text"] for word in item["words"]][-2:] == ["the", "tent"], "the word before it is a source"


def test_words_of_a_language_model_are_checked_and_reproduced(client):
    body = {"model": "lm-recall", "text": PROMPT, "methods": ["attnlrp"], "targets": [{"kind": "token", "token": 65}]}
    (item,) = run_job(client, "check", **body)["items"]
    assert item["check"]["verdict"] == "faithful"
    assert item["check"]["removal"]["is_probability"]
    assert item["check"]["removal"]["marked"] < 0.5 < item["check"]["removal"]["whole"]
    job = run_job(client, "explain", **body)
    code = client.get(f"/api/jobs/{job['id']}/code.py").text
    names = {}
    exec(compile(code.partition("for name,")[0], "code", "exec"), names)  # noqa: S102 - the code of the page
    expected = vitrail.explain(
        vitrail.load("lm-recall"), PROMPT, "attnlrp", tokenizer=load_tokenizer("lm-recall"), target=token("tent")
    )
    assert names["explanations"]["attnlrp"].maps.allclose(expected.maps, atol=1e-6)
    raw = [word["raw"] for word in job["items"][0]["words"]]
    assert raw == pytest.approx(expected.text[0].scores[0].tolist(), rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_questions_about_images(client, picture):
    asked = {"model": "scenes-vlm", "picture": picture}
    target = {"kind": "token", "text": "What is in the image?"}
    found = client.post("/api/predict", json={**asked, "targets": [target]}).json()
    assert [one["name"] for one in found["written"]] == ["cyan", "kite", ",", "yellow", "star"]
    word = found["written"][4]["target"]
    (item,) = run_job(client, "explain", **asked, methods=["transformer_mm"], targets=[word])["items"]
    assert item["map"]["shape"] == [16, 16]
    assert [one["text"] for one in item["words"]][-4:] == ["cyan", "kite", ",", "yellow"]
    colour = client.post("/api/predict", json={**asked, "targets": [{"kind": "token", "text": QUESTION}]}).json()["top"]
    assert colour[0]["name"] == "yellow"
    job = run_job(client, "explain", **asked, methods=["transformer_mm"], targets=[colour[0]["target"]])
    processor = QuestionProcessor()
    server = client.app.state.server
    pixels = Image.fromarray(server.image(picture).pixels["scenes-vlm"])
    expected = vitrail.explain(
        vitrail.load("scenes-vlm"), processor(images=pixels, text=QUESTION), "transformer_mm", processor=processor,
        target=token("yellow"),
    )  # fmt: skip
    found_map = server.job(job["id"]).explanations["transformer_mm"].grid
    assert found_map.allclose(expected.grid, atol=1e-5)
    marked = expected.grid[0, 0].flatten().topk(26).indices.tolist()
    removed = {**asked, "removed": marked, "classes": [one["target"] for one in colour[:2]]}
    without = client.post("/api/remove", json=removed).json()
    assert without["without"][0] < 0.5 < without["elsewhere"][0], "the answer depends on the star"
    body = {**asked, "methods": ["transformer_mm"], "targets": [colour[0]["target"]]}
    check = run_job(client, "check", **body)["items"][0]["check"]
    assert check["verdict"] == "faithful"
    # The first tenth hardly changes the answer: a whole per cent less is "lowers", and the same one is "leaves".
    removing = r"Removing the 10 % most relevant patches (lowers|leaves) yellow (from|at) 9\d %"
    assert re.match(removing, check["sentences"][0])
    assert check["removal"]["is_probability"]
    assert check["removal"]["whole"] == pytest.approx(colour[0]["probability"], abs=1e-4)
    assert check["removal"]["marked"] < check["removal"]["elsewhere"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": "lm-recall", "text": "The wombat has the", "methods": ["attnlrp"]}, "not a word of this model"),
        ({"model": "lm-recall", "text": PROMPT, "methods": ["attnlrp"], "targets": [3]}, "give a token"),
        (
            {"model": "lm-recall", "text": PROMPT, "methods": ["attnlrp"], "targets": [TOO_LARGE]},
            "vocabulary has 109",
        ),
        (
            {"model": "scenes-vlm", "methods": ["attnlrp"], "targets": [{"kind": "token", "token": 3}]},
            "has no question",
        ),
        (
            {"model": "lm-recall", "text": PROMPT, "methods": ["attnlrp"],
             "targets": [{"kind": "token", "token": 3}, {"kind": "token", "token": 3, "written": [4]}]},
            "follow different texts",
        ),
    ],
)  # fmt: skip
def test_wrong_requests_are_refused(client, picture, body, message):
    if body["model"] == "scenes-vlm":
        body = {**body, "picture": picture}
    if "targets" in body:
        assert message in error_text(client.post("/api/explain", json=body), 422)
    else:
        assert message in error_text(client.post("/api/predict", json={k: body[k] for k in ("model", "text")}), 422)
