"""Who is next, who has gone away, and what is forgotten."""

from __future__ import annotations

import threading
import time
from collections import deque

import httpx
import pytest
import torch
from fastapi.testclient import TestClient

import vitrail
from vitrail.web.bounded_store import BoundedStore
from vitrail.web.errors import ApiError
from vitrail.web.limits import Limits
from vitrail.web.queue import Queue, QueuedTask, Step
from web_case import LONG, app_of, picture_file, running, send, sent, until


class Log:
    """A queue whose steps note whose they were; nothing runs before ``go``."""

    def __init__(self, **limits):
        self.queue, self.done, self.gate = Queue(Limits(**limits)), [], threading.Event()
        first = QueuedTask("gate", deque([Step(lambda: self.gate.wait(10) and None)]), lambda _: None)
        self.queue.put(first)
        until(lambda: first.begun)

    def put(self, client, steps=1, short=True, work=None):
        def run():
            self.done.append(client)
            if work:
                work()

        task = QueuedTask(client, deque(Step(run, short) for _ in range(steps)), self.done.append)
        self.queue.put(task)
        return task

    def go(self, count):
        self.gate.set()
        until(lambda: len(self.done) >= count)
        self.queue.close()
        return [one for one in self.done if one is not None]


def test_clients_take_turns():
    log = Log()
    greedy = [log.put("a") for _ in range(5)]
    modest = log.put("b")
    late = log.put("c", steps=2)
    assert [log.queue.ahead(task) for task in (*greedy, modest, late)] == [1, 4, 5, 6, 7, 2, 3]
    assert log.go(15) == ["a", "b", "c", "a", "c", "a", "a", "a"]


def test_short_work_is_let_in_while_long_work_goes_on():
    log = Log()
    looks = iter(range(3))
    log.put("a", short=False, work=lambda: [log.queue.let_in() for _ in looks])
    log.put("b", steps=2)
    log.put("c", short=False)
    log.put("a")
    assert log.go(8) == ["a", "b", "a", "b", "c"]


def test_queues_are_bounded_for_each_and_for_all():
    log = Log(each=2, queue=4)
    log.put("a")
    log.put("a")
    with pytest.raises(ApiError, match="you have"):
        log.put("a")
    log.put("b")
    with pytest.raises(ApiError, match="all clients"):
        log.put("c")
    log.go(6)
    with pytest.raises(ApiError, match="shutting down"):
        log.put("d")


def test_work_can_be_taken_back_and_failures_end_nothing_else():
    log = Log()
    broken = log.put("a", work=lambda: 1 / 0)
    taken = log.put("b")
    assert log.queue.withdraw(taken)
    assert not log.queue.withdraw(taken)
    log.put("c")
    log.gate.set()
    until(lambda: len(log.done) == 4)
    assert isinstance(log.done[1], ZeroDivisionError)
    assert log.done[2:] == ["c", None]
    assert not log.queue.withdraw(broken)
    assert log.queue.ask("a", lambda: 7).result(10) == 7
    with pytest.raises(ZeroDivisionError):
        log.queue.ask("a", lambda: 1 / 0).result(10)
    log.queue.close()


def test_stores_forget_by_number_and_bytes():
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


def test_pictures_and_results_are_forgotten_in_time():
    with TestClient(app_of(pictures=2, kept=2)) as one:
        held = [send(one, picture_file(30 + i, 30)).json()["picture"] for i in range(3)]
        assert [one.get(f"/api/pictures/{p}.png?model=tiny").status_code for p in held] == [404, 200, 200]
        body = {"model": "tiny", "picture": held[2], "methods": ["rollout"], "targets": [0]}
        jobs = [one.post("/api/explain?wait=true", json={**body, "seed": i}).json()["id"] for i in range(3)]
        assert [one.get(f"/api/jobs/{job}").status_code for job in jobs] == [404, 200, 200]
        other = TestClient(one.app)
        assert other.get(f"/api/jobs/{jobs[2]}").json()["items"][0]["map"]


