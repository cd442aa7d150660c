"""A bench run on a Ray cluster of two nodes, one of which is killed; and parts per second by number of workers.

    python benchmarks/ray_cluster.py --out benchmarks/results/ray-cluster.json

The cluster is two ``ray start`` processes on this machine, one core each. After a third of the parts, all
processes of the second node are killed. The table must have the same bytes as that of a run without a cluster. The
rate is taken between the first and the last part that was written, so start-up does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vitrail.pipeline.provenance import versions

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


class RayNode:
    """A node of a cluster on this machine, in a process group of its own.

    Args:
        port: Port of the head.
        head: Whether this node is the head of a new cluster; otherwise it joins the one at ``port``.
    """

    def __init__(self, port: int, head: bool) -> None:
        ray = Path(sys.executable).with_name("ray")
        place = ["--head", f"--port={port}", "--include-dashboard=false"] if head else [f"--address=127.0.0.1:{port}"]
        words = [str(ray), "start", *place, "--num-cpus=1", "--disable-usage-stats", "--block"]
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        self.process = subprocess.Popen(words, env=ENVIRONMENT, **quiet)  # noqa: S603 - our own command

    def kill(self) -> None:
        """End all processes of this node, and no other."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


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


def rate(out: Path) -> float:
    """Parts per second between the first and the last part."""
    times = sorted(path.stat().st_mtime for path in parts(out))
    return (len(times) - 1) / (times[-1] - times[0])


def table(out: Path) -> bytes:
    """The finished table of a run."""
    return next(out.glob("*/results.csv")).read_bytes()


def killed_node(plan: Path, folder: Path, expected: int) -> dict[str, Any]:
    """Run on two nodes, kill the second after a third of the parts, and say what happened."""
    port, out, process = free_port(), folder / "cluster", None
    nodes = [RayNode(port, head=True)]
    try:
        time.sleep(8)
        nodes.append(RayNode(port, head=False))
        time.sleep(8)
        process = bench(plan, out, "--engine", "ray", "--address", f"127.0.0.1:{port}", "--workers", "2")
        while len(parts(out)) < expected // 3 and process.poll() is None:
            time.sleep(0.1)
        before = len(parts(out))
        nodes[1].kill()
        finish(process, out)
    finally:
        if process is not None and process.poll() is None:
            process.kill()
        for node in reversed(nodes):
            node.kill()
    return {"parts": expected, "parts_before_the_kill": before, "parts_after": len(parts(out)) - before}


def main() -> None:
    """Run without a cluster with 1, 2 and 4 workers, then on the cluster; write rates and the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=48, help="number of scenes")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nodes end with this script, also when it is terminated
    folder = Path(tempfile.mkdtemp(prefix="vitrail-ray-"))
    try:
        plan = folder / "cluster.toml"
        plan.write_text(PLAN.format(count=args.count), encoding="utf-8")
        rates = {}
        for workers in args.workers:
            out = folder / f"local{workers}"
            finish(bench(plan, out, "--workers", str(workers)), out)
            rates[str(workers)] = round(rate(out), 3)
            print(f"{workers} workers: {rates[str(workers)]} parts per second", flush=True)
        first = folder / f"local{args.workers[0]}"
        found = killed_node(plan, folder, len(parts(first)))
        found["same_table"] = table(folder / "cluster") == table(first)
        print(found, flush=True)
    finally:
        shutil.rmtree(folder)
    manifest = {"cores": os.cpu_count(), "scenes": args.count, "versions": versions()}
    text = json.dumps({"manifest": manifest, "parts_per_second": rates, "killed_node": found}, indent=1)
    args.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
