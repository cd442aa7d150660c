"""Images of the next chunk are read beside the computation, and the table stays the same."""

from __future__ import annotations

import threading

from bench_helpers import TINY, assert_same, open_store, tiny_run  # noqa: F401 - a fixture
from vitrail.bench import LocalEngine, chunk
from vitrail.bench.read_ahead import ReadAhead


def test_the_next_chunk_is_read_before_it_is_asked_for():
    ahead, read = ReadAhead(threads=2), []
    seen = threading.Event()

    def note(index):
        read.append(index)
        seen.set()
        return index * 10

    ahead.start("next", note, [1, 2])
    assert seen.wait(5)
    assert list(ahead.items("next", note, [1, 2])) == [10, 20]
    assert sorted(read) == [1, 2], "read once"


def test_chunks_that_nobody_takes_are_dropped():
    ahead = ReadAhead(threads=1)
    for name in "abcd":
        ahead.start(name, abs, [1])
    assert list(ahead.waiting) == ["c", "d"]
    assert list(ahead.items("a", abs, [-5])) == [5], "read again"


def test_reading_ahead_gives_the_same_table(tiny_run, tmp_path, monkeypatch):  # noqa: F811
    started = []
    start = ReadAhead.start

    def spied(self, name, read, indices):
        started.append(name)
        start(self, name, read, indices)

    monkeypatch.setattr(chunk, "reads_ahead", lambda device: True)
    monkeypatch.setattr(ReadAhead, "start", spied)
    store = open_store(TINY, tmp_path, tmp_path)
    LocalEngine(1).run(store.missing())
    assert len(set(started)) > 1
    assert_same(store, tiny_run[1])
