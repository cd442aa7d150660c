"""The engine for many machines: Ray actors that share a folder, each with its models loaded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vitrail.bench.engines import BenchTask, TaskCallback, WorkerError, run_task
from vitrail.bench.explainer import error_line
from vitrail.errors import InputError, OutputError, require

#: Number of times that a task is repeated after its actor died.
RETRIES = 3


class RayWorker:
    """An actor: a process that keeps its models loaded between tasks."""

    def __init__(self, device: str, threads: int) -> None:
        import torch

        self.device = device
        if device == "cpu":
            torch.set_num_threads(threads)

    def run(self, task: BenchTask) -> tuple[str, str] | None:
        """Run a task; return None, or the failure as text, because its class may not exist in the driver."""
        try:
            run_task(task, self.device)
        except OutputError as error:
            return "output", str(error)
        except Exception as error:  # noqa: BLE001 - sent to the driver, which raises it
            return "other", f"{task.name}: {error_line(error)}"
        return None

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()


class RayEngine:
    """Run tasks on a Ray cluster, or on this machine if there is none.

    The task of an actor that dies, with its process or with its node, is given to another one. That is safe because
    parts are written atomically.

    Args:
        workers: Number of actors. Default: one per GPU of the cluster, or one per ``threads`` cores.
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
        count = self.workers or int(resources.get("GPU", 1) if gpu else resources.get("CPU", 1) // self.threads) or 1
        actor_class = ray.remote(num_gpus=1 if gpu else 0, num_cpus=1 if gpu else self.threads)(RayWorker)
        # Ray shows an actor its own GPU only, which is then the first it sees.
        device = "cuda:0" if gpu else "cpu"
        todo, idle, deaths = list(reversed(tasks)), list[Any](), Counter[str]()
        busy: dict[Any, tuple[Any, BenchTask]] = {}
        starting: dict[Any, Any] = {}

        def start() -> None:
            # An actor is given no task before it answers: after a node died, there may be no core for a new one.
            self.actors.append(actor_class.remote(device, self.threads))
            starting[self.actors[-1].pid.remote()] = self.actors[-1]

        def lose(actor: Any, name: str, error: Exception) -> None:
            deaths[name] += 1
            if deaths[name] > RETRIES:
                raise WorkerError(
                    f"{name} failed after {RETRIES} retries ({error_line(error)}). Run it again to resume"
                ) from error
            ray.kill(actor)
            self.actors.remove(actor)
            start()

        for _ in range(min(count, len(tasks))):
            start()
        while todo or busy:
            while todo and idle:
                actor, task = idle.pop(), todo.pop()
                busy[actor.run.remote(task)] = (actor, task)
            (ready,), _ = ray.wait([*busy, *starting], num_returns=1)
            if ready in starting:
                actor = starting.pop(ready)
                try:
                    ray.get(ready)
                    idle.append(actor)
                except ray.exceptions.RayError as error:
                    lose(actor, "an actor", error)
                continue
            actor, task = busy.pop(ready)
            try:
                failure = ray.get(ready)
            except ray.exceptions.RayError as error:
                todo.append(task)
                lose(actor, task.name, error)
                continue
            if failure is not None:
                raise (OutputError if failure[0] == "output" else WorkerError)(failure[1])
            done(task)
            idle.append(actor)
