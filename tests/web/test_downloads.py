"""Files of a job: figures and manifests carry verdicts, and the names of both classes of a difference."""

from __future__ import annotations

import json
from io import BytesIO

import pytest
from fastapi.testclient import TestClient
from matplotlib.figure import Figure
from PIL import Image

from tests.web.web_case import small_app, upload_id
from vitrail.web.cache import CheckCache
from vitrail.web.downloads import FILES, find_file

METHODS = ["gradcam", "rollout", "random"]


@pytest.fixture(scope="module")
def client():
    with TestClient(small_app(grace=300.0)) as one:
        one.get("/")
        yield one


def run(client, path, **body):
    response = client.post(f"/api/{path}?wait=true", json={"model": "tiny", "picture": upload_id(client), **body})
    assert response.json()["state"] == "done"
    return response.json()


def figure_texts(client, job_id, monkeypatch):
    """All texts of the figure of a job."""
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **given: (drawn.append(figure), save(figure, *args, **given))
    )
    response = client.get(f"/api/jobs/{job_id}/figure.png")
    assert Image.open(BytesIO(response.content)).width > 300
    (figure,) = drawn
    return [text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))]


def test_figure_and_manifest_have_the_verdict_of_each_map(client, monkeypatch):
    checks = run(client, "check", methods=METHODS, targets=[1])
    verdicts = {item["method"]: item["check"]["verdict"] for item in checks["items"]}
    job = run(client, "explain", methods=[*METHODS, "raw_attention"], targets=[1])
    texts = figure_texts(client, job["id"], monkeypatch)
    for method, verdict in verdicts.items():
        mark = "✓" if verdict == "faithful" else "✗"
        assert texts.count(f"{mark} {verdict}") == sum(v == verdict for v in verdicts.values()), method
    assert texts.count("not checked") == 1
    assert {"min", "max"} <= set(texts), "the colour bar"
    manifest = client.get(f"/api/jobs/{job['id']}/manifest.json").json()
    found = {name: entry.get("checks") for name, entry in manifest["methods"].items()}
    assert {name: entry[0]["verdict"] for name, entry in found.items() if entry} == verdicts
    assert found["raw_attention"] is None


def test_figure_of_many_methods_has_verdicts_and_a_legend(client, monkeypatch):
    many = [
        "gradcam",
        "rollout",
        "raw_attention",
        "gradtoken",
        "vtranm",
        "transformer_mm",
        "attcat",
        "random",
        "centre",
    ]
    run(client, "check", methods=many[:1], targets=[2])
    job = run(client, "explain", methods=many, targets=[2])
    texts = figure_texts(client, job["id"], monkeypatch)
    assert texts.count("not checked") == len(many) - 1
    assert sum(text.startswith(("✓", "✗")) for text in texts) == 1
    assert "least … most relevant" in texts
    assert "against … for the class" in texts


def test_a_difference_names_both_classes(client, monkeypatch):
    body = {"methods": ["gradcam"], "targets": [0], "contrast": 3}
    check = run(client, "check", **body)["items"][0]["check"]
    assert "cat against fish" in check["sentences"][0]
    assert "function" not in " ".join(check["sentences"])
    assert "difference of two classes" in check["sentences"][1]
    job = run(client, "explain", **body)
    assert "cat against fish" in figure_texts(client, job["id"], monkeypatch)
    manifest = json.dumps(client.get(f"/api/jobs/{job['id']}/manifest.json").json())
    assert "cat against fish" in manifest
    assert "target 0" not in manifest


def test_correlations_have_their_range(client):
    check = run(client, "check", methods=["rollout"], targets=[1])["items"][0]["check"]
    by_test = {one["test"]: one for one in check["correlations"]}
    assert by_test["class"]["value"] == pytest.approx(1.0)
    assert not by_test["class"]["good"]
    assert by_test["class"]["range"] == "0.95 or less"
    assert by_test["noise"]["good"] == (by_test["noise"]["value"] >= 0.5)
    removal = check["removal"]
    assert removal["share"] == 0.1
    assert f"{100 * removal['whole']:.0f}" in check["sentences"][0]


@pytest.mark.slow
def test_every_file_is_created_without_checks(client):
    job = run(client, "explain", methods=["gradcam"], targets=[4])
    found = client.app.state.server.job(job["id"])
    for name in FILES:
        if name != "curves.csv":
            assert find_file(found, name).create(found, CheckCache(1)), name
