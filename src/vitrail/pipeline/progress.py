"""Progress of methods that evaluate a model many times: how many images are expected, and a bar that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from vitrail.capture.model_structure import ModelStructure
from vitrail.errors import OptionError
from vitrail.methods.cost import size_of
from vitrail.pipeline.method_job import MethodJob

#: True shows a bar on standard error; a function is called with the number of images evaluated so far and the number
#: expected; None and False show nothing.
Progress = bool | Callable[[int, int], None] | None
Advance = Callable[[int], None]


def expected_evaluations(jobs: Sequence[MethodJob], structure: ModelStructure, images: int, targets: int) -> int:
    """Images that methods evaluate beyond the shared pass, at most; 0 if they only read the pass."""
    size = size_of(structure)
    return images * sum(job.method.cost(job.options, size, targets).evaluations for job in jobs)


@contextmanager
def evaluation_progress(progress: Progress, total: int, advance: Advance) -> Iterator[Advance]:
    """Yield a function to be called with the number of images just evaluated, which shows progress if wanted.

    Args:
        progress: How to show it.
        total: Images expected in all. Nothing is shown for 0.
        advance: Also called with each number.

    Example:
        >>> with evaluation_progress(lambda done, total: print(done, "of", total), 3, lambda _: None) as advance:
        ...     advance(2)
        2 of 3
        3 of 3
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise OptionError(f"progress={progress!r} must be True, False, None or a function of two numbers")
    if progress in (None, False) or total == 0:
        yield advance
    elif callable(progress):
        with _reported(progress, total, advance) as report:
            yield report
    else:
        with _bar(total) as show, _reported(show, total, advance) as report:
            yield report


@contextmanager
def _reported(show: Callable[[int, int], None], total: int, advance: Advance) -> Iterator[Advance]:
    """Count images; methods that need fewer than expected end at the expected number."""
    done = 0

    def report(images: int) -> None:
        nonlocal done
        done += images
        advance(images)
        show(min(done, total), total)

    yield report
    if done != total:
        show(total, total)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error that disappears at the end, also after an error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("Evaluating images"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done, _: bar.update(task, completed=done)
