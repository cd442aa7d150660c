"""The engine for one machine: a process for each GPU, or some on the CPU."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from vitrail.bench.chunk import BenchTask, run_chunk
from vitrail.bench.explainer import reason
from vitrail.errors import OutputError, VitrailError

Done = Callable[[BenchTask], None]
#: How many workers may die over one piece of work before it is given up.
MOST_DEATHS = 3
#: What a worker imports; where processes can be copied, a helper process does so once for all of them.
IMPORTED = ("vitrail.bench.chunk", "vitrail.bench.folder", "torch._dynamo", "pyarrow.parquet", "safetensors.torch",
            "PIL.Image")  # fmt: skip


class WorkerError(VitrailError, RuntimeError):
    """Workers keep dying, or one met an error that is no picture's fault."""


class LocalEngine:
    """Runs pieces of work on this machine.

    Args:
        workers: How many processes; one for each GPU, or each pair of core and thread, by default. A single worker on
            the CPU is this process itself.
        device: "cpu", "cuda" (all GPUs), or one device such as "cuda:1".
        threads: Of torch in each worker on the CPU.
    """

    def __init__(self, workers: int | None = None, device: str = "cpu", threads: int = 1) -> None:
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if device == "cuda" else [device]
        count = workers or (len(gpus) if device != "cpu" else max(1, (os.cpu_count() or 1) // threads))
        self.devices = [gpus[i % len(gpus)] for i in range(count)]
        self.threads = threads
        self.processes: list[BaseProcess] = []

    def run(self, tasks: Sequence[BenchTask], done: Done = lambda _: None) -> None:
        """Do all of them; ``done`` is called with each that is finished.

        Raises:
            VitrailError: A piece of work cannot be done. What is done stays done.
        """
        if not tasks:
            return
        if len(self.devices) == 1:
            with threads_set(self.threads):
                for task in tasks:
                    run_chunk(task, self.devices[0])
                    done(task)
            return
        with unwound():
            _Pool(self, tasks, done).run()


class _Pool:
    """Processes and what each is doing. Every worker has a pipe of its own, so that a dead one holds no lock."""

    def __init__(self, engine: LocalEngine, tasks: Sequence[BenchTask], done: Done) -> None:
        self.engine, self.done = engine, done
        self.todo = deque(tasks)
        self.deaths: dict[str, int] = {}
        self.busy: dict[Connection, BenchTask] = {}
        self.workers: dict[Connection, tuple[BaseProcess, str]] = {}

    def run(self) -> None:
        try:
            for device in self.engine.devices[: len(self.todo)]:
                self._start(device)
            while self.todo or self.busy:
                for worker in [w for w in self.workers if w not in self.busy]:
                    self._hand(worker)
                for ready in wait(list(self.busy)):
                    assert isinstance(ready, Connection)
                    self._answer(ready)
        finally:
            for connection, (process, _) in self.workers.items():
                with suppress(OSError):
                    connection.close()  # an idle worker takes this as the end
                if connection in self.busy:
                    process.terminate()
                process.join(10)

    def _start(self, device: str) -> None:
        # Copies of a process in which nothing has run yet: as clean as new ones, and there at once.
        copied = "forkserver" in mp.get_all_start_methods()
        context: Any = mp.get_context("forkserver" if copied else "spawn")
        if copied:
            context.set_forkserver_preload(list(IMPORTED))
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, device, self.engine.threads), daemon=True)
        process.start()
        theirs.close()  # so that reading ends when the worker does
        self.workers[ours] = (process, device)
        self.engine.processes.append(process)

    def _hand(self, worker: Connection) -> None:
        if self.todo:
            task = self.todo.popleft()
            self.busy[worker] = task
            with suppress(OSError):  # it died while idle: found out when its answer is waited for
                worker.send(task)

    def _answer(self, worker: Connection) -> None:
        task = self.busy.pop(worker)
        try:
            trouble = worker.recv()
        except (EOFError, OSError):
            self._died(worker, task)
            return
        if trouble is not None:
            raise (OutputError if trouble[0] == "output" else WorkerError)(trouble[1])
        self.done(task)

    def _died(self, worker: Connection, task: BenchTask) -> None:
        """Give its work to another, and put a new one in its place."""
        process, device = self.workers.pop(worker)
        process.join(10)
        worker.close()
        self.deaths[task.name] = self.deaths.get(task.name, 0) + 1
        if self.deaths[task.name] >= MOST_DEATHS:
            raise WorkerError(
                f"{MOST_DEATHS} workers died over {task.name} (exit code {process.exitcode}): is memory short? Use a "
                "smaller batch or fewer workers. In a script of your own, start the run below if __name__ == "
                "'__main__'. Run it again to go on from what is done"
            )
        self.todo.appendleft(task)
        self._start(device)


def _serve(connection: Connection, device: str, threads: int) -> None:
    """A worker: do what comes, say how it went, until nothing comes."""
    if device == "cpu":
        torch.set_num_threads(threads)
    elif device.startswith("cuda"):
        torch.cuda.set_device(device)
    while True:
        try:
            task = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            run_chunk(task, device)
            connection.send(None)
        except OutputError as error:
            connection.send(("output", str(error)))
        except Exception as error:  # noqa: BLE001 - told to the parent, which raises it
            connection.send(("other", f"{task.name}: {reason(error)}"))


@contextmanager
def unwound() -> Iterator[None]:
    """A while in which a request to end (SIGTERM, as schedulers send it) unwinds as Ctrl-C does.

    By default it ends this process alone, and its workers would go on with what they are at for minutes. A program that
    has its own way with the signal keeps it.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Torch with so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
