"""The work queue, disconnected clients, and bounded stores."""

from __future__ import annotations

import socket
import threading
from collections import deque

import httpx
import pytest
import torch
from fastapi.testclient import TestClient

import vitrail
from tests.web.web_case import LONG_METHODS, image_file, running_server, small_app, upload, upload_id, wait_until
from vitrail.web.api_errors import ApiError
from vitrail.web.cache import BoundedStore
from vitrail.web.queue import Queue, QueuedTask, Step


class RecordingQueue:
    """A queue whose steps record their client; nothing runs before ``run``."""

    def __init__(self, **limits):
        self.queue, self.records, self.gate = Queue(**{"total": 128, "per_client": 8, **limits}), [], threading.Event()
        first = QueuedTask("gate", deque([Step(lambda: self.gate.wait(120) and None)]), lambda _: None)
        self.queue.put(first)
        wait_until(lambda: first.started)

    def put(self, client, steps=1, can_interleave=True, work=None):
        def run():
            self.records.append(client)
            if work:
                work()

        task = QueuedTask(client, deque(Step(run, can_interleave) for _ in range(steps)), self.records.append)
        self.queue.put(task)
        return task

    def run(self, count):
        self.gate.set()
        wait_until(lambda: len(self.records) >= count)
        self.queue.close()
        return [record for record in self.records if record is not None]


def test_clients_take_turns():
    recorder = RecordingQueue()
    many = [recorder.put("a") for _ in range(5)]
    single = recorder.put("b")
    late = recorder.put("c", steps=2)
    assert [recorder.queue.ahead(task) for task in (*many, single, late)] == [1, 4, 5, 6, 7, 2, 3]
    assert recorder.run(15) == ["a", "b", "c", "a", "c", "a", "a", "a"]


def test_short_steps_run_during_long_steps():
    recorder = RecordingQueue()
    batches = iter(range(3))
    recorder.put("a", can_interleave=False, work=lambda: [recorder.queue.run_short_steps() for _ in batches])
    recorder.put("b", steps=2)
    recorder.put("c", can_interleave=False)
    recorder.put("a")
    assert recorder.run(8) == ["a", "b", "a", "b", "c"]


def test_queue_is_bounded_per_client_and_in_total():
    recorder = RecordingQueue(per_client=2, total=4)
    recorder.put("a")
    recorder.put("a")
    with pytest.raises(ApiError, match="at most 2 per client"):
        recorder.put("a")
    recorder.put("b")
    with pytest.raises(ApiError, match="at most 4 in total"):
        recorder.put("c")
    recorder.run(6)
    with pytest.raises(ApiError, match="shutting down"):
        recorder.put("d")


def test_tasks_can_be_removed_and_failures_do_not_affect_others():
    recorder = RecordingQueue()
    broken = recorder.put("a", work=lambda: 1 / 0)
    removed = recorder.put("b")
    assert recorder.queue.remove(removed)
    assert not recorder.queue.remove(removed)
    recorder.put("c")
    recorder.gate.set()
    wait_until(lambda: len(recorder.records) == 4)
    assert isinstance(recorder.records[1], ZeroDivisionError)
    assert recorder.records[2:] == ["c", None]
    assert not recorder.queue.remove(broken)
    assert recorder.queue.submit("a", lambda: 7).result(120) == 7
    with pytest.raises(ZeroDivisionError):
        recorder.queue.submit("a", lambda: 1 / 0).result(120)
    recorder.queue.close()


def test_bounded_store_drops_by_number_and_bytes():
    store = BoundedStore(count=3, size=100)
    for i in range(10):
        store.put(str(i), i, 30)
        store.get("0")
    assert [store.get(str(i)) for i in (0, 8, 9)] == [0, 8, 9]
    assert (len(store), store.bytes) == (3, 90)
    store.put("0", "again", 60)
    assert (len(store), store.bytes, store.get("9")) == (2, 90, 9)
    store.put("huge", "huge", 101)
    assert store.get("huge") is None
    assert store.bytes == 90


def test_old_images_and_jobs_are_dropped():
    with TestClient(small_app(images=2, jobs=2)) as client:
        client.get("/")
        image_ids = [upload(client, image_file(30 + i, 30)).json()["picture"] for i in range(3)]
        assert [client.get(f"/api/pictures/{i}.png?model=tiny").status_code for i in image_ids] == [404, 200, 200]
        body = {"model": "tiny", "picture": image_ids[2], "methods": ["rollout"], "targets": [0]}
        jobs = [client.post("/api/explain?wait=true", json={**body, "seed": i}).json()["id"] for i in range(3)]
        assert [client.get(f"/api/jobs/{job}").status_code for job in jobs] == [404, 200, 200]
        other = TestClient(client.app)
        assert other.get(f"/api/jobs/{jobs[2]}").json()["items"][0]["map"]


