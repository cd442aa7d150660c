"""Jobs: their events, who may cancel them, and what they may cost."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from tests.web.web_case import LONG_METHODS, error_text, small_app, tiny_model, upload_id, wait_until
from vitrail.web.api_errors import ApiError
from vitrail.web.limits import Limits
from vitrail.web.validation import check_methods


@pytest.fixture(scope="module")
def app():
    return small_app()


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app) as client:
        client.get("/")
        yield client


@pytest.fixture(scope="module")
def image_id(client):
    return upload_id(client)


def events(client, job):
    with client.stream("GET", f"/api/jobs/{job}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = list(response.iter_lines())
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return list(zip(kinds, data, strict=True))


def test_events_report_all_changes(client, image_id):
    body = {"model": "tiny", "picture": image_id, "methods": ["rise:masks=300,seed=9", "rollout"], "targets": [0]}
    job = client.post("/api/explain", json=body)
    assert job.status_code == 202
    received = events(client, job.json()["id"])
    assert received[0][0] == "job"
    assert received[-1][0] == "end"
    states = {}
    for kind, data in received:
        for item in data["items"] if kind == "job" else [data] if kind == "item" else []:
            states[item["key"]] = item["state"]
    assert states == {"rise:masks=300,seed=9|0": "done", "rollout|0": "done"}
    again = events(client, job.json()["id"])
    assert [kind for kind, _ in again] == ["job", "end"]
    assert again[0][1]["state"] == "done"


def test_only_the_owner_can_cancel_a_job(app, client, image_id):
    body = {"model": "tiny", "picture": image_id, "methods": LONG_METHODS, "targets": [0]}
    job = client.post("/api/explain", json=body).json()
    other = TestClient(app)
    other.get("/")
    error_text(other.delete(f"/api/jobs/{job['id']}"), 403)
    assert other.get(f"/api/jobs/{job['id']}").json()["state"] in ("queued", "running")
    assert client.delete(f"/api/jobs/{job['id']}").status_code == 204
    wait_until(lambda: other.get(f"/api/jobs/{job['id']}").json()["state"] == "cancelled")
    assert {i["state"] for i in client.get(f"/api/jobs/{job['id']}").json()["items"]} <= {"done", "cancelled"}
    assert client.delete(f"/api/jobs/{job['id']}").status_code == 204


def test_a_full_queue_sends_retry_after():
    with TestClient(small_app(queue_per_client=2, queue=2)) as client:
        body = {"model": "tiny", "picture": upload_id(client), "methods": LONG_METHODS, "targets": [0]}
        jobs = [client.post("/api/explain", json={**body, "seed": seed}) for seed in range(3)]
        assert [j.status_code for j in jobs] == [202, 202, 503]
        assert jobs[2].headers["retry-after"].isdigit()
        assert "too many queued jobs" in error_text(jobs[2], 503)
        assert jobs[1].json()["ahead"] >= 1
        for job in jobs[:2]:
            client.delete(f"/api/jobs/{job.json()['id']}")


def test_a_method_over_the_time_limit_is_stopped():
    with TestClient(small_app(seconds=0.01)) as client:
        body = {"model": "tiny", "picture": upload_id(client), "methods": ["rise:masks=5000"], "targets": [0]}
        job = client.post("/api/explain?wait=true", json=body).json()
        assert job["state"] == "failed"
        assert "took more than" in job["items"][0]["error"]["what"]


def test_computed_maps_are_cached(client, image_id):
    body = {"model": "tiny", "picture": image_id, "methods": ["rise:masks=64"], "targets": [1]}
    first = client.post("/api/explain?wait=true", json=body).json()["items"][0]
    second = client.post("/api/explain?wait=true", json={**body, "targets": [2]}).json()["items"][0]
    both = client.post("/api/explain?wait=true", json={**body, "targets": [2, 1], "methods": ["rise:masks=64"]}).json()
    assert [i["map"] for i in both["items"]] == [second["map"], first["map"]]
    assert both["items"][1]["seconds"] == second["seconds"]
    other = client.post("/api/explain?wait=true", json={**body, "seed": 5}).json()["items"][0]
    assert other["map"] != first["map"]


def test_costs_are_known_before_a_job_runs():
    served = tiny_model()
    costs = {
        m.label: m.evaluations for m in check_methods(["rollout", "rise", "occlusion:2x2"], served, 8, 0, Limits())
    }
    assert costs == {"rollout": 0, "rise": 4000, "occlusion:2x2": 10}
    with pytest.raises(ApiError):
        check_methods(["rise"], served, 1, 0, Limits(evaluations=100))
