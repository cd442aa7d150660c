"""Jobs: what is told of them, who may end them, and what they may cost."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from vitrail.web.errors import ApiError
from vitrail.web.limits import Limits
from vitrail.web.validation import ask
from web_case import LONG, app_of, error, sent, tiny, until


@pytest.fixture(scope="module")
def app():
    return app_of()


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app) as one:
        one.get("/")
        yield one


@pytest.fixture(scope="module")
def picture(client):
    return sent(client)


def events(client, job):
    with client.stream("GET", f"/api/jobs/{job}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = list(answer.iter_lines())
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return list(zip(kinds, data, strict=True))


def test_events_tell_all_that_happens(client, picture):
    body = {"model": "tiny", "picture": picture, "methods": ["rise:masks=300,seed=9", "rollout"], "targets": [0]}
    job = client.post("/api/explain", json=body)
    assert job.status_code == 202
    told = events(client, job.json()["id"])
    assert told[0][0] == "job"
    assert told[-1][0] == "end"
    states = {}
    for kind, data in told:
        for item in data["items"] if kind == "job" else [data] if kind == "item" else []:
            states[item["key"]] = item["state"]
    assert states == {"rise:masks=300,seed=9|0": "done", "rollout|0": "done"}
    again = events(client, job.json()["id"])
    assert [kind for kind, _ in again] == ["job", "end"]
    assert again[0][1]["state"] == "done"


def test_jobs_can_be_cancelled_by_their_makers_only(app, client, picture):
    body = {"model": "tiny", "picture": picture, "methods": LONG, "targets": [0]}
    job = client.post("/api/explain", json=body).json()
    other = TestClient(app)
    other.get("/")
    error(other.delete(f"/api/jobs/{job['id']}"), 403)
    assert other.get(f"/api/jobs/{job['id']}").json()["state"] in ("queued", "running")
    assert client.delete(f"/api/jobs/{job['id']}").status_code == 204
    until(lambda: other.get(f"/api/jobs/{job['id']}").json()["state"] == "cancelled")
    assert {i["state"] for i in client.get(f"/api/jobs/{job['id']}").json()["items"]} <= {"done", "cancelled"}
    assert client.delete(f"/api/jobs/{job['id']}").status_code == 204


def test_a_full_queue_says_when_to_come_back(picture):
    with TestClient(app_of(each=2, queue=2)) as one:
        body = {"model": "tiny", "picture": sent(one), "methods": LONG, "targets": [0]}
        jobs = [one.post("/api/explain", json=body) for _ in range(3)]
        assert [j.status_code for j in jobs] == [202, 202, 503]
        assert jobs[2].headers["retry-after"].isdigit()
        error(jobs[2], 503)
        assert jobs[1].json()["ahead"] >= 1
        for job in jobs[:2]:
            one.delete(f"/api/jobs/{job.json()['id']}")


def test_a_method_that_takes_too_long_is_stopped():
    with TestClient(app_of(seconds=0.01)) as one:
        body = {"model": "tiny", "picture": sent(one), "methods": ["rise:masks=5000"], "targets": [0]}
        job = one.post("/api/explain?wait=true", json=body).json()
        assert job["state"] == "failed"
        assert "took more than" in job["items"][0]["error"]["what"]


def test_maps_made_before_are_not_made_again(client, app, picture):
    body = {"model": "tiny", "picture": picture, "methods": ["rise:masks=64"], "targets": [1]}
    one = client.post("/api/explain?wait=true", json=body).json()["items"][0]
    two = client.post("/api/explain?wait=true", json={**body, "targets": [2]}).json()["items"][0]
    both = client.post("/api/explain?wait=true", json={**body, "targets": [2, 1], "methods": ["rise:masks=64"]}).json()
    assert [i["map"] for i in both["items"]] == [two["map"], one["map"]]
    assert both["items"][1]["seconds"] == two["seconds"]
    other = client.post("/api/explain?wait=true", json={**body, "seed": 5}).json()["items"][0]
    assert other["map"] != one["map"]


def test_what_a_method_costs_is_known_before():
    served = tiny()
    costs = {one.label: one.looks for one in ask(["rollout", "rise", "occlusion:2x2"], served, 8, 0, Limits())}
    assert costs == {"rollout": 0, "rise": 4000, "occlusion:2x2": 10}
    with pytest.raises(ApiError):
        ask(["rise"], served, 1, 0, Limits(looks=100))