@pytest.mark.slow
def test_interleaved_jobs_do_not_change_the_result_of_a_long_method():
    with TestClient(small_app(grace=300.0)) as client:
        image_id = upload_id(client)
        long = {
            "model": "tiny",
            "picture": image_id,
            "methods": ["rise:masks=999", "tam:steps=99,start=0"],
            "targets": [0],
        }
        job = client.post("/api/explain", json=long).json()
        count = 0
        while client.get(f"/api/jobs/{job['id']}").json()["state"] in ("queued", "running"):
            quick = {**long, "methods": [f"gradtoken:variant={count % 5}", "lrp"], "targets": [1 + count % 4]}
            assert client.post("/api/explain?wait=true", json=quick).json()["state"] == "done"
            if count < 3:
                curves = {"model": "tiny", "picture": image_id, "methods": ["edges"], "steps": 2}
                assert client.post("/api/curves", json=curves).status_code == 202
            count += 1
        server = client.app.state.server
        explanations = server.job(job["id"]).explanations
        pixels, served = server.image(image_id).pixels["tiny"], server.models["tiny"]
        given = {"methods": long["methods"], "target": [[0]], "batch_size": served.batch_size}
        alone = vitrail.explain(served.loaded, served.model_inputs(pixels).args[0], **given)
        assert count
        for name, e in alone.items():
            assert torch.equal(explanations[name].maps, e.maps), name


# -- a real port -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    app = small_app(queue_per_client=50, grace=300.0)
    with running_server(app) as url:
        yield app.state.server, url


def new_client(url, methods=LONG_METHODS):
    """A client with its own cookie, and the body of a request."""
    client = httpx.Client(base_url=url, timeout=120)
    client.get("/")
    return client, {"model": "tiny", "picture": upload_id(client), "methods": methods, "targets": [0]}


def pass_grace(server, job, share=1.1):
    """Act as if a share of the grace had passed since somebody followed a job."""
    job.followed_at -= share * server.limits.grace
    server.cancel_abandoned()


def finished_states(server):
    return [job.state for job, *_ in server.finished_jobs._values.values()]


def test_disconnecting_a_waiting_request_cancels_its_job(server):
    server, url = server
    client, body = new_client(url)
    before = finished_states(server).count("cancelled")
    request = client.build_request("POST", "/api/explain?wait=true", json=body)
    head = [b"POST /api/explain?wait=true HTTP/1.1", *(b": ".join(pair) for pair in request.headers.raw)]
    with socket.create_connection(("127.0.0.1", request.url.port)) as connection:
        connection.sendall(b"\r\n".join([*head, b"", request.content]))
        wait_until(lambda: server.active_jobs)
    client.close()
    wait_until(lambda: not server.active_jobs)
    assert finished_states(server).count("cancelled") == before + 1


def test_closing_the_event_stream_cancels_the_job(server):
    server, url = server
    client, body = new_client(url)
    job = server.job(client.post("/api/explain", json=body).json()["id"])
    with client.stream("GET", f"/api/jobs/{job.id}/events") as stream:
        lines = stream.iter_lines()  # kept, since it closes the stream when it is collected
        assert next(lines) == "event: job"
        pass_grace(server, job)
        assert not job.cancelled.is_set()
    wait_until(lambda: not job.followers)
    pass_grace(server, job)
    wait_until(lambda: not server.active_jobs)
    assert job.state == "cancelled"


def test_other_clients_streams_do_not_cancel_and_the_owner_can_reconnect(server):
    server, url = server
    client, body = new_client(url)
    other, _ = new_client(url)
    job = server.job(client.post("/api/explain", json=body).json()["id"])
    for one in (other, client):
        with one.stream("GET", f"/api/jobs/{job.id}/events") as stream:
            next(stream.iter_lines())
    wait_until(lambda: not job.followers)
    pass_grace(server, job, share=0.5)
    with client.stream("GET", f"/api/jobs/{job.id}/events") as stream:
        lines = stream.iter_lines()
        next(lines)
        pass_grace(server, job)
        assert not job.cancelled.is_set()
        assert client.delete(f"/api/jobs/{job.id}").status_code == 204
        assert "event: end" in list(lines)
    assert job.state == "cancelled"


def test_a_client_with_many_jobs_does_not_block_another():
    app = small_app(queue_per_client=50, grace=300.0)
    with TestClient(app) as busy, TestClient(app) as other:
        server = app.state.server
        busy.get("/")
        other.get("/")
        body = {"model": "tiny", "picture": upload_id(busy), "methods": LONG_METHODS, "targets": [0]}
        jobs = [busy.post("/api/explain", json={**body, "seed": i}).json()["id"] for i in range(6)]
        job = other.post("/api/explain?wait=true", json={**body, "methods": ["rollout"]}).json()
        assert job["state"] == "done"
        left = [job for job in jobs if not server.job(job).finished]
        assert len(left) >= 5
        for job in jobs:
            busy.delete(f"/api/jobs/{job}")
        wait_until(lambda: not server.active_jobs)


def test_jobs_that_nobody_follows_are_cancelled(server):
    server, url = server
    client, body = new_client(url)
    left = server.job(client.post("/api/explain", json=body).json()["id"])
    pass_grace(server, left)
    wait_until(lambda: left.finished)
    assert left.state == "cancelled"
    polled = server.job(client.post("/api/explain", json=body).json()["id"])
    for _ in range(3):  # asking for a job counts as following it
        pass_grace(server, polled, share=0.8)
        assert client.get(f"/api/jobs/{polled.id}").json()["state"] in ("queued", "running")
    client.delete(f"/api/jobs/{polled.id}")
    wait_until(lambda: polled.finished)


def test_one_clients_uploads_do_not_displace_anothers_image():
    app = small_app(images=3)
    with TestClient(app) as victim, TestClient(app) as attacker:
        victim.get("/")
        attacker.get("/")
        image_id = upload_id(victim)
        for i in range(6):
            assert upload(attacker, image_file(31 + i, 30)).is_success
        assert victim.get(f"/api/pictures/{image_id}.png?model=tiny").status_code == 200
        assert len(app.state.server.images) == 3
