"""The HTTP API: every endpoint, every error, and that its results equal the library's."""

from __future__ import annotations

import dataclasses
import json
import runpy
from io import BytesIO

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from safetensors.torch import load as load_tensors

import vitrail
from tests.web.web_case import error_text, small_app, tiny_model, upload_id
from vitrail.cli.serve import load_models
from vitrail.methods import METHODS
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import HALF, Preprocess
from vitrail.viz.map_encoding import decode_map
from vitrail.web.api_errors import ApiError
from vitrail.web.limits import Limits
from vitrail.web.served_model import serve_model
from vitrail.web.validation import check_methods

HEADERS = {
    "x-content-type-options": "nosniff", "referrer-policy": "no-referrer", "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
}  # fmt: skip


@pytest.fixture(scope="module")
def app():
    return small_app(tiny_model(), *load_models(["scenes"], []))


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app) as client:
        client.get("/")
        yield client


@pytest.fixture(scope="module")
def image_id(client):
    return upload_id(client)


# -- the page and its headers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/models", "/api/docs", "/api/openapi.json", "/nowhere", "/static/none.js"])
def test_every_response_has_the_security_headers(client, path):
    response = client.get(path)
    for name, value in HEADERS.items():
        assert response.headers[name] == value
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "img-src 'self' blob: data:" in policy
    assert "unsafe" not in policy


def test_page_and_permalinks(client, image_id):
    assert client.get("/").status_code == 200
    job = client.post(
        "/api/explain?wait=true", json={"model": "tiny", "picture": image_id, "methods": ["rollout"], "targets": [0]}
    ).json()
    page = client.get(job["url"])
    assert page.status_code == 200
    assert f'data-job="{job["id"]}"' in page.text
    missing = client.get("/r/%3Cscript%3Ealert(1)")
    assert missing.status_code == 404
    assert "<script>alert" not in missing.text
    error_text(client.get("/api/nowhere"), 404)
    error_text(client.post("/api/models"), 405)


def test_client_cookie(app):
    other = TestClient(app)
    first = other.get("/").headers["set-cookie"]
    assert "HttpOnly" in first
    assert "SameSite=Strict" in first
    assert "set-cookie" not in other.get("/").headers
    other.cookies.clear()
    other.cookies.set("vitrail", "invalid")
    assert "set-cookie" in other.get("/").headers


def test_other_origins_and_host_names_are_rejected():
    from vitrail.web.fastapi_app import make_app

    with TestClient(make_app([tiny_model()], Limits(), ["localhost"]), base_url="http://localhost:8000") as local:
        body = {"model": "tiny", "sample": "scene-1"}
        assert local.post("/api/pictures/sample", json=body, headers={"Origin": "http://localhost:8000"}).is_success
        error_text(local.post("/api/pictures/sample", json=body, headers={"Origin": "http://evil.example"}), 403)
        error_text(local.get("/", headers={"Host": "evil.example"}), 421)


def test_api_reference_lists_every_operation(client):
    page, schema = client.get("/api/docs").text, client.get("/api/openapi.json").json()
    assert all(path in page for path in schema["paths"])
    assert "<script" not in page
    assert schema["components"]["schemas"]["ExplainRequest"]["examples"]


# -- models and samples ------------------------------------------------------------------------------------------------


def test_models_and_samples(client):
    small, scenes = client.get("/api/models").json()
    assert (small["id"], small["kind"], small["input"], small["grid"]) == ("tiny", "image", [32, 32], [4, 4])
    assert (small["layers"], small["heads"], small["class_count"], small["default"]) == (3, [4] * 3, 5, "leadlight")
    assert [m["name"] for m in scenes["methods"]] == list(METHODS)
    by_name = {m["name"]: m for m in scenes["methods"]}
    assert by_name["rollout"]["shared_pass"]
    assert not by_name["rise"]["shared_pass"]
    assert by_name["rise"]["forwards"] == 4001
    samples = client.get("/api/samples", params={"model": "scenes"}).json()
    assert [len(s["classes"]) for s in samples] == [1, 1, 2, 2, 1, 1]
    assert Image.open(BytesIO(client.get(samples[0]["url"]).content)).size == (128, 128)
    assert client.get("/api/samples", params={"model": "tiny"}).json()[0]["classes"] is None
    error_text(client.get("/api/samples", params={"model": "other"}), 404)
    error_text(client.get("/api/samples"), 422)
    error_text(client.get("/api/samples/none.png", params={"model": "tiny"}), 404)


