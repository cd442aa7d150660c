"""How far a run is: a bar on a terminal, a line now and then elsewhere."""

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

from vitrail.bench.chunk import BenchTask

#: Seconds between two lines where there is no terminal.
EVERY = 30.0


class Meter:
    """Counts what is done."""

    def __init__(self) -> None:
        self.tasks = self.maps = self.before = self.tasks_done = self.maps_done = 0
        self.began = monotonic()
        self.bar: tuple[Progress, TaskID] | None = None

    def begin(self, tasks: Sequence[BenchTask], before: int = 0) -> None:
        """Work begins: these pieces are to be done, and so many were done before."""
        self.tasks, self.maps, self.before = len(tasks), sum(task.maps for task in tasks), before
        self.began = monotonic()
        if self.bar is not None:
            self.bar[0].update(self.bar[1], total=self.maps, parts=self.parts)

    def done(self, task: BenchTask) -> None:
        """A piece of work is finished."""
        self.tasks_done += 1
        self.maps_done += task.maps
        if self.bar is not None:
            bar, number = self.bar
            bar.update(number, completed=self.maps_done, rate=f"{self.rate:.1f} maps/s", parts=self.parts)

    @property
    def rate(self) -> float:
        """Maps a second, made and scored."""
        return self.maps_done / max(monotonic() - self.began, 1e-9)

    @property
    def parts(self) -> str:
        """Parts that are there, of all."""
        return f"{self.before + self.tasks_done}/{self.before + self.tasks} parts"

    def line(self) -> str:
        """Where things stand, in words.

        Example:
            >>> Meter().line()
            '0/0 parts, 0 of 0 maps, 0.0 maps/s, time left unknown'
        """
        left = "time left unknown"
        if self.maps_done:
            seconds = (self.maps - self.maps_done) / self.rate
            left = f"{seconds / 60:.1f} min left" if seconds >= 60 else f"{seconds:.0f} s left"
        return f"{self.parts}, {self.maps_done} of {self.maps} maps, {self.rate:.1f} maps/s, {left}"


@contextmanager
def progress(meter: Meter, console: Console, every: float = EVERY) -> Iterator[Meter]:
    """Show a meter until the block ends."""
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[parts]}"), TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True) as bar:
            meter.bar = (bar, bar.add_task("Maps", total=meter.maps, rate="", parts=meter.parts))
            yield meter
        return
    stop = threading.Event()

    def tell() -> None:
        while not stop.wait(every):
            console.print(meter.line(), highlight=False, soft_wrap=True)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield meter
    finally:
        stop.set()
        teller.join()
        console.print(meter.line(), highlight=False, soft_wrap=True)
