"""Fairness: long steps of several clients take turns between two batches, and a short step finds a free slot."""

from __future__ import annotations

import threading
from collections import deque

import pytest
from fastapi.testclient import TestClient

from tests.web.web_case import LONG_METHODS, small_app, tiny_model, upload_id, wait_until
from vitrail.models.loaded import LoadedModel
from vitrail.testing import tiny_vit
from vitrail.web.client_slots import QUANTUM, ClientSlots
from vitrail.web.queue import JobCancelled, Queue, QueuedTask, Step, _Slice


def put_endless(queue, client, stop, ended):
    """Queue a long step that runs batches until an event is set."""

    def run():
        while not stop.wait(0.002):
            queue.between_batches()

    task = QueuedTask(client, deque([Step(run, can_interleave=False)]), lambda problem: ended.append((client, problem)))
    queue.put(task)
    return task


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_long_step_finishes_while_another_client_floods(threads):
    queue, stop, ended = Queue(128, 8, threads, paused=3), threading.Event(), []
    flood = [put_endless(queue, "a", stop, ended) for _ in range(6)]
    wait_until(lambda: flood[0].started)
    batches = []

    def run():
        for _ in range(100):
            batches.append(1)
            stop.wait(0.002)
            queue.between_batches()

    queue.put(QueuedTask("b", deque([Step(run, False)]), lambda problem: ended.append(("b", problem))))
    wait_until(lambda: ended)
    assert ended == [("b", None)]
    assert len(batches) == 100
    assert sum(task.started for task in flood) <= max(1, threads - 1)  # the others of the flood have not begun
    stop.set()
    wait_until(lambda: len(ended) == 7)
    queue.close()


def test_long_steps_leave_a_slot_for_short_ones():
    queue, stop, ended = Queue(128, 8, 2, paused=2), threading.Event(), []
    blocked = threading.Event()
    queue.put(QueuedTask("a", deque([Step(lambda: blocked.wait(60) and None, False)]), lambda _: None))
    put_endless(queue, "b", stop, ended)
    # Neither long step reaches the end of a batch; the short one runs beside the first.
    assert queue.submit("c", lambda: "short").result(30) == "short"
    blocked.set()
    stop.set()
    wait_until(lambda: ended)
    queue.close()


def test_a_long_step_waits_for_a_short_one_of_another_thread():
    queue, order, begun, release = Queue(128, 8, 2, paused=2), [], threading.Event(), threading.Event()

    def run_long():
        begun.wait(30)
        threading.Timer(0.01, release.set).start()
        queue.between_batches()
        order.append("long")

    def run_short():
        begun.set()
        release.wait(30)
        order.append("short")

    ended = []
    queue.put(QueuedTask("a", deque([Step(run_long, False)]), ended.append))
    wait_until(lambda: queue._slots.busy)
    queue.submit("b", run_short).result(30)
    wait_until(lambda: ended)
    assert order == ["short", "long"]
    queue.close()


def test_many_clients_share_few_threads():
    queue, stop, ended = Queue(128, 8, 2, paused=2), threading.Event(), []
    tasks = [put_endless(queue, f"client {i}", stop, ended) for i in range(8)]
    wait_until(lambda: sum(task.started for task in tasks) == 3)  # one runs, two pause, one slot is for short steps
    assert queue.submit("short", lambda: 1).result(30) == 1
    stop.set()
    wait_until(lambda: len(ended) == 8)
    assert all(problem is None for _, problem in ended)
    queue.close()


def test_a_closed_queue_ends_paused_steps():
    queue, stop, ended = Queue(128, 8, 1, paused=2), threading.Event(), []
    tasks = [put_endless(queue, client, stop, ended) for client in "ab"]
    # The step that pauses gives up its slot before the other one has begun, and a closed queue begins none.
    wait_until(lambda: queue._paused and all(task.started for task in tasks))
    stop.set()
    queue.close()
    wait_until(lambda: len(ended) == 2)
    assert {type(problem) for _, problem in ended} <= {JobCancelled, type(None)}
    wait_until(lambda: not any(thread.is_alive() for thread in queue._threads))


def test_a_thread_that_wakes_after_the_queue_was_closed_finds_no_paused_step():
    queue = Queue(128, 8, 1, paused=2)
    queue._paused.append(_Slice(["a"], is_long=True, is_parallel=True))
    queue.close()
    assert queue._next_paused() is None


def test_used_time_decides_between_clients_that_hold_as_many_slots():
    slots = ClientSlots(1)
    slots.arrive("old")
    slots.hold_slot(["old"], is_long=True)
    slots.charge(["old"], 20 * QUANTUM)
    slots.arrive("new")
    assert slots.should_yield("old", 20 * QUANTUM, ["new"])
    assert not slots.should_yield("old", QUANTUM / 2, ["new"])
    assert not slots.should_yield("old", 20 * QUANTUM, ["old"])
    slots.release_slot(["old"], is_long=True)
    slots.hold_slot(["new"], is_long=True)
    slots.charge(["new"], 2 * QUANTUM)
    assert slots.should_yield("new", 2 * QUANTUM, ["old"])  # a newcomer starts with the time of the others
    slots.leave("old")
    slots.arrive("old")
    assert slots.order(["new", "old"]) == ["old", "new"]


def test_a_check_beside_a_flood_equals_the_check_alone():
    checks = []
    for floods in (False, True):
        with TestClient(small_app(workers=2, grace=300.0)) as client, TestClient(client.app) as other:
            body = {"model": "tiny", "picture": upload_id(client), "targets": [0]}
            other.get("/")
            bodies = [{**body, "methods": [method]} for method in LONG_METHODS[: 6 * floods]]
            jobs = [other.post("/api/explain", json=one).json()["id"] for one in bodies]
            client.get("/")
            check = client.post("/api/check?wait=true", json={**body, "methods": ["gradtoken", "leadlight"]}).json()
            assert check["state"] == "done"
            states = [other.get(f"/api/jobs/{job}").json()["state"] for job in jobs]
            assert "done" not in states
            checks.append([item["check"] for item in check["items"]])
            for job in jobs:
                other.delete(f"/api/jobs/{job}")
    assert checks[0] == checks[1]


def test_steps_pause_only_where_threads_have_their_own_copies():
    assert tiny_model().for_workers(3).has_own_copies
    module = tiny_vit()
    module.lock = threading.Lock()  # cannot be copied
    served = tiny_model()
    object.__setattr__(served, "copies", (LoadedModel(module, served.preprocess),))
    assert not served.for_workers(2).has_own_copies
