"""The engine for many machines: Ray actors, each with its models loaded, whose results come back through Ray."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vitrail.bench.engines import BenchTask, FailedTasks, TaskCallback, WorkerError, run_task
from vitrail.bench.parts import write_file
from vitrail.errors import InputError, error_line, require
from vitrail.pipeline.memory import keep_to_gpu_share

#: Number of times that a task is repeated after its actor died.
RETRIES = 3


class RayWorker:
    """An actor: a process that keeps its models loaded between tasks."""

    def __init__(self, device: str, threads: int) -> None:
        import torch

        self.device = device
        keep_to_gpu_share(device)
        if device == "cpu":
            torch.set_num_threads(threads)

    def run(self, task: Any) -> dict[str, bytes] | str:
        """Run a task; return its files by name, the last one last, or the failure as text.

        Nodes need no folder in common: the driver writes the files. The class of an error may not exist there.
        """
        try:
            with TemporaryDirectory(prefix="vitrail-") as here:
                last = run_task(replace(task, folder=here), self.device)
                files = [path for path in Path(here).rglob("*") if path.is_file() and path != last]
                return {path.relative_to(here).as_posix(): path.read_bytes() for path in (*files, last)}
        except Exception as error:  # noqa: BLE001 - sent to the driver, which notes it
            return error_line(error)

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()


def write_result(task: BenchTask, files: Mapping[str, bytes]) -> None:
    """Write the files that an actor returned, each atomically.

    Raises:
        OutputError: The disk is full or not writable.
    """
    for name, content in files.items():
        write_file(Path(task.folder) / name, lambda file, content=content: file.write(content))  # type: ignore[misc]


class RayEngine:
    """Run tasks on a Ray cluster, or on this machine if there is none.

    An actor gets its next task when it has returned the files of the last one, so that fast nodes do more and at most
    one result per actor waits. The task of an actor that dies, with its process or with its node, is given to another.

    Args:
        workers: Number of actors. Default: one per GPU of the cluster, or one per ``threads`` cores. With more actors
            than GPUs, those of one GPU have equal shares of its memory.
        device: "cpu" or "cuda": what each actor reserves.
        threads: Torch threads of each CPU actor.
        address: Address of a running cluster: "auto", a host and port, or ``ray://…``. Default: RAY_ADDRESS, else a
            cluster on this machine.
    """

    def __init__(
        self, workers: int | None = None, device: str = "cpu", threads: int = 1, address: str | None = None
    ) -> None:
        self.workers, self.device, self.threads = workers, device, threads
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.actors: list[Any] = []

    def run(self, tasks: Sequence[BenchTask], done: TaskCallback = lambda _: None) -> None:
        """Run all tasks; call ``done`` with each that is finished.

        Raises:
            VitrailError: A task cannot be done. Results of finished tasks remain.
        """
        if not tasks:
            return
        ray = require("ray", "ray", "run on a cluster")
        started_here = not ray.is_initialized()
        if started_here:
            self._connect(ray)
        try:
            self._run(ray, list(tasks), done)
        finally:
            for actor in self.actors:
                ray.kill(actor)
            self.actors = []
            if started_here:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        quiet = {"log_to_driver": False, "configure_logging": False}
        if self.address:
            try:
                ray.init(self.address, **quiet)
            except (ConnectionError, ValueError) as error:
                raise InputError(
                    f"no Ray cluster at {self.address!r} ({error_line(error)}): start one with `ray start --head "
                    "--port=6379` and pass HOST:6379 (with the same RAY_AUTH_TOKEN, where Ray asks for one), or leave "
                    "out --address to run on this machine"
                ) from error
        else:
            cores = self.workers * self.threads if self.workers and self.device == "cpu" else None
            # A new cluster, even where files of a former one that was killed are left.
            ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)

    def _run(self, ray: Any, tasks: list[BenchTask], done: TaskCallback) -> None:
        gpu = self.device != "cpu"
        resources = ray.cluster_resources()
        gpus = max(1, int(resources.get("GPU", 1)))
        count = self.workers or (gpus if gpu else int(resources.get("CPU", 1) // self.threads)) or 1
        share = gpu_share(count, gpus) if gpu else 0
        actor_class = ray.remote(num_gpus=share, num_cpus=1 if gpu else self.threads)(RayWorker)
        # Ray shows an actor its own GPU only, which is then the first it sees.
        device = "cuda:0" if gpu else "cpu"
        pool = _ActorPool(ray, lambda: actor_class.remote(device, self.threads), self.actors, tasks, done)
        pool.run(min(count, len(tasks)))


def gpu_share(workers: int, gpus: int) -> float:
    """Share of a GPU that each worker reserves, such that all fit.

    Example:
        >>> gpu_share(4, 4), gpu_share(6, 4), gpu_share(3, 1)
        (1.0, 0.5, 0.3333)
    """
    return int(1e4 / max(1, ceil(workers / gpus))) / 1e4


class _ActorPool:
    """Actors and their current tasks."""

    def __init__(
        self, ray: Any, create: Callable[[], Any], actors: list[Any], tasks: Sequence[BenchTask], done: TaskCallback
    ) -> None:
        self.ray, self.create, self.actors, self.done = ray, create, actors, done
        self.todo, self.idle, self.deaths = list(reversed(tasks)), list[Any](), Counter[str]()
        self.failed = FailedTasks(len(tasks))
        self.busy: dict[Any, tuple[Any, BenchTask]] = {}
        self.starting: dict[Any, Any] = {}

    def run(self, count: int) -> None:
        for _ in range(count):
            self._start()
        while self.todo or self.busy:
            while self.todo and self.idle:
                actor, task = self.idle.pop(), self.todo.pop()
                self.busy[actor.run.remote(task)] = (actor, task)
            (ready,), _ = self.ray.wait([*self.busy, *self.starting], num_returns=1)
            if ready in self.busy:
                self._receive(ready, *self.busy.pop(ready))
            else:
                self._receive(ready, self.starting.pop(ready), None)
        self.failed.check()

    def _start(self) -> None:
        # An actor is given no task before it answers: after a node died, there may be no core for a new one.
        self.actors.append(self.create())
        self.starting[self.actors[-1].pid.remote()] = self.actors[-1]

    def _receive(self, ready: Any, actor: Any, task: BenchTask | None) -> None:
        try:
            result = self.ray.get(ready)
        except self.ray.exceptions.RayError as error:
            self._replace_dead(actor, task, error)
            return
        self.idle.append(actor)
        if task is None:
            return
        if isinstance(result, str):
            self.failed.note_outcome(task, ("other", result), self.done)
            return
        write_result(task, result)
        self.failed.note_outcome(task, None, self.done)

    def _replace_dead(self, actor: Any, task: BenchTask | None, error: Exception) -> None:
        """Return a dead actor's task to the queue, unless it was tried too often, and start a new actor."""
        name = "an actor" if task is None else task.name
        self.deaths[name] += 1
        reason = f"its actor died {self.deaths[name]} times ({error_line(error)})"
        if self.deaths[name] <= RETRIES:
            self.todo += [] if task is None else [task]
        elif task is None:
            raise WorkerError(f"no actor can be started: {reason}. Run it again to resume") from error
        else:
            self.failed.add(name, reason)
        self.ray.kill(actor)
        self.actors.remove(actor)
        self._start()