def test_a_long_method_is_the_same_whoever_comes_between():
    with TestClient(app_of()) as one:
        held = sent(one)
        long = {"model": "tiny", "picture": held, "methods": ["rise:masks=999", "tam:steps=99,start=0"], "targets": [0]}
        job = one.post("/api/explain", json=long).json()
        between = 0
        while one.get(f"/api/jobs/{job['id']}").json()["state"] in ("queued", "running"):
            quick = {**long, "methods": [f"gradtoken:variant={between % 5}", "lrp"], "targets": [1 + between % 4]}
            assert one.post("/api/explain?wait=true", json=quick).json()["state"] == "done"
            if between < 3:
                curves = {"model": "tiny", "picture": held, "methods": ["edges"], "steps": 2}
                assert one.post("/api/curves", json=curves).status_code == 202
            between += 1
        found = one.app.state.studio.job(job["id"]).found
        seen = one.app.state.studio.picture(held).seen["tiny"]
        served = one.app.state.studio.models["tiny"]
        alone = vitrail.explain(
            served.about, served.model_inputs(seen).args[0], methods=long["methods"], target=[[0]], batch_size=8
        )
        assert between
        for name, e in alone.items():
            assert torch.equal(found[name].maps, e.maps), name


# -- a real port -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    app = app_of(each=50)
    with running(app) as url:
        yield app.state.studio, url


def asked(url, methods=LONG):
    client = httpx.Client(base_url=url, timeout=30)
    client.get("/")
    return client, {"model": "tiny", "picture": sent(client), "methods": methods, "targets": [0]}


def states(studio):
    return [job.state for job, _ in studio.finished._kept.values()]


def test_a_waiting_client_that_goes_away_frees_its_work(server):
    studio, url = server
    client, body = asked(url)
    before = states(studio).count("cancelled")
    with pytest.raises(httpx.ReadTimeout):
        client.post("/api/explain?wait=true", json=body, timeout=1.0)
    client.close()
    until(lambda: not studio.busy)
    assert states(studio).count("cancelled") == before + 1


def test_a_closed_stream_frees_its_work_after_a_while(server):
    studio, url = server
    client, body = asked(url)
    job = client.post("/api/explain", json=body).json()
    with client.stream("GET", f"/api/jobs/{job['id']}/events") as news:
        assert next(news.iter_lines()) == "event: job"
    until(lambda: not studio.busy)
    assert studio.job(job["id"]).state == "cancelled"


def test_somebody_elses_closed_stream_frees_nothing_and_coming_back_is_in_time(server):
    studio, url = server
    client, body = asked(url)
    job = client.post("/api/explain", json=body).json()["id"]
    stranger, _ = asked(url)
    with stranger.stream("GET", f"/api/jobs/{job}/events") as news:
        next(news.iter_lines())
    with client.stream("GET", f"/api/jobs/{job}/events") as news:
        next(news.iter_lines())
    with client.stream("GET", f"/api/jobs/{job}/events") as news:
        lines = news.iter_lines()
        next(lines)
        time.sleep(3 * studio.limits.grace)
        assert not studio.job(job).over
        assert client.delete(f"/api/jobs/{job}").status_code == 204
        assert "event: end" in list(lines)
    assert studio.job(job).state == "cancelled"


def test_a_client_that_asks_for_much_does_not_hold_up_another(server):
    studio, url = server
    greedy, body = asked(url)
    jobs = [greedy.post("/api/explain", json={**body, "seed": i}).json()["id"] for i in range(6)]
    modest, quick = asked(url, ["rollout"])
    answer = modest.post("/api/explain?wait=true", json=quick).json()
    assert answer["state"] == "done"
    left = [job for job in jobs if not studio.job(job).over]
    assert len(left) >= 5
    for job in jobs:
        greedy.delete(f"/api/jobs/{job}")
    until(lambda: not studio.busy)
