"""A page that is reloaded continues with its job; equal requests of others do not share one."""

from __future__ import annotations

from fastapi.testclient import TestClient

from tests.web.web_case import LONG_METHODS, small_app, upload_id, wait_until


def test_the_same_request_of_the_same_client_continues_the_job_that_nobody_follows():
    with TestClient(small_app(grace=300.0)) as client:
        client.get("/")
        body = {"model": "tiny", "picture": upload_id(client), "methods": LONG_METHODS[:1], "targets": [0]}
        first = client.post("/api/explain", json=body).json()["id"]
        wait_until(lambda: client.get(f"/api/jobs/{first}").json()["state"] == "running")
        assert client.post("/api/explain", json=body).json()["id"] == first
        for other in ({"targets": [1]}, {"methods": LONG_METHODS[1:2]}, {"seed": 1}, {"contrast": 2}):
            assert client.post("/api/explain", json={**body, **other}).json()["id"] != first, other
        assert client.post("/api/check", json=body).json()["id"] != first
        stranger = TestClient(client.app)
        stranger.get("/")
        assert stranger.post("/api/explain", json=body).json()["id"] != first


def test_a_job_that_is_followed_or_cancelled_is_not_shared():
    with TestClient(small_app(grace=300.0)) as client:
        client.get("/")
        body = {"model": "tiny", "picture": upload_id(client), "methods": LONG_METHODS[:1], "targets": [0]}
        first = client.post("/api/explain", json=body).json()["id"]
        server = client.app.state.server
        with server.job(first).followed():
            second = client.post("/api/explain", json=body).json()["id"]
        assert second != first
        for job in (first, second):
            client.delete(f"/api/jobs/{job}")
        assert client.post("/api/explain", json=body).json()["id"] not in (first, second)
