"""Run a plan from Python: validate it, open its run folder, and compute the missing parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vitrail.bench.context import open_context
from vitrail.bench.engines import BenchTask, Engine, LostTasksError, TaskCallback
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.engines.ray import RayEngine
from vitrail.bench.engines.shard import select_shard
from vitrail.bench.plan_file import PlanOverrides
from vitrail.bench.results_store import ResultsStore
from vitrail.bench.validate import read_plan
from vitrail.errors import OptionError

#: Names of the engines.
ENGINES = ("local", "ray")


def make_engine(
    name: str = "local", workers: int | None = None, device: str = "cpu", threads: int = 1, address: str | None = None
) -> LocalEngine | RayEngine:
    """Return an engine by name.

    Args:
        name: "local" or "ray".
        workers: Number of workers. Default: one per GPU, or one per core.
        device: "cpu", "cuda" for all GPUs, or one device.
        threads: Torch threads of each CPU worker.
        address: Address of a Ray cluster.
    """
    if name == "local":
        return LocalEngine(workers, device, threads)
    if name == "ray":
        return RayEngine(workers, device, threads, address)
    raise OptionError(f"--engine {name}: choose from {', '.join(ENGINES)}")


def open_run(
    source: str | Path,
    out: str | Path = "runs",
    *,
    device: str = "cpu",
    overrides: PlanOverrides | None = None,
    fresh: bool = False,
    worker_device: str | None = None,
) -> ResultsStore:
    """Validate a plan and open the folder of its run, which is created if it does not exist.

    Args:
        source: A file, or the name of a plan of the package.
        out: Folder of all runs.
        device: Device of the models in this process.
        overrides: Settings given in addition to the plan: folders of data sets, weights files, a limit.
        fresh: Delete the parts that exist.
        worker_device: Device of the workers, if it is not ``device``.

    Raises:
        PlanError: The plan cannot be run; the message lists every problem.
    """
    plan, text = read_plan(source, device, overrides)
    context = open_context(plan.model_dump_json(), device)
    return ResultsStore.create(context, Path(out), text, fresh=fresh, device=worker_device)


def run_missing(
    store: ResultsStore,
    engine: Engine,
    shard: tuple[int, int] | None = None,
    begin: Callable[[Sequence[BenchTask], int], None] = lambda _, __: None,
    done: TaskCallback = lambda _: None,
) -> int:
    """Compute the missing parts of a run, and again those with images of a store that did not answer.

    Returns:
        Number of parts that were computed.

    Raises:
        LostTasksError: Some parts could not be computed; the table of the others is written.
    """
    missing = store.to_compute()
    selected = missing if shard is None else [chunk for chunk in select_shard(store.chunks, shard) if chunk in missing]
    begin(selected, len(store.chunks) - len(missing))
    try:
        engine.run(selected, done)
    except LostTasksError:
        store.export_partial()
        raise
    return len(selected)


def run_plan(
    source: str | Path,
    out: str | Path = "runs",
    *,
    device: str = "cpu",
    overrides: PlanOverrides | None = None,
    engine: Engine | None = None,
    fresh: bool = False,
) -> ResultsStore:
    """Run a plan and write its tables; finished parts of an earlier run are kept.

    Args:
        source: A file, or the name of a plan of the package.
        out: Folder of all runs.
        device: Device of the models.
        overrides: Settings given in addition to the plan: folders of data sets, weights files, a limit.
        engine: Engine that runs the chunks. Default: one local worker.
        fresh: Delete the parts that exist.

    Returns:
        The run; `ResultsStore.merge` returns its table.

    Raises:
        PlanError: The plan cannot be run; the message lists every problem.
    """
    store = open_run(source, out, device=device, overrides=overrides, fresh=fresh)
    run_missing(store, engine or LocalEngine(1, device, store.context.plan.threads))
    store.export()
    return store