def test_samples_become_images(client):
    first = client.post("/api/pictures/sample", json={"model": "scenes", "sample": "pair-1"}).json()
    again = client.post("/api/pictures/sample", json={"model": "tiny", "sample": "pair-1"}).json()
    assert {**first, "geometry": None} == {**again, "geometry": None}
    assert first["geometry"]["box"] == [0.0, 0.0, 1.0, 1.0]
    assert again["geometry"]["cropped"]
    assert (first["width"], first["height"], first["notes"]) == (128, 128, [])
    stored = np.asarray(Image.open(BytesIO(client.get(f"/api/pictures/{first['picture']}.png?model=scenes").content)))
    sample = client.get("/api/samples/pair-1.png?model=scenes").content
    assert np.array_equal(stored, np.asarray(Image.open(BytesIO(sample))))
    assert Image.open(BytesIO(client.get(f"/api/pictures/{first['picture']}.png?model=tiny").content)).size == (32, 32)
    error_text(client.post("/api/pictures/sample", json={"model": "scenes", "sample": "../etc"}), 404)
    error_text(client.get("/api/pictures/none.png?model=tiny"), 404)


def test_unsupported_models_are_rejected_at_startup():
    with pytest.raises(vitrail.errors.ModelError, match="preprocessing of tiny is unknown"):
        serve_model(LoadedModel(vitrail.testing.tiny_vit()), "tiny")
    with pytest.raises(vitrail.errors.InputError, match="2 weights for 1"):
        load_models(["scenes"], ["pretrained", "random"])
    two = load_models(["scenes", "scenes"], [])
    assert [model.id for model in two] == ["scenes", "scenes-2"]


def test_serve_command_starts_the_server(monkeypatch):
    import uvicorn
    from typer.testing import CliRunner

    from vitrail.cli import app as cli

    started = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: started.append((self.config, sockets)))
    options = ["serve", "--port", "0", "-m", "scenes", "-m", "scenes-tagged", "--max-upload", "1", "--queue", "9"]
    result = CliRunner().invoke(cli.app, options)
    assert result.exit_code == 0, result.output
    ((config, sockets),) = started
    port = sockets[0].getsockname()[1]
    sockets[0].close()
    assert f"http://127.0.0.1:{port}/" in result.output
    server = config.app.state.server
    assert (list(server.models), server.limits.upload_bytes, server.limits.queue) == (
        ["scenes", "scenes-tagged"],
        1 << 20,
        9,
    )
    with TestClient(config.app, base_url=f"http://localhost:{port}") as local:
        assert local.get("/api/models").is_success
        error_text(local.get("/api/models", headers={"Host": "evil.example"}), 421)
    wrong = CliRunner().invoke(cli.app, ["serve", "-m", "scenes", "-w", "x.pt"])
    assert isinstance(wrong.exception, vitrail.errors.InputError)


# -- predictions and explanations --------------------------------------------------------------------------------------


def test_predictions_are_sorted_and_correct(client):
    image_id = client.post("/api/pictures/sample", json={"model": "scenes", "sample": "pair-1"}).json()["picture"]
    prediction = client.post("/api/predict", json={"model": "scenes", "picture": image_id}).json()
    assert prediction["classes"] == 12
    assert len(prediction["top"]) == 10
    values = [one["probability"] for one in prediction["top"]]
    assert values == sorted(values, reverse=True)
    assert {one["name"] for one in prediction["top"][:2]} == {"kite", "bolt"}


