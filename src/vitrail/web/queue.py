"""The work queue: clients take turns, and equal work of several clients is prepared together.

A task is a list of steps. After each step the next client's task continues, so a client with many tasks delays itself
and not the others. Steps of one group, such as maps of one model, are prepared in one batch. During a long step, short
steps of waiting clients run between two batches: a map that takes a tenth of a second does not wait for one that takes
a minute.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

import torch

from vitrail.web.errors import ApiError
from vitrail.web.worker import set_worker_index

log = logging.getLogger("vitrail.web")
#: Seconds that `Queue.close` waits for a running step.
CLOSE_SECONDS = 0.3


class JobCancelled(Exception):  # noqa: N818 - not an error: the client cancelled or disconnected
    """Raised inside a step of a cancelled job."""


@dataclass(frozen=True)
class StepGroup:
    """What a step shares with others.

    Attributes:
        key: Steps with equal keys are prepared together.
        row: Steps with equal rows need the same pass.
        request: What this step adds to the batch.
        prepare: Takes the requests of several steps and stores what the steps will then find in a cache. If it fails,
            each step does its own work.
        most: Maximum number of different rows in a batch.
    """

    key: Hashable
    row: Hashable
    request: Any = field(repr=False)
    prepare: Callable[[list[Any]], None] = field(repr=False)
    most: int


@dataclass(frozen=True)
class Step:
    """A unit of work.

    Attributes:
        run: The work.
        can_interleave: Whether it is short enough to run between two batches of a long step.
        is_parallel: Whether it is large enough to gain from several threads of torch.
        group: The steps it can be prepared with, or None.
    """

    run: Callable[[], None]
    can_interleave: bool = True
    is_parallel: bool = True
    group: StepGroup | None = None


@dataclass(eq=False)
class QueuedTask:
    """The steps of one job or query.

    Attributes:
        client: The client it belongs to.
        steps: The remaining steps.
        on_end: Called once, with the exception of a step or None; not called for a task that was removed.
        started: Whether its first step was started.
        running: Whether one of its steps is running.
    """

    client: str
    steps: deque[Step]
    on_end: Callable[[BaseException | None], None] = field(repr=False)
    started: bool = False
    running: bool = False


class Queue:
    """The tasks of all clients and the threads that run them.

    Args:
        total: Maximum number of tasks.
        per_client: Maximum number of tasks of one client.
        threads: Number of threads.
        what: What the tasks are, for error messages.
        cores: Threads of torch that the busy threads share; None leaves torch's setting.
    """

    def __init__(
        self, total: int, per_client: int, threads: int = 1, what: str = "queued jobs", cores: int | None = None
    ) -> None:
        self.total, self.per_client, self.threads, self.what, self.cores = total, per_client, threads, what, cores
        self._busy = 0
        self._tasks: OrderedDict[str, deque[QueuedTask]] = OrderedDict()
        self._condition = Condition()
        self._threads: list[Thread] = []
        self.closed = False

    # -- called from any thread ------------------------------------------------------------------------------------

    def put(self, task: QueuedTask) -> None:
        """Queue a task.

        Raises:
            ApiError: 503, the queue is full.
        """
        with self._condition:
            own = self._tasks.get(task.client, ())
            if self.closed:
                raise ApiError(503, "the server is shutting down", "Try again later.", {"Retry-After": "30"})
            if len(own) >= self.per_client or len(self) >= self.total:
                limit = f"{self.per_client} per client" if len(own) >= self.per_client else f"{self.total} in total"
                what = f"too many {self.what} (at most {limit})"
                raise ApiError(503, what, "Wait a moment and try again.", {"Retry-After": "5"})
            self._tasks.setdefault(task.client, deque()).append(task)
            if not self._threads:
                self._threads = [
                    Thread(target=self._run, args=(i,), name="vitrail-queue", daemon=True) for i in range(self.threads)
                ]
                for thread in self._threads:
                    thread.start()
            self._condition.notify()

    def submit(self, client: str, work: Callable[[], Any], group: StepGroup | None = None) -> Future[Any]:
        """Queue a short function and return the future of its result."""
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:  # noqa: BLE001 - the caller handles it
                    future.set_exception(error)

        self.put(QueuedTask(client, deque([Step(run, group=group)]), lambda _: None))
        return future

    def remove(self, task: QueuedTask) -> bool:
        """Remove a task that has not started; False if it has started or is not queued."""
        with self._condition:
            if task.started or task not in self._tasks.get(task.client, ()):
                return False
            self._drop(task)
            return True

    def ahead(self, task: QueuedTask) -> int:
        """Number of tasks that run before this one."""
        with self._condition:
            own = self._tasks.get(task.client)
            if own is None or task not in own or task.started:
                return 0
            position = own.index(task)
            turn = list(self._tasks).index(task.client)
            others = (
                min(len(tasks), position + (index < turn))
                for index, (client, tasks) in enumerate(self._tasks.items())
                if client != task.client
            )
            return position + sum(others)

    def __len__(self) -> int:
        return sum(map(len, self._tasks.values()))

    def close(self) -> None:
        """Accept no more tasks and drop the queued ones; a running step is waited for a moment only."""
        with self._condition:
            self.closed = True
            self._tasks.clear()
            self._condition.notify_all()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS / self.threads)

    # -- called from the threads of the queue --------------------------------------------------------------------------

    def run_short_steps(self) -> None:
        """Run one short step of each client that has one; called by long steps between two batches."""
        with self._condition:
            waiting = set(self._tasks)
        while waiting and (tasks := self._next_tasks(waiting, short_only=True)):
            waiting -= {task.client for task in tasks}
            self._run_steps(tasks)
        self._share_cores()

    def _share_cores(self, is_parallel: bool = True) -> None:
        """Let the calling thread use its share of the cores; all of them while the other threads are idle."""
        if self.cores is not None:
            torch.set_num_threads(max(1, self.cores // self._busy) if is_parallel else 1)

    def _run(self, index: int) -> None:
        set_worker_index(index)
        while not self.closed:
            with self._condition:
                tasks = self._next_tasks(self._tasks)
                if not tasks:
                    self._condition.wait(1.0)
                    continue
                self._busy += 1
            self._share_cores(tasks[0].steps[0].is_parallel)
            self._run_steps(tasks)
            with self._condition:
                self._busy -= 1

    def _next_tasks(self, clients: Any, short_only: bool = False) -> list[QueuedTask]:
        """The task whose turn it is, and those of other clients that can be prepared with it."""
        taken: list[QueuedTask] = []
        rows: set[Hashable] = set()
        group: StepGroup | None = None
        with self._condition:
            for client in [name for name in self._tasks if name in clients]:
                for task in self._tasks[client]:
                    step = task.steps[0] if not task.running else None
                    if step is None or (short_only and not step.can_interleave):
                        continue
                    if taken and not (group is not None and _fits(step.group, group, rows)):
                        continue
                    group = group or step.group
                    rows |= {step.group.row} if step.group is not None else set()
                    taken.append(task)
                    break
                if taken and group is None:
                    break
            for task in taken:
                task.started = task.running = True
                self._tasks.move_to_end(task.client)
        return taken

    def _run_steps(self, tasks: list[QueuedTask]) -> None:
        """Prepare the next steps of some tasks together, then run each."""
        groups = [group for task in tasks if (group := task.steps[0].group) is not None]
        if len(groups) > 1:
            try:
                with torch.inference_mode(False), torch.enable_grad():
                    groups[0].prepare([group.request for group in groups])
            except Exception:  # each step now does its own work and reports its own failure
                log.debug("a batch failed; its steps run one by one", exc_info=True)
        for task in tasks:
            self._run_step(task)

    def _run_step(self, task: QueuedTask) -> None:
        """Run the next step of a task; an exception ends the task, not the thread."""
        problem: BaseException | None = None
        step = task.steps.popleft()
        try:
            # A short step may run inside a long one that has disabled gradients.
            with torch.inference_mode(False), torch.enable_grad():
                step.run()
        except Exception as error:  # noqa: BLE001 - reported through on_end
            problem = error
            task.steps.clear()
        with self._condition:
            task.running = False
            if task.steps:
                self._condition.notify()
            else:
                self._drop(task)
        if not task.steps:
            with contextlib.suppress(Exception):
                task.on_end(problem)

    def _drop(self, task: QueuedTask) -> None:
        own = self._tasks.get(task.client)
        if own is not None and task in own:
            own.remove(task)
            if not own:
                del self._tasks[task.client]


def _fits(group: StepGroup | None, batch: StepGroup, rows: set[Hashable]) -> bool:
    """Whether a step can join a batch that has these rows."""
    return group is not None and group.key == batch.key and (group.row in rows or len(rows) < batch.most)
