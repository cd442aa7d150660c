"""Who is next: one thread uses the models, and clients take turns.

Work comes in steps. After each step it is the next client's turn, so that a client who asks for much waits for itself
and not the others for it. While a long step is at work, between two of its looks at the model, short steps of whoever
waits are let in: a map that takes a tenth of a second does not wait for one that takes a minute.
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


class CancelledWork(Exception):  # noqa: N818 - not an error: somebody went away
    """Raised inside a step whose result nobody wants any more."""


@dataclass(frozen=True)
class Step:
    """A piece of work.

    Attributes:
        run: Does it.
        short: Whether it may be let in while a long step is at work.
    """

    run: Callable[[], None]
    short: bool = True


@dataclass(eq=False)
class QueuedTask:
    """Work of one client, step by step.

    Attributes:
        client: Whose turn it takes.
        steps: What is left to do.
        ended: Called once, with what a step raised or None; not called for a task that is withdrawn.
        begun: Whether its first step was taken.
    """

    client: str
    steps: deque[Step]
    ended: Callable[[BaseException | None], None] = field(repr=False)
    begun: bool = False


class Queue:
    """Tasks of all clients and the thread that works on them.

    Args:
        limits: How many tasks may wait.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._turns: OrderedDict[str, deque[QueuedTask]] = OrderedDict()
        self._busy: list[QueuedTask] = []
        self._wake = Condition()
        self._thread: Thread | None = None
        self.closed = False

    # -- from any thread -------------------------------------------------------------------------------------------

    def put(self, task: QueuedTask) -> None:
        """Queue a task.

        Raises:
            Refusal: 503, the queue is full.
        """
        with self._wake:
            own = self._turns.get(task.client, deque())
            if self.closed:
                raise ApiError(503, "the server is shutting down", "Try again later.", {"Retry-After": "30"})
            if len(own) >= self.limits.each or len(self) >= self.limits.queue:
                whose = "you have" if len(own) >= self.limits.each else "all clients together have"
                raise ApiError(
                    503, f"{whose} as much work waiting as this server takes", "Wait a moment and try again.",
                    {"Retry-After": "5"},
                )  # fmt: skip
            self._turns.setdefault(task.client, deque()).append(task)
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._work, name="vitrail-models", daemon=True)
                self._thread.start()
            self._wake.notify()

    def ask(self, client: str, work: Callable[[], Any]) -> Future[Any]:
        """Queue a short piece of work that gives an answer."""
        answer: Future[Any] = Future()

        def run() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(work())
                except Exception as error:  # noqa: BLE001 - it is the asker's to deal with
                    answer.set_exception(error)

        self.put(QueuedTask(client, deque([Step(run)]), lambda _: None))
        return answer

    def withdraw(self, task: QueuedTask) -> bool:
        """Take back a task that has not begun; False if it has, and must be stopped by other means."""
        with self._wake:
            own = self._turns.get(task.client)
            if own is None or task not in own or task.begun:
                return False
            own.remove(task)
            if not own:
                del self._turns[task.client]
            return True

    def ahead(self, task: QueuedTask) -> int:
        """How many tasks will have their turn before this one."""
        with self._wake:
            own = self._turns.get(task.client)
            if own is None or task not in own or task.begun:
                return 0
            place = own.index(task)
            clients = list(self._turns)
            turn = clients.index(task.client)
            others = (
                min(len(tasks), place + (index < turn))
                for index, (client, tasks) in enumerate(self._turns.items())
                if client != task.client
            )
            return place + sum(others)

    def __len__(self) -> int:
        return sum(map(len, self._turns.values()))

    def close(self) -> None:
        """Take no more work, and drop what waits."""
        with self._wake:
            self.closed = True
            self._turns.clear()
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(10)

    # -- from the thread that uses the models --------------------------------------------------------------------

    def let_in(self) -> None:
        """Take one short step for each client that waits with one; called by long steps between two looks."""
        with self._wake:
            waiting = list(self._turns)
        for client in waiting:
            task = self._next(client, short=True)
            if task is not None:
                self._step(task)

    def _next(self, client: str | None = None, short: bool = False) -> QueuedTask | None:
        """The task whose turn it is, or the given client's."""
        with self._wake:
            for name in [client] if client is not None else list(self._turns):
                for task in self._turns.get(name, ()):
                    if task not in self._busy and (task.steps[0].short or not short):
                        task.begun = True
                        self._busy.append(task)
                        self._turns.move_to_end(name)
                        return task
            return None

    def _work(self) -> None:
        while True:
            task = self._next()
            if task is None:
                with self._wake:
                    if self.closed:
                        return
                    if not len(self):
                        self._wake.wait(1.0)
                continue
            self._step(task)

    def _step(self, task: QueuedTask) -> None:
        """Take a task's next step; nothing it raises ends the thread."""
        problem: BaseException | None = None
        step = task.steps.popleft()
        try:
            # A short step may be let in where a long one has gradients switched off.
            with torch.inference_mode(False), torch.enable_grad():
                step.run()
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            problem = error
            task.steps.clear()
        with self._wake:
            self._busy.remove(task)
            over = not task.steps
            own = self._turns.get(task.client)
            if over and own is not None and task in own:
                own.remove(task)
                if not own:
                    del self._turns[task.client]
        if over:
            with contextlib.suppress(Exception):
                task.ended(problem)
