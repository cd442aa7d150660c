"""The engine for one machine: one process per GPU, or several on the CPU."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import zip_longest
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.forkserver import ensure_running
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from vitrail.bench.engines import BenchTask, FailedTasks, TaskCallback, compute_task, run_task
from vitrail.bench.read_ahead import cancel_reading
from vitrail.errors import InputError, OutputError, error_line

#: Number of workers that may die on one task before the run stops.
MAX_WORKER_DEATHS = 3
#: Modules a worker imports; where the system can fork, a server process imports them once for all workers.
PRELOADED_MODULES = ("vitrail.bench.chunk", "vitrail.bench.folder_chunk", "torch._dynamo", "pyarrow.parquet",
                     "safetensors.torch", "PIL.Image")  # fmt: skip


class LocalEngine:
    """Run tasks on this machine.

    Args:
        workers: Number of processes. Default: one per GPU, or one per ``threads`` cores. A single worker is the calling
            process itself, which also runs all tasks if it is daemonic, such as a worker of `multiprocessing.Pool`.
        device: "cpu", "cuda" (all GPUs), or one device such as "cuda:1".
        threads: Torch threads of each CPU worker.
    """

    def __init__(self, workers: int | None = None, device: str = "cpu", threads: int = 1) -> None:
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if device == "cuda" else [device]
        if not gpus:
            raise InputError("device 'cuda' was given, and torch finds no GPU: use --device cpu")
        count = workers or (len(gpus) if device != "cpu" else max(1, (os.cpu_count() or 1) // threads))
        self.devices = [gpus[i % len(gpus)] for i in range(count)]
        self.threads = threads
        self.processes: list[BaseProcess] = []

    def run(self, tasks: Sequence[BenchTask], done: TaskCallback = lambda _: None) -> None:
        """Run all tasks; call ``done`` with each that is finished.

        Raises:
            VitrailError: A task cannot be done. Results of finished tasks remain.
        """
        if not tasks:
            return
        if len(self.devices) == 1 or mp.current_process().daemon:  # a daemonic process must not start others
            on_cpu = self.devices[0] == "cpu"
            with torch_threads(self.threads if on_cpu else torch.get_num_threads()):
                _run_here(tasks, self.devices[0], done)
            return
        with exit_on_sigterm():
            _WorkerPool(self, tasks, done).run()


def _run_here(tasks: Sequence[BenchTask], device: str, done: TaskCallback) -> None:
    """Run tasks in this process: files of the next one are read, and that of the last one written, meanwhile.

    A file that cannot be written raises its error after the next task at the latest. Whatever ends the run, the file of
    a task that was computed is written first. A task that fails does not stop the others.
    """
    writing: tuple[BenchTask, Future[Path]] | None = None
    failed = FailedTasks(len(tasks))
    with ThreadPoolExecutor(1, thread_name_prefix="vitrail-write") as writer:
        try:
            for task, following in zip_longest(tasks, tasks[1:]):
                for soon in filter(None, (task, following)):
                    soon.prepare(device)
                try:
                    write = compute_task(task, device)
                except OutputError:
                    raise
                except Exception as error:  # noqa: BLE001 - raised at the end, for all tasks that failed
                    failed.add(task.name, error_line(error))
                    continue
                failed.completed += 1
                before, writing = writing, None
                if before is not None:
                    before[1].result()
                    done(before[0])
                writing = task, writer.submit(write)
        except (KeyboardInterrupt, SystemExit):
            cancel_reading()
            raise
        finally:
            if writing is not None:
                writing[1].result()
                done(writing[0])
    failed.check()


class _WorkerPool:
    """Worker processes and their current tasks. Each worker has its own pipe, so that a dead one holds no lock."""

    def __init__(self, engine: LocalEngine, tasks: Sequence[BenchTask], done: TaskCallback) -> None:
        self.engine, self.done = engine, done
        self.todo = deque(tasks)
        self.failed = FailedTasks(len(tasks))
        self.deaths: dict[str, int] = {}
        self.busy: dict[Connection, BenchTask] = {}
        self.workers: dict[Connection, tuple[BaseProcess, str]] = {}

    def run(self) -> None:
        try:
            for device in self.engine.devices[: len(self.todo)]:
                self._start(device)
            while self.todo or self.busy:
                for worker in [w for w in self.workers if w not in self.busy]:
                    self._assign(worker)
                for ready in wait(list(self.busy)):
                    assert isinstance(ready, Connection)
                    self._receive(ready)
            self.failed.check()
        finally:
            for connection, (process, _) in self.workers.items():
                with suppress(OSError):
                    connection.close()  # tells an idle worker to exit
                if connection in self.busy:
                    process.terminate()
                process.join(10)

    def _start(self, device: str) -> None:
        # Forks of a fresh server process start faster than new processes.
        forks = "forkserver" in mp.get_all_start_methods()
        context: Any = mp.get_context("forkserver" if forks else "spawn")
        if forks:
            context.set_forkserver_preload(list(PRELOADED_MODULES))
        ours, theirs = context.Pipe()
        process = context.Process(target=_worker_loop, args=(theirs, device, self.engine.threads), daemon=True)
        with _sigint_blocked():  # inherited by children: after Ctrl-C only this process prints, and stops its workers
            if forks:
                ensure_running()
            else:
                process.start()
        if forks:
            process.start()
        theirs.close()  # so that reading ends when the worker does
        self.workers[ours] = (process, device)
        self.engine.processes.append(process)

    def _assign(self, worker: Connection) -> None:
        if self.todo:
            task = self.todo.popleft()
            self.busy[worker] = task
            with suppress(OSError):  # it died while idle, which `_receive` notices
                worker.send(task)

    def _receive(self, worker: Connection) -> None:
        task = self.busy.pop(worker)
        try:
            failure = worker.recv()
        except (EOFError, OSError):
            self._replace_dead(worker, task)
            return
        self.failed.note_outcome(task, failure, self.done)

    def _replace_dead(self, worker: Connection, task: BenchTask) -> None:
        """Return a dead worker's task to the queue and start a new worker."""
        process, device = self.workers.pop(worker)
        process.join(10)
        worker.close()
        self.deaths[task.name] = self.deaths.get(task.name, 0) + 1
        if self.deaths[task.name] >= MAX_WORKER_DEATHS:
            self.failed.add(
                task.name,
                f"{MAX_WORKER_DEATHS} workers died on it (exit code {process.exitcode}), possibly for lack of memory: "
                "use a smaller batch or fewer workers. In a script, start the run below if __name__ == '__main__'",
            )
        else:
            self.todo.appendleft(task)
        self._start(device)


def _worker_loop(connection: Connection, device: str, threads: int) -> None:
    """Run the tasks that arrive and send back None or the failure, until the connection closes.

    Warnings are one line each, as those of the command line.
    """
    if device == "cpu":
        torch.set_num_threads(threads)
    elif device.startswith("cuda"):
        torch.cuda.set_device(device)
    shown = set[str]()

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        line = " ".join(str(message).split())
        if line not in shown:  # each task reads the structure of the model, and would warn again
            shown.add(line)
            sys.stderr.write(f"warning: {line}\n")

    warnings.showwarning = show_warning
    while True:
        try:
            task = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            run_task(task, device)
            connection.send(None)
        except OutputError as error:
            connection.send(("output", str(error)))
        except Exception as error:  # noqa: BLE001 - sent to the parent, which raises it
            connection.send(("other", error_line(error)))


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Delay SIGINT until the end of a block, where the system can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which unblocks SIGINT when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM, as schedulers send it, into `SystemExit`, so that workers are stopped as after Ctrl-C.

    By default the signal ends this process only, and its workers would go on for minutes. A program with its own
    handler keeps it.
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
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads inside a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