@pytest.mark.slow
def test_downloaded_code_reproduces_the_maps(client, tmp_path, monkeypatch):
    image_id = client.post("/api/pictures/sample", json={"model": "scenes", "sample": "pair-2"}).json()["picture"]
    methods = ["vtranm", "gradtoken:variant=3", "random", "rise:masks=4,cells=4", "gradient_x_input"]
    body = {"model": "scenes", "picture": image_id, "methods": methods, "targets": [7, 1], "seed": 3}
    job = client.post("/api/explain?wait=true", json=body).json()
    assert [i["key"] for i in job["items"]] == [f"{m}|{t}" for m in methods for t in (7, 1)]
    assert {i["state"] for i in job["items"]} == {"done"}
    assert job["target_names"] == ["bolt", "lifebelt"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.png").write_bytes(client.get(f"/api/pictures/{image_id}.png?model=scenes").content)
    code = client.get(f"/api/jobs/{job['id']}/code.py")
    (tmp_path / "code.py").write_text(code.text)
    explanations = runpy.run_path("code.py")["explanations"]
    for item in job["items"]:
        e = explanations[item["method"]]
        k = [7, 1].index(item["target"])
        expected = e.grid[0, k].double().numpy()
        assert np.allclose(decode_map(item["map"]), expected, atol=1.5e-4 * np.abs(expected).max()), item["key"]
        assert item["map"]["signed"] == e.signed
        assert item["map"]["low"] == pytest.approx(float(expected.min()), rel=1e-4, abs=1e-9)
    maps = load_tensors(client.get(f"/api/jobs/{job['id']}/maps.safetensors").content)
    for name, e in explanations.items():
        assert torch.allclose(maps[f"{name}/maps"], e.maps, atol=1e-4), name
    manifest = client.get(f"/api/jobs/{job['id']}/manifest.json").json()
    assert manifest["methods"]["random"]["options"] == {"seed": 3}
    assert list(manifest["methods"]) == methods


def test_downloads(client, image_id):
    body = {"model": "tiny", "picture": image_id, "methods": list(METHODS)[:10], "targets": [1]}
    job = client.post("/api/explain?wait=true", json=body).json()
    for name, start in (("figure.png", b"\x89PNG"), ("figure.pdf", b"%PDF")):
        response = client.get(f"/api/jobs/{job['id']}/{name}")
        assert response.content.startswith(start)
        assert response.headers["content-disposition"] == f'attachment; filename="vitrail-tiny-{name}"'
    assert "curves.csv" not in error_text(client.get(f"/api/jobs/{job['id']}/nothing.txt"), 404)
    error_text(client.get(f"/api/jobs/{job['id']}/curves.csv"), 404)
    error_text(client.get("/api/jobs/none/figure.png"), 404)


def test_default_target_is_the_predicted_class(client):
    data = client.post("/api/pictures/sample", json={"model": "tiny", "sample": "scene-2"}).json()
    job = client.post(
        "/api/explain?wait=true", json={"model": "tiny", "picture": data["picture"], "methods": ["gradcam", "rollout"]}
    ).json()
    best = client.post("/api/predict", json={"model": "tiny", "picture": data["picture"]}).json()["top"][0]
    assert job["targets"] == [best["index"]]
    assert [i["key"] for i in job["items"]] == [f"gradcam|{best['index']}", f"rollout|{best['index']}"]


def test_every_method_and_variant_is_accepted(client, app):
    served = app.state.server.models["tiny"]
    for name, method in METHODS.items():
        if method.check_weights is not None:
            continue  # needs weights trained for the model
        for variant in ("", *method.variants):
            check_methods([f"{name}:{variant}" if variant else name], served, 1, 0, Limits(evaluations=20_000))


@pytest.mark.parametrize("spec", ["vit_shapley:weights=/etc/hosts", "inverted:of=vit_shapley:weights=/etc/hosts"])
def test_clients_cannot_name_files_of_the_server(client, app, spec):
    with pytest.raises(ApiError, match="names a file, which a server does not read"):
        check_methods([spec], app.state.server.models["tiny"], 1, 0, Limits())


def test_every_method_runs_with_its_quick_options(client, image_id):
    specs = []
    for name, method in METHODS.items():
        if method.check_weights is not None:
            continue  # needs weights trained for the model
        specs.append(":".join([name, ",".join(f"{k}={v}" for k, v in method.quick.items())]).rstrip(":"))
    body = {"model": "tiny", "picture": image_id, "methods": specs, "targets": [0, 3]}
    job = client.post("/api/explain?wait=true", json=body).json()
    failed = {i["key"]: i["error"] for i in job["items"] if i["state"] != "done"}
    assert set(failed) <= {"tam:steps=3|0", "tam:steps=3|3"}, failed  # its first block does not exist in this model
    assert all(i["map"]["shape"] in ([4, 4], [32, 32]) for i in job["items"] if i["state"] == "done")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["gradtokn"]}, "did you mean gradtoken"),
        ({"methods": ["gradtoken:heads"]}, "no variant"),
        ({"methods": ["rollout:nothing=1"]}, "does not take"),
        ({"methods": ["rise:masks=20000"]}, "at most 10000"),
        ({"methods": ["rise:cells=1000"]}, "at most 32"),
        ({"methods": ["inverted:of=rise:masks=1000000"]}, "at most 10000"),
        ({"methods": ["smoothgrad:samples=nan"]}, "whole number"),
        ({"methods": ["smoothgrad:sigma=inf"]}, "too large for this server"),
        ({"methods": ["integrated_gradients:steps=501"]}, "at most 500"),
        ({"methods": ["vit_cx:random_masks=9000,masks=random,draws=5"]}, "the 60000 this server allows"),
        ({"methods": [f"rise:masks=10000,seed={i}" for i in range(25)]}, "fewer methods at a time"),
        ({"methods": ["occlusion:stride=two"]}, "whole number"),
        ({"methods": ["rollout", "raw_attention:head=x"]}, "a whole number or none"),
        ({"methods": ["vit_cx:debias=maybe"]}, "true or false"),
        ({"methods": ["inverted:of=" + "inverted:of=" * 12]}, ""),
        ({"methods": ["raw_attention:head=" + "9" * 150]}, "too large for this server"),
        ({"methods": []}, "at least 1"),
        ({"methods": ["rollout"] * 101}, "at most 100"),
        ({"methods": [f"rollout:start={i}" for i in range(49)]}, "1 to 48"),
        ({"targets": [5]}, "0 to 4"),
        ({"targets": []}, "1 to 8"),
        ({"targets": [-1]}, "greater than or equal"),
        ({"targets": [True]}, "valid integer"),
        ({"targets": "top2"}, "valid list"),
        ({"seed": -1}, "greater than or equal"),
        ({"seed": 1.5}, "valid integer"),
        ({"path": "/etc/passwd"}, "extra inputs"),
        ({"text": "a text"}, "is an image model"),
        ({"picture": None}, "is an image model"),
    ],
)
def test_invalid_requests_are_rejected(client, image_id, change, message):
    body = {"model": "tiny", "picture": image_id, "methods": ["rollout"], "targets": [0], **change}
    assert message.lower() in error_text(client.post("/api/explain", json=body), 422).lower()


