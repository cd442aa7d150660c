"""A run gives the same table, byte for byte, however it was interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.bench.bench_helpers import TINY, assert_same, open_store, parts_of_one_image, table_bytes
from vitrail.bench.engines import LostTasksError
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.engines.shard import select_shard
from vitrail.errors import DataError, InputError

#: Number of times a run is killed, from its start to its end.
KILLS = 20

SMALL = parts_of_one_image(14)


@pytest.mark.slow
def test_two_workers_give_the_same_bytes_after_one_is_killed(tiny_run, tmp_path):
    store = open_store(TINY, tmp_path, tmp_path)
    engine, killed = LocalEngine(2), []

    def kill_one(_):
        if not killed:
            killed.append(next(p for p in engine.processes if p.is_alive()).pid)
            os.kill(killed[0], signal.SIGKILL)

    engine.run(store.missing(), kill_one)
    assert len(engine.processes) >= 3, "a new worker replaced the killed one"
    assert_same(store, tiny_run[1])


TERMINATED = """
import os, signal, sys
from pathlib import Path
from tests.bench.bench_helpers import TINY, open_store
from vitrail.bench.engines.local import LocalEngine

if __name__ == "__main__":
    engine, here = LocalEngine(2), Path(sys.argv[1])
    try:
        engine.run(open_store(TINY, here, here).missing(), lambda _: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        print([p.is_alive() for p in engine.processes], signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


@pytest.mark.slow
def test_sigterm_stops_the_workers(tiny_run, tmp_path):
    script = tmp_path / "terminated.py"
    script.write_text(TERMINATED, encoding="utf-8")
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(script), str(tmp_path)]
    options = {"capture_output": True, "text": True, "timeout": 300, "env": {**os.environ, "PYTHONPATH": path}}
    done = subprocess.run(command, check=False, **options)  # noqa: S603
    assert done.stdout.split() == ["[False,", "False]", "True"], done.stderr
    assert done.returncode == 128 + signal.SIGTERM
    store = open_store(TINY, tmp_path, tmp_path)
    assert len(store.missing()) < len(store.chunks), "finished parts are kept"
    LocalEngine(1).run(store.missing())
    assert_same(store, tiny_run[1])


@pytest.mark.slow
def test_two_shards_give_the_same_bytes(tiny_run, tmp_path):
    store = open_store(TINY, tmp_path, tmp_path)
    LocalEngine(1).run(select_shard(store.chunks, (1, 2)))
    with pytest.raises(DataError, match=r"3 of 6 parts .* are missing"):
        store.merge()
    LocalEngine(1).run(select_shard(store.chunks, (0, 2)))
    assert_same(store, tiny_run[1])


@pytest.mark.slow
def test_results_do_not_depend_on_the_state_of_onednn(tiny_run):
    """On some CPUs one bfloat16 product disables oneDNN for the rest of the process, and other kernels are used."""
    store, before = tiny_run
    chunk = store.chunks[-1]
    chunk.path.unlink()
    torch.backends.mkldnn.set_flags(False)
    try:
        LocalEngine(1).run(store.missing())
        assert not torch.backends.mkldnn.enabled, "the user's setting is restored"
    finally:
        torch.backends.mkldnn.set_flags(True)
    assert table_bytes(store) == before


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks, to kill many runs quickly")
def test_run_killed_twenty_times_resumes_to_the_same_bytes(tmp_path):
    plan, runs = tmp_path / "plan.toml", [tmp_path / name for name in ("uninterrupted", "killed")]
    plan.write_text(SMALL, encoding="utf-8")
    script = Path(__file__).with_name("kill_runs.py")
    command = [sys.executable, str(script), *map(str, (plan, *runs, KILLS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)
    assert len(parts) == KILLS
    assert parts == sorted(parts), "finished parts are kept"
    assert parts[0] < 14, "the first kills came early"
    assert len(set(parts)) > 5, "kills came while the run worked"
    assert not list(runs[1].glob("*/parts/.*.tmp")), "unfinished files are removed"
    for name in ("results.parquet", "results.csv"):
        uninterrupted, killed = (next(folder.glob(f"*/{name}")).read_bytes() for folder in runs)
        assert uninterrupted == killed, name


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'vitrail[ray]'")
def test_ray_gives_the_same_bytes_after_one_of_two_actors_is_killed(tiny_run, tmp_path, monkeypatch):
    import ray

    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray lowers its workers' priority; on a busy machine they starve

    from vitrail.bench.engines.ray import RayEngine

    store = open_store(TINY, tmp_path, tmp_path)
    engine, killed = RayEngine(workers=2), []

    def kill_soon(_):
        if not killed:
            killed.append(ray.get(engine.actors[0].pid.remote()))
            threading.Timer(0.1, os.kill, (killed[0], signal.SIGKILL)).start()

    engine.run(store.missing(), kill_soon)
    assert killed
    assert_same(store, tiny_run[1])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'vitrail[ray]'")
def test_cluster_that_cannot_be_reached_is_named(monkeypatch):
    import ray

    from vitrail.bench.engines.ray import RayEngine

    def refuse(address, **_):
        raise ConnectionError(f"Failed to connect to Ray cluster at {address}")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(InputError, match=r"no Ray cluster at '127.0.0.1:1' .*ray start --head"):
        RayEngine(address="127.0.0.1:1")._connect(ray)


def test_task_that_kills_every_worker_is_given_up(monkeypatch):
    from vitrail.bench.engines.local import _WorkerPool

    class FatalTask:
        name, maps = "part-x", 1

    pool = _WorkerPool(LocalEngine(2), [], lambda _: None)
    monkeypatch.setattr(pool, "_start", lambda device: None)

    class Process:
        exitcode = -9

        def join(self, _):
            pass

    class Pipe:
        def close(self):
            pass

    for _ in range(3):
        pipe = Pipe()
        pool.workers[pipe] = (Process(), "cpu")
        assert not pool.failed.reasons
        pool._replace_dead(pipe, FatalTask())
    assert "3 workers died on it (exit code -9)" in pool.failed.reasons["part-x"]
    with pytest.raises(LostTasksError, match="1 of 0 parts could not be computed, part-x: 3 workers died"):
        pool.failed.check()


def test_other_tasks_go_on_when_one_fails():
    class Task:
        maps = 1

        def __init__(self, name):
            self.name = name

        def prepare(self, device):
            pass

        def compute(self, _):
            if self.name in failing:
                raise RuntimeError("no such thing\nand more")
            return lambda: computed.append(self.name)

    computed, failing, names = [], {"b"}, "abcd"
    with pytest.raises(
        LostTasksError, match=r"1 of 4 parts could not be computed, b: RuntimeError: no such thing"
    ) as e:
        LocalEngine(1).run([Task(name) for name in names])
    assert computed == ["a", "c", "d"]
    assert e.value.reasons == {"b": "RuntimeError: no such thing"}
    computed, failing = [], set(names)
    with pytest.raises(LostTasksError, match="3 of 4 parts"):  # it stops: nothing works
        LocalEngine(1).run([Task(name) for name in names])
