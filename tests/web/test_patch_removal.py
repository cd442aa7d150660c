"""Removing patches by hand: the probabilities are those of the library."""

from __future__ import annotations

import pytest
import torch
from fastapi.testclient import TestClient

from tests.web.web_case import error_text, small_app, upload_id
from vitrail.trust.input_removal import PatchRemoval
from vitrail.web.patch_removal import SHIFTS, shifted_regions


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
    job = client.app.state.server.finished_jobs.get(client.post("/api/explain?wait=true", json=body).json()["id"])
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
