"""The work queue: clients take turns, and equal work of several clients is prepared together.

A task is a list of steps. After each step the client whose turn it is continues, so a client with many tasks delays
itself and not the others. Steps of one group, such as maps of one model, are prepared in one batch. Between two batches
of a long step, short steps of waiting clients run: a map that takes a tenth of a second does not wait for one that
takes a minute. If another thread runs a short step, the long step waits for it, up to `SHORT_SECONDS`, so that they do
not compete for the processor. Then the long step pauses if it is the turn of another client's long step. A paused step
keeps its thread, so there are more threads than steps that run at the same time.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread, local
from time import monotonic
from typing import Any

import torch

from vitrail.web.api_errors import ApiError
from vitrail.web.client_slots import ClientSlots
from vitrail.web.worker import set_worker_index

log = logging.getLogger("vitrail.web")
#: Seconds that `Queue.close` waits for a running step.
CLOSE_SECONDS = 0.3
#: Seconds that a long step waits between two batches for short steps of other threads. More would starve long steps
#: while many clients send short ones.
SHORT_SECONDS = 0.5


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


@dataclass(eq=False)
class _Slice:
    """The time for which a thread holds a slot.

    Attributes:
        clients: Whose steps it runs.
        is_long: Whether it is a long step.
        is_parallel: Whether it gains from several threads of torch.
        start: When it began.
        charged: Until when its time is charged to the clients.
    """

    clients: list[str]
    is_long: bool
    is_parallel: bool
    start: float = field(default_factory=monotonic)
    charged: float = field(default_factory=monotonic)


class Queue:
    """The tasks of all clients and the threads that run them.

    Args:
        total: Maximum number of tasks.
        per_client: Maximum number of tasks of one client.
        threads: Number of steps that run at the same time.
        what: What the tasks are, for error messages.
        cores: Threads of torch that the busy threads share; None leaves torch's setting.
        paused: Maximum number of long steps that pause while those of other clients run.
    """

    def __init__(
        self, total: int, per_client: int, threads: int = 1, what: str = "queued jobs", cores: int | None = None,
        paused: int = 0,
    ) -> None:  # fmt: skip
        self.total, self.per_client, self.threads, self.what, self.cores = total, per_client, threads, what, cores
        self._thread_count = threads + paused
        self._slots = ClientSlots(threads, reserved=1 if paused else 0)
        self._tasks: OrderedDict[str, deque[QueuedTask]] = OrderedDict()
        self._paused: list[_Slice] = []
        self._idle: set[int] = set()
        self._condition = Condition()
        self._threads: list[Thread] = []
        self._own = local()
        self.closed = False

    # -- called from any thread ------------------------------------------------------------------------------------

    def put(self, task: QueuedTask) -> None:
        """Queue a task."""
        with self._condition:
            own = self._tasks.get(task.client, ())
            if self.closed:
                raise ApiError(503, "the server is shutting down", "Try again later.", {"Retry-After": "30"})
            if len(own) >= self.per_client or len(self) >= self.total:
                limit = f"{self.per_client} per client" if len(own) >= self.per_client else f"{self.total} in total"
                what = f"too many {self.what} (at most {limit})"
                raise ApiError(503, what, "Wait a moment and try again.", {"Retry-After": "5"})
            self._slots.arrive(task.client)
            self._tasks.setdefault(task.client, deque()).append(task)
            if not self._threads:
                self._idle = set(range(self._thread_count))
                self._threads = [
                    Thread(target=self._run, args=(i,), name="vitrail-queue", daemon=True) for i in sorted(self._idle)
                ]
                for thread in self._threads:
                    thread.start()
            self._condition.notify_all()

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
            thread.join(CLOSE_SECONDS / self._thread_count)

    # -- called from the threads of the queue --------------------------------------------------------------------------

    def between_batches(self, may_pause: bool = True) -> None:
        """Let other clients run; called by long steps between two batches.

        Args:
            may_pause: Whether the step may pause for long steps of other clients. It may not if it holds a lock that
                they wait for.

        Raises:
            JobCancelled: The queue was closed while the step paused.
        """
        self.run_short_steps()
        if may_pause:
            self._wait_for_short_steps()
            self._pause()

    def run_short_steps(self) -> None:
        """Run one short step of each client that has one."""
        self._charge()
        with self._condition:
            waiting = set(self._tasks)
        while waiting and (tasks := self._next_tasks(waiting, short_only=True)):
            waiting -= {task.client for task in tasks}
            start = monotonic()
            self._run_steps(tasks)
            with self._condition:
                self._slots.charge([task.client for task in tasks], monotonic() - start)
        if (own := self._slice) is not None:
            own.charged = monotonic()
        self._share_cores()

    @property
    def _slice(self) -> _Slice | None:
        return getattr(self._own, "slice", None)

    def _charge(self) -> None:
        """Charge the time since the last call to the clients of the calling thread."""
        if (own := self._slice) is not None:
            with self._condition:
                now = monotonic()
                self._slots.charge(own.clients, now - own.charged)
                own.charged = now

    def _wait_for_short_steps(self) -> None:
        """Leave the processor to the short steps that other threads run, for a moment."""
        own = self._slice
        if own is not None and own.is_long:
            with self._condition:
                self._condition.wait_for(lambda: self.closed or not self._slots.runs_short, SHORT_SECONDS)
                own.charged = monotonic()

    def _pause(self) -> None:
        """Give the slot to another client's long step if it is its turn, and wait for the next turn."""
        own = self._slice
        if own is None or not own.is_long:
            return
        with self._condition:
            seconds = monotonic() - own.start
            if not self._slots.should_yield(own.clients[0], seconds, self._waiting(long_only=True)):
                return
            self._slots.release_slot(own.clients, own.is_long)
            self._paused.append(own)
            self._condition.notify_all()
            while not self.closed and self._next_paused() is not own:
                self._condition.wait(1.0)
            self._paused.remove(own)
            self._slots.hold_slot(own.clients, own.is_long)
            own.start = own.charged = monotonic()
            if self.closed:
                raise JobCancelled
            self._tasks.move_to_end(own.clients[0])
            self._condition.notify_all()
        self._share_cores()

    def _waiting(self, long_only: bool = False) -> list[str]:
        """Clients with a step that waits for a slot, by turn: a paused one, or one for which there is a thread."""
        paused = {own.clients[0] for own in self._paused}
        ready = [
            client for client, tasks in self._tasks.items()
            if client in paused or (self._idle and any(self._is_ready(task, long_only) for task in tasks))
        ]  # fmt: skip
        return self._slots.order(ready)

    @staticmethod
    def _is_ready(task: QueuedTask, long_only: bool) -> bool:
        return not task.running and not (long_only and task.steps[0].can_interleave)

    def _next_paused(self) -> _Slice | None:
        """The paused step that runs next, or None while there is no slot or it is the turn of another client."""
        if not self._paused or not self._slots.has_slot(is_long=True):
            return None
        client = next(iter(self._waiting(long_only=True)), None)  # none is left once the queue is closed
        return next((own for own in self._paused if own.clients[0] == client), None)

    def _share_cores(self) -> None:
        """Let the calling thread use its share of the cores; all of them while the other threads are idle."""
        if self.cores is not None:
            own = self._slice
            is_parallel = own is None or own.is_parallel
            torch.set_num_threads(max(1, self.cores // max(1, self._slots.busy)) if is_parallel else 1)

    def _run(self, index: int) -> None:
        set_worker_index(index)
        while not self.closed:
            with self._condition:
                tasks = self._take_slot(index)
                if not tasks:
                    self._condition.wait(1.0)
                    continue
            self._share_cores()
            self._run_steps(tasks)
            self._charge()
            with self._condition:
                own, self._own.slice = self._own.slice, None
                self._slots.release_slot(own.clients, own.is_long)
                self._idle.add(index)
                self._condition.notify_all()

    def _take_slot(self, index: int) -> list[QueuedTask]:
        """The tasks that an idle thread runs next, with a slot for them; none if other threads come first."""
        # The first idle thread takes the step, so that few copies of a model are in use.
        if index != min(self._idle) or not self._slots.has_slot(is_long=False):
            return []
        may_be_long = self._slots.has_slot(is_long=True) and self._next_paused() is None
        tasks = self._next_tasks(self._tasks, short_only=not may_be_long)
        if tasks:
            self._idle.discard(index)
            step = tasks[0].steps[0]
            own = _Slice([task.client for task in tasks], not step.can_interleave, step.is_parallel)
            self._own.slice = own
            self._slots.hold_slot(own.clients, own.is_long)
            self._condition.notify_all()
        return tasks

    def _next_tasks(self, clients: Any, short_only: bool = False) -> list[QueuedTask]:
        """The task whose turn it is, and those of other clients that can be prepared with it."""
        taken: list[QueuedTask] = []
        rows: set[Hashable] = set()
        group: StepGroup | None = None
        with self._condition:
            for client in self._slots.order(name for name in self._tasks if name in clients):
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
            if not task.steps:
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
                self._slots.leave(task.client)


def _fits(group: StepGroup | None, batch: StepGroup, rows: set[Hashable]) -> bool:
    """Whether a step can join a batch that has these rows."""
    return group is not None and group.key == batch.key and (group.row in rows or len(rows) < batch.most)
