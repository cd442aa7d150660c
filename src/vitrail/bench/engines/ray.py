"""The engine for many machines: Ray actors, each with one loaded model, over a folder all of them see."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from vitrail.bench.chunk import BenchTask, run_chunk
from vitrail.bench.engines.local import Done, WorkerError
from vitrail.bench.explainer import reason
from vitrail.errors import OutputError, require

#: How often Ray does a piece of work again whose actor died under it.
RETRIES = 3


class Actor:
    """A worker: a process that keeps its models loaded between pieces of work."""

    def __init__(self, device: str, threads: int) -> None:
        import torch

        self.device = device
        if device == "cpu":
            torch.set_num_threads(threads)

    def run(self, task: BenchTask) -> tuple[str, str] | None:
        """Do a piece of work; None, or what went wrong. Errors travel as words: their classes may not be there."""
        try:
            run_chunk(task, self.device)
        except OutputError as error:
            return "output", str(error)
        except Exception as error:  # noqa: BLE001 - told to the driver, which raises it
            return "other", f"{task.name}: {reason(error)}"
        return None

    def pid(self) -> int:
        """The process."""
        return os.getpid()


class RayEngine:
    """Runs pieces of work on a Ray cluster, or on this machine where there is none.

    An actor that dies is started again and its work done again; as a part appears whole or not at all, that is safe.

    Args:
        workers: How many actors; by default one for each GPU of the cluster, or for each pair of core and thread.
        device: "cpu" or "cuda": what an actor takes for itself.
        threads: Of torch in each actor on the CPU.
        address: Of a running cluster: "auto", a host and port, or ``ray://…``. Else RAY_ADDRESS, else a local one.
    """

    def __init__(
        self, workers: int | None = None, device: str = "cpu", threads: int = 1, address: str | None = None
    ) -> None:
        self.workers, self.device, self.threads = workers, device, threads
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.actors: list[Any] = []

    def run(self, tasks: Sequence[BenchTask], done: Done = lambda _: None) -> None:
        """Do all of them; ``done`` is called with each that is finished.

        Raises:
            VitrailError: A piece of work cannot be done. What is done stays done.
        """
        if not tasks:
            return
        ray = require("ray", "ray", "run on a cluster")
        ours = not ray.is_initialized()
        if ours:
            self._connect(ray)
        try:
            self._run(ray, list(tasks), done)
        finally:
            for actor in self.actors:
                ray.kill(actor)
            self.actors = []
            if ours:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        quiet = {"log_to_driver": False, "configure_logging": False}
        if self.address:
            ray.init(self.address, **quiet)
        else:
            cores = self.workers * self.threads if self.workers and self.device == "cpu" else None
            ray.init(num_cpus=cores, include_dashboard=False, **quiet)

    def _run(self, ray: Any, tasks: list[BenchTask], done: Done) -> None:
        gpu = self.device != "cpu"
        there = ray.cluster_resources()
        count = self.workers or int(there.get("GPU", 1) if gpu else there.get("CPU", 1) // self.threads) or 1
        kind = ray.remote(
            num_gpus=1 if gpu else 0, num_cpus=1 if gpu else self.threads, max_restarts=-1, max_task_retries=RETRIES
        )(Actor)
        # Ray shows an actor its own GPU only, which is then the first it sees.
        device = "cuda:0" if gpu else "cpu"
        self.actors = [kind.remote(device, self.threads) for _ in range(min(count, len(tasks)))]
        todo = list(reversed(tasks))
        busy: dict[Any, tuple[Any, BenchTask]] = {}

        def hand(actor: Any) -> None:
            task = todo.pop()
            busy[actor.run.remote(task)] = (actor, task)

        for actor in self.actors:
            hand(actor)
        while busy:
            (ready,), _ = ray.wait(list(busy), num_returns=1)
            actor, task = busy.pop(ready)
            try:
                trouble = ray.get(ready)
            except ray.exceptions.RayError as error:
                raise WorkerError(
                    f"{task.name} was given up after {RETRIES} more tries ({reason(error)}); the same command goes on "
                    "from what is done"
                ) from error
            if trouble is not None:
                raise (OutputError if trouble[0] == "output" else WorkerError)(trouble[1])
            done(task)
            if todo:
                hand(actor)
