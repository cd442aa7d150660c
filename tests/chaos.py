"""Runs a plan once in peace and once killed over and over; a program of its own, which forks.

Arguments: the plan, a folder for the run in peace, one for the other, and the number of kills. Writes as JSON, for each
kill, how many parts were there. This process imports and forks and does nothing else: a copy has none of the threads
that kernels start, and would wait for them for ever.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import PIL.Image  # noqa: F401 - imported once, and not again in every copy
import pyarrow.parquet  # noqa: F401
import safetensors.torch  # noqa: F401
import torch

from vitrail.bench.context import open_context
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.results_store import ResultsStore
from vitrail.bench.validate import read_plan

#: Kills while a run starts; the others hit its work.
COLD = 4


def run(plan: Path, runs: Path, begun: int) -> None:
    torch.set_num_threads(1)
    checked, text = read_plan(plan)
    store = ResultsStore.create(open_context(checked.model_dump_json()), runs, text)
    os.write(begun, b"x")
    LocalEngine(1).run(store.missing())
    store.export()


def fork(plan: Path, runs: Path) -> tuple[int, int]:
    """A copy of this process that runs the plan, and what to read from to know that its work begins."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run(plan, runs, writing)
        except BaseException as error:  # noqa: BLE001 - told, and the copy must end here
            sys.stderr.write(repr(error))
            os._exit(1)
        os._exit(0)
    os.close(writing)  # so that reading ends when the copy does
    return child, reading


def peaceful(plan: Path, runs: Path) -> tuple[float, float]:
    """Run to the end; seconds until the work begins, and from there on."""
    began = time.perf_counter()
    child, begun = fork(plan, runs)
    os.read(begun, 1)
    ready = time.perf_counter()
    status = os.waitpid(child, 0)[1]
    os.close(begun)
    if status:
        sys.exit("a run in peace failed")
    return ready - began, time.perf_counter() - ready


def killed(plan: Path, runs: Path, seconds: float, working: bool) -> bool:
    """Kill a run after some time, counted from its start or from where its work begins, unless it was faster."""
    child, begun = fork(plan, runs)
    if working:
        os.read(begun, 1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    os.close(begun)
    if status and not os.WIFSIGNALED(status):
        sys.exit("a run failed by itself")
    return os.WIFSIGNALED(status)


def main() -> None:
    plan, peace, chaos, kills = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    moments, landed = random.Random(20), []  # noqa: S311 - moments, not secrets
    starting, working = peaceful(plan, peace)

    def attempt(longest: float, working: bool) -> bool:
        hit = killed(plan, chaos, moments.uniform(0, longest), working)
        if hit:
            landed.append(len(list(chaos.glob("*/parts/part-*.parquet"))))
        return hit

    while len(landed) < COLD:
        attempt(starting, working=False)
    longest = 3 * working / (kills - COLD)
    while len(landed) < kills:
        if not attempt(longest, working=True):  # it was done before it was killed: less time for the next
            longest *= 0.7
    peaceful(plan, chaos)
    sys.stdout.write(json.dumps(landed))


if __name__ == "__main__":
    main()
