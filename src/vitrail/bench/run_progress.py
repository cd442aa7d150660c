"""Progress of a run: a bar on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)  # fmt: skip

from vitrail.bench.engines import BenchTask

#: Seconds between two lines where there is no terminal.
LINE_INTERVAL = 30.0


class ProgressCounter:
    """Count finished tasks and maps."""

    def __init__(self) -> None:
        self.tasks = self.maps = self.before = self.tasks_done = self.maps_done = 0
        self.started = monotonic()
        self.bar: tuple[Progress, TaskID] | None = None

    def begin(self, tasks: Sequence[BenchTask], before: int = 0) -> None:
        """Start the count: these tasks are to be done, and ``before`` others were done earlier."""
        self.tasks, self.maps, self.before = len(tasks), sum(task.maps for task in tasks), before
        self.started = monotonic()
        if self.bar is not None:
            self.bar[0].update(self.bar[1], total=self.maps, parts=self.parts)

    def done(self, task: BenchTask) -> None:
        """Count a finished task."""
        self.tasks_done += 1
        self.maps_done += task.maps
        if self.bar is not None:
            bar, number = self.bar
            bar.update(number, completed=self.maps_done, rate=f"{self.rate:.1f} maps/s", parts=self.parts)

    @property
    def rate(self) -> float:
        """Maps per second, scoring included."""
        return self.maps_done / max(monotonic() - self.started, 1e-9)

    @property
    def parts(self) -> str:
        """Number of finished parts, of all parts."""
        return f"{self.before + self.tasks_done}/{self.before + self.tasks} parts"

    def line(self) -> str:
        """Return the progress as one line of text.

        Example:
            >>> ProgressCounter().line()
            '0/0 parts, 0 of 0 maps, 0.0 maps/s, time left unknown'
        """
        left = "time left unknown"
        if self.maps_done:
            seconds = (self.maps - self.maps_done) / self.rate
            left = f"{seconds / 60:.1f} min left" if seconds >= 60 else f"{seconds:.0f} s left"
        return f"{self.parts}, {self.maps_done} of {self.maps} maps, {self.rate:.1f} maps/s, {left}"


@contextmanager
def show_progress(console: Console, title: str = "Maps", interval: float = LINE_INTERVAL) -> Iterator[ProgressCounter]:
    """Show a progress counter until the block ends."""
    counter = ProgressCounter()
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[parts]}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True) as bar:
            counter.bar = (bar, bar.add_task(title, total=counter.maps, rate="", parts=counter.parts))
            yield counter
        return
    stop = threading.Event()

    def print_lines() -> None:
        while not stop.wait(interval):
            console.print(counter.line(), highlight=False, soft_wrap=True)

    printer = threading.Thread(target=print_lines, daemon=True)
    printer.start()
    try:
        yield counter
    finally:
        stop.set()
        printer.join()
        if counter.before + counter.tasks:  # an error before the first task needs no count
            console.print(counter.line(), highlight=False, soft_wrap=True)
