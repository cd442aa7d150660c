"""Case of `vitrail bench` on a Ray cluster of two nodes on this machine, one of which is killed."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import Run

PLAN = """
name = "cluster"
models = ["scenes"]
methods = ["gradtoken", "vtranm", "attnlrp"]
protocols = ["chefer21-tokens", "complexity"]
batch = 32
chunk = 1
dataset = {{ name = "scenes", options = {{ split = "test", count = {count}, objects = 1 }} }}
"""
#: Ray lowers its workers' priority; one thread each, so that workers do not share cores. All processes of a cluster
#: and its users need the same token.
ENVIRONMENT = {
    **os.environ, "RAY_worker_niceness": "0", "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
}  # fmt: skip
#: Most seconds that a run may take.
LIMIT = 900


def free_port() -> int:
    """A port on the loopback address that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def start_node(port: int, head: bool) -> subprocess.Popen[bytes]:
    """Start a node in a process group of its own: the head of a new cluster, or one that joins it."""
    ray = Path(sys.executable).with_name("ray")
    place = ["--head", f"--port={port}", "--include-dashboard=false"] if head else [f"--address=127.0.0.1:{port}"]
    words = [str(ray), "start", *place, "--num-cpus=1", "--disable-usage-stats", "--block"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    node = subprocess.Popen(words, env=ENVIRONMENT, **quiet)  # noqa: S603 - our own command
    time.sleep(8)
    return node


def kill_node(node: subprocess.Popen[bytes]) -> None:
    """End all processes of a node, and no other."""
    if node.poll() is None:
        os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def bench(plan: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start ``vitrail bench`` as a user would."""
    words = [sys.executable, "-m", "vitrail", "bench", str(plan), "--out", str(out), *options]
    with out.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(words, env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603


def finish(process: subprocess.Popen[bytes], out: Path) -> None:
    """Wait for a run; its last lines are the error message if it fails."""
    if process.wait(LIMIT) != 0:
        raise SystemExit(out.with_suffix(".log").read_text(encoding="utf-8")[-2000:])


def parts(out: Path) -> list[Path]:
    """Parts that a run has written."""
    return [path for path in out.glob("*/parts/*") if not path.name.startswith(".")]


def table(out: Path) -> bytes:
    """The finished table of a run."""
    return next(out.glob("*/results.csv")).read_bytes()


def killed_node(plan: Path, out: Path, expected: int) -> dict[str, Any]:
    """Run on two nodes, kill the second after a third of the parts, and say what happened."""
    port, process, nodes = free_port(), None, list[subprocess.Popen[bytes]]()
    try:
        nodes += [start_node(port, head=True)]
        nodes += [start_node(port, head=False)]
        process = bench(plan, out, "--engine", "ray", "--address", f"127.0.0.1:{port}", "--workers", "2")
        while len(parts(out)) < expected // 3 and process.poll() is None:
            time.sleep(0.1)
        before = len(parts(out))
        kill_node(nodes[1])
        finish(process, out)
    finally:
        if process is not None and process.poll() is None:
            process.kill()
        for node in reversed(nodes):
            kill_node(node)
    return {"parts": expected, "parts_before_the_kill": before, "parts_after": len(parts(out)) - before}


def ray_cluster(run: Run, *, scenes: int = 48, workers: tuple[int, ...] = (1, 2, 4)) -> dict[str, Any]:
    """`vitrail bench` on a Ray cluster of two nodes, one of which is killed; parts per second by workers.

    After a third of the parts, all processes of the second node are killed. The table must have the same bytes as that
    of a run without a cluster. The rate is taken between the first and the last part, so start-up does not count.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nodes end with this program, also when it is terminated
    with tempfile.TemporaryDirectory(prefix="vitrail-ray-") as name:
        folder, rates = Path(name), dict[str, float]()
        plan = folder / "cluster.toml"
        plan.write_text(PLAN.format(count=run.count(scenes, 6)), encoding="utf-8")
        for count in workers[:1] if run.tiny else workers:
            out = folder / f"local{count}"
            finish(bench(plan, out, "--workers", str(count)), out)
            times = sorted(path.stat().st_mtime for path in parts(out))
            rates[str(count)] = round((len(times) - 1) / (times[-1] - times[0]), 3)
            print(f"{count} workers: {rates[str(count)]} parts per second", flush=True)
        first = folder / f"local{workers[0]}"
        found = killed_node(plan, folder / "cluster", len(parts(first)))
        found["same_table"] = table(folder / "cluster") == table(first)
    print(found, flush=True)
    return {"parts_per_second": rates, "killed_node": found}
