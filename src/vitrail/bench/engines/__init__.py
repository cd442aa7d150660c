"""Engines run the tasks of a benchmark: processes of this machine, Ray actors, or shards of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from vitrail import fast
from vitrail.errors import OutputError, VitrailError

#: Failed tasks after which a run stops that has completed none.
MAX_FAILURES_AT_START = 3


class WorkerError(VitrailError, RuntimeError):
    """Workers died repeatedly, or one met an error that concerns more than a single image."""

    exit_status = 1


class LostTasksError(WorkerError):
    """Some tasks could not be done; all others are complete."""

    def __init__(self, reasons: Mapping[str, str], total: int) -> None:
        self.reasons = dict(reasons)
        name, reason = next(iter(reasons.items()))
        super().__init__(
            f"{len(reasons)} of {total} parts could not be computed, {name}: {reason}. Other parts are complete; run "
            "it again to resume"
        )


class FailedTasks:
    """Failures of tasks, collected while the other tasks go on."""

    def __init__(self, total: int) -> None:
        self.total, self.completed, self.reasons = total, 0, dict[str, str]()

    def add(self, name: str, reason: str) -> None:
        """Add a failure.

        Raises:
            LostTasksError: Nothing was completed before several failures, so that the next tasks are likely to fail.
        """
        self.reasons[name] = reason
        if not self.completed and len(self.reasons) >= MAX_FAILURES_AT_START:
            self.check()

    def note_outcome(self, task: BenchTask, failure: tuple[str, str] | None, done: TaskCallback) -> None:
        """Call ``done`` with a task that succeeded; note one that failed, given the kind and text of its error.

        Raises:
            OutputError: Its result could not be written.
        """
        if failure is None:
            self.completed += 1
            done(task)
        elif failure[0] == "output":
            error = OutputError(failure[1])
            error.exit_status = WorkerError.exit_status
            raise error
        else:
            self.add(task.name, failure[1])

    def check(self) -> None:
        """Raise an error if there was a failure."""
        if self.reasons:
            raise LostTasksError(self.reasons, self.total)


class BenchTask(Protocol):
    """A dataclass that can be sent to another process and knows the file of its result."""

    @property
    def folder(self) -> str:
        """Folder that its files are written to."""

    @property
    def name(self) -> str:
        """Name of its file, without suffix."""

    @property
    def maps(self) -> int:
        """Number of maps it computes, for progress."""

    def prepare(self, device: str) -> None:
        """Begin to read what the task needs, while another one is computed in the same process."""

    def compute(self, device: str) -> Callable[[], Path]:
        """Do the work; return the function that writes the result's file and returns its path."""


TaskCallback = Callable[[BenchTask], None]


class Engine(Protocol):
    """Runs tasks."""

    def run(self, tasks: Sequence[BenchTask], done: TaskCallback = ...) -> None:
        """Run all tasks; call ``done`` with each that is finished."""


def run_task(task: BenchTask, device: str = "cpu") -> Path:
    """Run one task, in whatever process an engine chose, and return the file that was written."""
    return compute_task(task, device)()


def compute_task(task: BenchTask, device: str = "cpu") -> Callable[[], Path]:
    """Compute one task, and return the function that writes its file.

    Its numbers do not depend on what its process did before.
    """
    with fast.onednn_enabled():
        return task.compute(device)