def test_unknown_ids_and_malformed_bodies(client, image_id):
    body = {"model": "tiny", "picture": image_id, "methods": ["rollout"]}
    error_text(client.post("/api/explain", json={**body, "model": "timm:vit_base_patch16_224"}), 404)
    error_text(client.post("/api/explain", json={**body, "picture": "0" * 24}), 404)
    error_text(client.post("/api/explain", content=b"{", headers={"Content-Type": "application/json"}), 422)
    error_text(client.post("/api/explain", content=b"[" * 5000, headers={"Content-Type": "application/json"}), 400)
    error_text(client.post("/api/explain", json=[1]), 422)
    error_text(client.post("/api/explain", content=b" " * 300_000, headers={"Content-Type": "application/json"}), 413)
    error_text(client.get("/api/jobs/none"), 404)
    error_text(client.delete("/api/jobs/none"), 404)
    error_text(client.get("/api/jobs/none/events"), 404)


def test_a_failing_method_does_not_affect_the_others(client, image_id, monkeypatch):
    def broken(trace):
        raise TypeError("an internal error")

    monkeypatch.setitem(METHODS, "broken", dataclasses.replace(METHODS["gradsam"], name="broken", compute=broken))
    methods = ["rollout", "gradtoken:heads=most", "broken", "raw_attention:layer=77"]
    body = {"model": "tiny", "picture": image_id, "targets": [0], "methods": methods}
    job = client.post("/api/explain?wait=true", json=body).json()
    assert [i["state"] for i in job["items"]] == ["done", "failed", "failed", "failed"]
    assert job["state"] == "done"
    assert "heads='most'" in job["items"][1]["error"]["what"]
    assert "TypeError" in job["items"][2]["error"]["what"]
    assert "layer=77 is out of range" in job["items"][3]["error"]["what"]


