"""Removing patches by hand: the probabilities are those of the library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fastapi.testclient import TestClient

from tests.web.web_case import error_text, small_app, upload_id
from vitrail.cli.serve import load_models
from vitrail.trust.input_removal import PatchRemoval
from vitrail.viz.map_encoding import decode_map
from vitrail.web.fastapi_app import make_app
from vitrail.web.patch_removal import SHIFTS, page_patches, shifted_regions


@pytest.fixture(scope="module")
def client():
    with TestClient(small_app()) as one:
        one.get("/")
        yield one


def removed_probability(client, image_id, removed, index):
    """The probability of a class without some patches, by the library alone."""
    server = client.app.state.server
    served = server.models["tiny"]
    image = served.model_inputs(server.image(image_id).pixels["tiny"]).image
    grid = served.structure.layout.grid
    remove = PatchRemoval(served.copies[0], image, grid)
    keep = torch.tensor([[p for p in range(grid[0] * grid[1]) if p not in removed]])
    return float(remove(keep, lambda output: output.softmax(-1)[:, index]))


@pytest.mark.parametrize("removed", [[0], [5, 6, 9, 10], list(range(15))])
def test_probabilities_are_those_of_the_library(client, removed):
    image_id = upload_id(client)
    body = {"model": "tiny", "picture": image_id, "removed": removed, "classes": [0, 3]}
    found = client.post("/api/remove", json=body).json()
    for position, index in enumerate(body["classes"]):
        expected = removed_probability(client, image_id, removed, index)
        assert found["without"][position] == pytest.approx(expected, abs=1e-6)
        others = [removed_probability(client, image_id, one, index) for one in shifted_regions(removed, (4, 4))]
        assert found["elsewhere"][position] == pytest.approx(sum(others) / len(others), abs=1e-6)
    assert found["by"] == "tokens"


def test_the_share_of_the_check_gives_the_number_of_the_check(client):
    image_id = upload_id(client)
    body = {"model": "tiny", "picture": image_id, "methods": ["leadlight"], "targets": [2]}
    check = client.post("/api/check?wait=true", json=body).json()["items"][0]["check"]
    job = client.app.state.server.job(client.post("/api/explain?wait=true", json=body).json()["id"])
    relevance = job.explanations["leadlight"].grid[0, 0].flatten()
    top = relevance.topk(round(0.1 * relevance.numel())).indices.tolist()
    found = client.post(
        "/api/remove", json={"model": "tiny", "picture": image_id, "removed": top, "classes": [2]}
    ).json()
    assert found["without"][0] == pytest.approx(check["removal"]["marked"], abs=1e-5)


def test_regions_are_as_large_and_all_different():
    region = [3, 17, 40, 41]
    found = shifted_regions(region, (14, 14))
    assert len(found) == SHIFTS
    assert {len(set(one)) for one in found} == {4}
    assert len({tuple(one) for one in [region, *found]}) == SHIFTS + 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"removed": [16]}, "patches 0 to 15"),
        ({"removed": list(range(16))}, "not all"),
        ({"removed": []}, "removed"),
        ({"classes": [99]}, "5 classes"),
        ({"picture": "nosuch"}, "image"),
    ],
)
def test_wrong_requests_are_rejected(client, changed, message):
    body = {"model": "tiny", "picture": upload_id(client), "removed": [0], "classes": [0], **changed}
    assert message in error_text(client.post("/api/remove", json=body), 404 if "picture" in changed else 422)


def test_patches_of_a_spectrogram_are_those_that_the_page_shows():
    served = SimpleNamespace(media="sound", plane=(3, 4))  # frequencies, times
    grid = torch.arange(12).view(4, 3)  # times, frequencies
    shown = grid.T.flip(0).flatten().tolist()  # as `map_json` turns maps
    assert page_patches(served, range(12)) == shown
    assert page_patches(served, page_patches(served, range(12)), inverse=True) == list(range(12))


def test_shifted_regions_of_a_video():
    (found,) = shifted_regions([0, 5], (2, 3, 4), 1)
    assert found == [22, 15], "half of each axis"


@pytest.fixture(scope="module")
def worlds():
    names = ["scenes-clip", "scenes-detr", "scenes-seg", "scenes-video", "tones"]
    with TestClient(make_app(load_models(names, []))) as one:
        one.get("/")
        yield one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sample", "kind"),
    [
        ("scenes-clip", "colours-1", "prompt"), ("scenes-detr", "colours-1", "box"),
        ("scenes-seg", "colours-1", "region"), ("scenes-video", "motion-1", "class"), ("tones", "tones-1", "class"),
    ],
)  # fmt: skip
def test_the_check_and_the_slider_agree_for_every_kind(worlds, model, sample, kind):
    body = {"model": model, "sample": sample}
    given = {"model": model, "picture": worlds.post("/api/pictures/sample", json=body).json()["picture"]}
    prompts = [{"kind": "prompt", "text": text} for text in ("a kite", "a star")] if kind == "prompt" else []
    top = worlds.post("/api/predict", json={**given, "targets": prompts}).json()["top"]
    targets = [one["target"] or one["index"] for one in top[:2]]
    explained = {**given, "methods": ["rollout"], "targets": targets[:1]}
    job = worlds.post("/api/explain?wait=true", json=explained).json()
    values = torch.from_numpy(decode_map(job["items"][0]["map"])).flatten()
    marked = values.topk(round(0.1 * len(values))).indices.tolist()
    found = worlds.post("/api/remove", json={**given, "removed": marked, "classes": targets}).json()
    check = worlds.post("/api/check?wait=true", json=explained).json()["items"][0]["check"]["removal"]
    if check["is_probability"]:
        assert found["without"][0] == pytest.approx(check["marked"], abs=1e-3)
    assert all(0 <= value <= 1 for value in [*found["without"], *found["elsewhere"]])
    curves = {
        **given,
        "methods": ["rollout"],
        "target": targets[0],
        "among": targets[1:] if prompts else [],
        "steps": 10,
    }
    item = worlds.post("/api/curves?wait=true", json=curves).json()["items"][0]
    assert item["fractions"][1] == 0.1
    assert item["deletion"][1] == pytest.approx(found["without"][0], abs=1e-3)
    assert item["deletion"][0] == pytest.approx(item["insertion"][-1], abs=1e-3)
    assert item["deletion"][0] == pytest.approx(top[0]["probability"], abs=1e-2)
