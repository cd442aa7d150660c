"""The work queue: one thread runs the models, and clients take turns.

Work is split into steps. After each step the next client's task continues, so a client with many tasks delays itself
and not the others. During a long step, short steps of waiting clients run between two batches: a map that takes a tenth
of a second does not wait for one that takes a minute.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any

import torch

from vitrail.web.errors import ApiError
from vitrail.web.limits import Limits

log = logging.getLogger("vitrail.web")


class JobCancelled(Exception):  # noqa: N818 - not an error: the client cancelled or disconnected
    """Raised inside a step of a cancelled job."""


@dataclass(frozen=True)
class Step:
    """A unit of work.

    Attributes:
        run: The work.
        can_interleave: Whether it is short enough to run between two batches of a long step.
    """

    run: Callable[[], None]
    can_interleave: bool = True


@dataclass(eq=False)
class QueuedTask:
    """The steps of one job or query.

    Attributes:
        client: The client it belongs to.
        steps: The remaining steps.
        on_end: Called once, with the exception of a step or None; not called for a task that was removed.
        started: Whether its first step was started.
    """

    client: str
    steps: deque[Step]
    on_end: Callable[[BaseException | None], None] = field(repr=False)
    started: bool = False


class Queue:
    """The tasks of all clients and the thread that runs them.

    Args:
        limits: How many tasks may be queued.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._tasks: OrderedDict[str, deque[QueuedTask]] = OrderedDict()
        self._running: list[QueuedTask] = []
        self._condition = Condition()
        self._thread: Thread | None = None
        self.closed = False

    # -- called from any thread ------------------------------------------------------------------------------------

    def put(self, task: QueuedTask) -> None:
        """Queue a task.

        Raises:
            ApiError: 503, the queue is full.
        """
        with self._condition:
            own = self._tasks.get(task.client, deque())
            if self.closed:
                raise ApiError(503, "the server is shutting down", "Try again later.", {"Retry-After": "30"})
            if len(own) >= self.limits.queue_per_client or len(self) >= self.limits.queue:
                limit = (
                    f"{self.limits.queue_per_client} per client"
                    if len(own) >= self.limits.queue_per_client
                    else f"{self.limits.queue} on this server"
                )
                raise ApiError(
                    503, f"too many queued jobs (at most {limit})", "Wait a moment and try again.", {"Retry-After": "5"}
                )
            self._tasks.setdefault(task.client, deque()).append(task)
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._run, name="vitrail-models", daemon=True)
                self._thread.start()
            self._condition.notify()

    def submit(self, client: str, work: Callable[[], Any]) -> Future[Any]:
        """Queue a short function and return the future of its result."""
        future: Future[Any] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:  # noqa: BLE001 - the caller handles it
                    future.set_exception(error)

        self.put(QueuedTask(client, deque([Step(run)]), lambda _: None))
        return future

    def remove(self, task: QueuedTask) -> bool:
        """Remove a task that has not started; False if it has started or is not queued."""
        with self._condition:
            own = self._tasks.get(task.client)
            if own is None or task not in own or task.started:
                return False
            own.remove(task)
            if not own:
                del self._tasks[task.client]
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
        """Accept no more tasks and drop the queued ones."""
        with self._condition:
            self.closed = True
            self._tasks.clear()
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(10)

    # -- called from the thread that runs the models -----------------------------------------------------------------

    def run_short_steps(self) -> None:
        """Run one short step of each client that has one; called by long steps between two batches."""
        with self._condition:
            clients = list(self._tasks)
        for client in clients:
            task = self._next_task(client, short_only=True)
            if task is not None:
                self._run_step(task)

    def _next_task(self, client: str | None = None, short_only: bool = False) -> QueuedTask | None:
        """The task whose turn it is, of all clients or of the given one."""
        with self._condition:
            for name in [client] if client is not None else list(self._tasks):
                for task in self._tasks.get(name, ()):
                    if task not in self._running and (task.steps[0].can_interleave or not short_only):
                        task.started = True
                        self._running.append(task)
                        self._tasks.move_to_end(name)
                        return task
            return None

    def _run(self) -> None:
        while True:
            task = self._next_task()
            if task is None:
                with self._condition:
                    if self.closed:
                        return
                    if not len(self):
                        self._condition.wait(1.0)
                continue
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
            self._running.remove(task)
            finished = not task.steps
            own = self._tasks.get(task.client)
            if finished and own is not None and task in own:
                own.remove(task)
                if not own:
                    del self._tasks[task.client]
        if finished:
            with contextlib.suppress(Exception):
                task.on_end(problem)