def test_constant_maps_are_reported_and_json_has_no_nan():
    model = vitrail.testing.tiny_vit()
    torch.nn.init.zeros_(model.head.weight)
    served = serve_model(LoadedModel(model, Preprocess((32, 32), HALF, HALF), None, "constant"), "constant")
    with TestClient(small_app(served)) as client:
        body = {"model": "constant", "picture": upload_id(client), "methods": ["gradcam", "random"], "targets": [2]}
        response = client.post("/api/explain?wait=true", json=body)
        job = json.loads(response.text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        assert [i["flat"] for i in job["items"]] == [True, False]
        assert job["target_names"] == ["class 2"]
        assert client.get(f"/api/jobs/{job['id']}/figure.png").is_success


def test_window_attention_is_rejected_with_the_reason():
    import timm

    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=24, depths=(1, 1, 1, 1),
        num_heads=(1, 1, 1, 1), num_classes=3,
    )  # fmt: skip
    served = serve_model(vitrail.models.describe(swin.eval(), "swin"), "swin")
    with TestClient(small_app(served)) as client:
        info = client.get("/api/models").json()[0]
        reasons = {m["name"]: m["reason"] for m in info["methods"]}
        assert "windows" in reasons["rollout"]
        assert reasons["gradcam_features"] is None
        assert info["default"] == "gradcam_features"
        body = {"model": "swin", "picture": upload_id(client), "token": 0}
        assert "windows" in error_text(client.post("/api/attention", json=body), 422)
        body = {"model": "swin", "picture": body["picture"], "methods": ["rollout"]}
        assert "windows" in error_text(client.post("/api/explain", json=body), 422)


# -- attention and curves ----------------------------------------------------------------------------------------------


def test_attention_equals_a_manual_computation(client, app, image_id):
    response = client.post("/api/attention", json={"model": "tiny", "picture": image_id, "token": 6}).json()
    assert (response["grid"], response["tokens"], response["prefix"], len(response["layers"])) == ([4, 4], None, 1, 3)
    served = app.state.server.models["tiny"]
    x = served.model_inputs(app.state.server.image(image_id).pixels["tiny"]).args[0]
    module = served.loaded.module
    with torch.no_grad():
        tokens = module.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([module.prefix, tokens], 1) + module.position
        block = module.blocks[0]
        q, k, _ = block.qkv(block.norm1(tokens)).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
        expected = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)[0, :, 7, 1:].view(4, 4, 4)
    found = np.stack([decode_map(head) for head in response["layers"][0]["heads"]])
    assert np.allclose(found, expected.numpy(), atol=1e-4)
    body = {"model": "tiny", "picture": image_id}
    assert "0 to 15" in error_text(client.post("/api/attention", json={**body, "token": 16}), 422)
    error_text(client.post("/api/attention", json={**body, "token": -1}), 422)


def test_curves_include_the_random_control(client, tmp_path, monkeypatch, capsys):
    image_id = client.post("/api/pictures/sample", json={"model": "scenes", "sample": "scene-1"}).json()["picture"]
    body = {"model": "scenes", "picture": image_id, "methods": ["vtranm"], "target": 8, "steps": 4}
    job = client.post("/api/curves?wait=true", json=body).json()
    assert (job["kind"], job["state"], [i["key"] for i in job["items"]]) == ("curves", "done", ["vtranm", "random"])
    for item in job["items"]:
        assert item["fractions"][0] == 0
        assert item["fractions"][-1] == 1
        assert len(item["deletion"]) == len(item["insertion"]) == 5
        assert item["deletion"][0] == pytest.approx(item["insertion"][-1], abs=1e-5)
    assert client.get(f"/api/jobs/{job['id']}/figure.png").content.startswith(b"\x89PNG")
    assert len(client.get(f"/api/jobs/{job['id']}/curves.csv").text.splitlines()) == 11
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.png").write_bytes(client.get(f"/api/pictures/{image_id}.png?model=scenes").content)
    (tmp_path / "code.py").write_text(client.get(f"/api/jobs/{job['id']}/code.py").text)
    code = runpy.run_path("code.py")
    for item in job["items"]:
        scores = code["records"].scores(code["preset"], item["method"])
        assert float(scores["deletion(mean)"]) == pytest.approx(item["deletion_auc"], abs=1e-4)
        assert float(scores["insertion(blur)"]) == pytest.approx(item["insertion_auc"], abs=1e-4)
    error_text(client.post("/api/curves", json={**body, "steps": 51}), 422)
    error_text(client.post("/api/curves", json={**body, "target": 12}), 422)
