"""However a run was disturbed, its table is the same, byte for byte."""

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

from benching import TINY, assert_same, base, store_of, table_bytes  # noqa: F401 - a fixture
from vitrail.bench.engines.local import LocalEngine, WorkerError
from vitrail.bench.engines.shard import share
from vitrail.errors import DataError

#: How often a run is killed, from its start to its end.
KILLS = 20

SMALL = """
name = "small"
models = ["cifar10"]
methods = ["raw_attention", "random"]
controls = false
protocols = ["complexity"]
batch = 1
chunk = 1
dataset = { name = "scenes", options = { split = "test", count = 14, objects = 1 } }
"""


def test_two_workers_one_of_them_killed_give_the_same_bytes(base, tmp_path):  # noqa: F811
    store = store_of(TINY, tmp_path, tmp_path)
    engine, killed = LocalEngine(2), []

    def kill_one(_):
        if not killed:
            killed.append(next(p for p in engine.processes if p.is_alive()).pid)
            os.kill(killed[0], signal.SIGKILL)

    engine.run(store.missing(), kill_one)
    assert len(engine.processes) >= 3, "a new worker took its place"
    assert_same(store, base[1])


ENDED = """
import os, signal, sys
from pathlib import Path
from benching import TINY, store_of
from vitrail.bench.engines.local import LocalEngine

if __name__ == "__main__":
    engine, here = LocalEngine(2), Path(sys.argv[1])
    try:
        engine.run(store_of(TINY, here, here).missing(), lambda _: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        print([p.is_alive() for p in engine.processes], signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


def test_a_request_to_end_ends_the_workers_too(base, tmp_path):  # noqa: F811
    script = tmp_path / "ended.py"
    script.write_text(ENDED, encoding="utf-8")
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(script), str(tmp_path)]
    given = {"capture_output": True, "text": True, "timeout": 300, "env": {**os.environ, "PYTHONPATH": path}}
    done = subprocess.run(command, check=False, **given)  # noqa: S603
    assert done.stdout.split() == ["[False,", "False]", "True"], done.stderr
    assert done.returncode == 128 + signal.SIGTERM
    store = store_of(TINY, tmp_path, tmp_path)
    assert len(store.missing()) < len(store.chunks), "what was done stays done"
    LocalEngine(1).run(store.missing())
    assert_same(store, base[1])


def test_two_shards_give_the_same_bytes(base, tmp_path):  # noqa: F811
    store = store_of(TINY, tmp_path, tmp_path)
    LocalEngine(1).run(share(store.chunks, (1, 2)))
    with pytest.raises(DataError, match=r"3 of 6 parts .* are missing"):
        store.merge()
    LocalEngine(1).run(share(store.chunks, (0, 2)))
    assert_same(store, base[1])


def test_what_a_process_did_before_does_not_matter(base):  # noqa: F811
    """On some CPUs one product in bfloat16 turns oneDNN off for the rest of the process, and other kernels are used."""
    store, before = base
    chunk = store.chunks[-1]
    chunk.path.unlink()
    torch.backends.mkldnn.set_flags(False)
    try:
        LocalEngine(1).run(store.missing())
        assert not torch.backends.mkldnn.enabled, "what the user has set is left as it was"
    finally:
        torch.backends.mkldnn.set_flags(True)
    assert table_bytes(store) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="copies of a process are needed to kill many quickly")
def test_a_run_killed_at_twenty_moments_goes_on_to_the_same_bytes(tmp_path):
    plan, runs = tmp_path / "plan.toml", [tmp_path / name for name in ("peace", "chaos")]
    plan.write_text(SMALL, encoding="utf-8")
    script = Path(__file__).with_name("chaos.py")
    command = [sys.executable, str(script), *map(str, (plan, *runs, KILLS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    landed = json.loads(done.stdout)
    assert len(landed) == KILLS
    assert landed == sorted(landed), "what is done stays done"
    assert landed[0] < 14, "the first kills came early"
    assert not list(runs[1].glob("*/parts/.*.tmp")), "what was left unfinished is swept away"
    for name in ("results.parquet", "results.csv"):
        peace, chaos = (next(folder.glob(f"*/{name}")).read_bytes() for folder in runs)
        assert peace == chaos, name


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'vitrail[ray]'")
def test_ray_with_one_of_two_actors_killed_gives_the_same_bytes(base, tmp_path, monkeypatch):  # noqa: F811
    import ray

    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's workers stand back otherwise, for ever on a busy machine

    from vitrail.bench.engines.ray import RayEngine

    store = store_of(TINY, tmp_path, tmp_path)
    engine, killed = RayEngine(workers=2), []

    def kill_soon(_):
        if not killed:
            killed.append(ray.get(engine.actors[0].pid.remote()))
            threading.Timer(0.1, os.kill, (killed[0], signal.SIGKILL)).start()

    engine.run(store.missing(), kill_soon)
    assert killed
    assert_same(store, base[1])


def test_work_that_kills_every_worker_is_given_up(monkeypatch):
    from vitrail.bench.engines.local import _Pool

    class Dead:
        name, maps = "part-x", 1

    pool = _Pool(LocalEngine(2), [], lambda _: None)
    monkeypatch.setattr(pool, "_start", lambda device: None)

    class Process:
        exitcode = -9

        def join(self, _):
            pass

    class Pipe:
        def close(self):
            pass

    for attempt in (1, 2, 3):
        pipe = Pipe()
        pool.workers[pipe] = (Process(), "cpu")
        if attempt < 3:
            pool._died(pipe, Dead())
        else:
            with pytest.raises(WorkerError, match=r"3 workers died over part-x .exit code -9"):
                pool._died(pipe, Dead())
