"""Run a plan once without interruption and once killed many times; a program of its own, which forks.

Arguments: the plan, a folder for the uninterrupted run, one for the killed run, and the number of kills. Prints as JSON
the number of parts after each kill. This process only imports and forks: a fork has none of the threads that kernels
start, and would wait for them forever.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import PIL.Image  # noqa: F401 - imported once here, not in every fork
import pyarrow.parquet  # noqa: F401
import safetensors.torch  # noqa: F401
import torch

from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.run import open_run

#: Number of kills during start-up; the others come while the run works.
EARLY_KILLS = 4


def run(plan: Path, runs: Path, started: int) -> None:
    torch.set_num_threads(1)
    store = open_run(plan, runs)
    os.write(started, b"x")
    LocalEngine(1).run(store.missing())
    store.export()


def fork(plan: Path, runs: Path) -> tuple[int, int]:
    """Fork a process that runs the plan; return its id, and a pipe that is written to when its work begins."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run(plan, runs, writing)
        except BaseException as error:  # noqa: BLE001 - reported, and the fork must end here
            sys.stderr.write(repr(error))
            os._exit(1)
        os._exit(0)
    os.close(writing)  # so that reading ends when the fork does
    return child, reading


def run_uninterrupted(plan: Path, runs: Path) -> tuple[float, float]:
    """Run to the end; return the seconds until the work begins, and the seconds of the work."""
    start = time.perf_counter()
    child, started = fork(plan, runs)
    os.read(started, 1)
    ready = time.perf_counter()
    status = os.waitpid(child, 0)[1]
    os.close(started)
    if status:
        sys.exit("an uninterrupted run failed")
    return ready - start, time.perf_counter() - ready


def run_killed(plan: Path, runs: Path, seconds: float, working: bool) -> bool:
    """Kill a run after some seconds, counted from its start or from its work; return False if it ended before."""
    child, started = fork(plan, runs)
    if working:
        os.read(started, 1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(started)
    if status and not os.WIFSIGNALED(status):
        sys.exit("a run failed by itself")
    return os.WIFSIGNALED(status)


def main() -> None:
    plan, uninterrupted, killed, kills = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    generator, parts = random.Random(20), []  # noqa: S311 - times of kills, not secrets
    starting, working = run_uninterrupted(plan, uninterrupted)

    def attempt(longest: float, working: bool) -> bool:
        was_killed = run_killed(plan, killed, generator.uniform(0, longest), working)
        if was_killed:
            parts.append(len(list(killed.glob("*/parts/part-*.parquet"))))
        return was_killed

    while len(parts) < EARLY_KILLS:
        attempt(starting, working=False)
    longest = 3 * working / (kills - EARLY_KILLS)
    while len(parts) < kills:
        if not attempt(longest, working=True):  # it ended before it was killed: less time for the next
            longest *= 0.7
    run_uninterrupted(plan, killed)
    sys.stdout.write(json.dumps(parts))


if __name__ == "__main__":
    main()
