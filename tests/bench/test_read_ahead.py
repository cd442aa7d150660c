"""Images of the next chunk are read beside the computation, and the table stays the same."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.bench.bench_helpers import TINY, assert_same, open_store
from vitrail.bench import LocalEngine, chunk
from vitrail.bench.engines import LostTasksError
from vitrail.bench.read_ahead import ReadAhead
from vitrail.errors import OutputError


def test_the_next_chunk_is_read_before_it_is_asked_for():
    ahead, read = ReadAhead(list, threads=2), []
    seen = threading.Event()

    def note(index):
        read.append(index)
        seen.set()
        return index * 10

    ahead.start("next", note, [1, 2, 3], 2)
    assert seen.wait(120)
    assert list(ahead.batches("next", note, [1, 2, 3], 2)) == [[10, 20], [30]]
    assert sorted(read) == [1, 2, 3], "read once"


def test_chunks_that_nobody_takes_are_dropped():
    ahead = ReadAhead(sum, threads=1)
    for name in "abcd":
        ahead.start(name, abs, [1], 1)
    assert list(ahead.waiting) == ["c", "d"]
    assert list(ahead.batches("a", abs, [-5], 1)) == [5], "read again"


def test_interrupted_run_reads_nothing_more():
    ahead, first, go_on, read = ReadAhead(list, threads=1), threading.Event(), threading.Event(), []

    def note(index):
        read.append(index)
        first.set()
        assert go_on.wait(120)
        return index

    class Interrupted:
        name, maps = "a", 1

        def prepare(self, _device):
            ahead.start("a", note, range(100), 2)

        def compute(self, _device):
            assert first.wait(120)
            raise KeyboardInterrupt

    readers = ahead.readers
    with pytest.raises(KeyboardInterrupt):
        LocalEngine(1).run([Interrupted()])
    go_on.set()
    readers.shutdown()  # as the end of the process does
    assert read == [0], "only what was being read is finished"
    assert list(ahead.batches("b", abs, [-1], 1)) == [[1]], "it can be used again"


def test_time_spent_waiting_for_files_is_counted(monkeypatch):
    ahead, asked, clock = ReadAhead(list, threads=1), threading.Event(), [0.0]

    def now():
        time = clock[0]
        asked.set()
        return time

    def read(index):
        asked.wait(120)
        clock[0] += 3
        return index

    monkeypatch.setattr("vitrail.bench.read_ahead.perf_counter", now)
    assert list(ahead.batches("slow", read, [1], 1)) == [[1]]
    assert ahead.waited == 3
    ahead.start("ready", abs, [1], 1)
    assert list(ahead.batches("ready", abs, [1], 1)) == [[1]]
    assert ahead.waited == 3


@pytest.mark.slow
def test_reading_ahead_gives_the_same_table(tiny_run, tmp_path, monkeypatch):
    started = []
    start = ReadAhead.start

    def spied(self, name, read, indices, size):
        started.append(name)
        start(self, name, read, indices, size)

    monkeypatch.setattr(chunk, "reads_ahead", lambda device: True)
    monkeypatch.setattr(ReadAhead, "start", spied)
    store = open_store(TINY, tmp_path, tmp_path)
    LocalEngine(1).run(store.missing())
    assert len(set(started)) > 1
    assert_same(store, tiny_run[1])


class WrittenTask:
    """A task whose computing and writing are noted."""

    def __init__(self, name, log, computing=None, writing=None):
        self.name, self.maps, self.log, self.computing, self.writing = name, 1, log, computing, writing

    def prepare(self, _device):
        self.log.append(f"prepare {self.name}")

    def compute(self, _device):
        self.log.append(f"compute {self.name}")
        if self.computing is not None:
            raise self.computing

        def write():
            if self.writing is not None:
                raise self.writing
            self.log.append(f"write {self.name}")
            return Path(self.name)

        return write


@pytest.mark.parametrize(
    ("stop", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (ValueError("no"), LostTasksError)]
)
def test_what_was_computed_is_written_whatever_stops_the_run(stop, raised):
    log, done = [], []
    tasks = [WrittenTask("a", log), WrittenTask("b", log), WrittenTask("c", log, computing=stop)]
    with pytest.raises(raised):
        LocalEngine(1).run(tasks, lambda task: done.append(task.name))
    assert done == ["a", "b"]
    assert {"write a", "write b"} <= set(log)


def test_part_that_cannot_be_written_stops_the_run():
    log, done = [], []
    tasks = [
        WrittenTask("a", log),
        WrittenTask("b", log, writing=OutputError("full")),
        *(WrittenTask(n, log) for n in "cd"),
    ]
    with pytest.raises(OutputError, match="full"):
        LocalEngine(1).run(tasks, lambda task: done.append(task.name))
    assert done == ["a"]
    assert "compute d" not in log
