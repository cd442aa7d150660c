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

#: Number of kills during start-up; the others come as soon as the run has one more part.
EARLY_KILLS = 4


def run(plan: Path, runs: Path) -> None:
    torch.set_num_threads(1)
    store = open_run(plan, runs)
    LocalEngine(1).run(store.missing())
    store.export()


def fork(plan: Path, runs: Path) -> int:
    """Fork a process that runs the plan; return its id."""
    child = os.fork()
    if child == 0:
        try:
            run(plan, runs)
        except BaseException as error:  # noqa: BLE001 - reported, and the fork must end here
            sys.stderr.write(repr(error))
            os._exit(1)
        os._exit(0)
    return child


def run_uninterrupted(plan: Path, runs: Path) -> int:
    """Run to the end; return the number of parts."""
    status = os.waitpid(fork(plan, runs), 0)[1]
    if status:
        sys.exit("an uninterrupted run failed")
    return count_parts(runs)


def count_parts(runs: Path) -> int:
    return len(list(runs.glob("*/parts/part-*.parquet")))


def run_killed(plan: Path, runs: Path, seconds: float, parts: int) -> bool:
    """Kill a run after some seconds and as soon as it has some parts; return False if it ended before."""
    child = fork(plan, runs)
    time.sleep(seconds)
    while count_parts(runs) < parts:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            sys.exit(f"a run ended with status {status} before it had {parts} parts")
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if status and not os.WIFSIGNALED(status):
        sys.exit("a run failed by itself")
    return os.WIFSIGNALED(status)


def main() -> None:
    plan, uninterrupted, killed, kills = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    generator, parts = random.Random(20), []  # noqa: S311 - times of kills, not secrets
    total = run_uninterrupted(plan, uninterrupted)
    while len(parts) < kills:
        early = len(parts) < EARLY_KILLS
        wanted = 0 if early else 1 + (len(parts) - EARLY_KILLS) * (total - 2) // (kills - EARLY_KILLS)
        if run_killed(plan, killed, generator.uniform(0, 0.1) if early else 0.0, wanted):
            parts.append(count_parts(killed))
    run_uninterrupted(plan, killed)
    sys.stdout.write(json.dumps(parts))


if __name__ == "__main__":
    main()
