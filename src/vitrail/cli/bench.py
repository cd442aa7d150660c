"""The command ``vitrail bench``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.common import ImportOption
from vitrail.errors import OptionError, require

if TYPE_CHECKING:
    from vitrail.bench.dry_run import DryRun
    from vitrail.bench.results_store import ResultsStore

EngineOption = Annotated[
    str, typer.Option("--engine", metavar="local|ray", help="Processes of this machine, or actors of a Ray cluster.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Number of workers. Default: one per GPU, or one per core.", show_default=False
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Device: cpu, cuda (all GPUs), cuda:1 …")]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="Address of a Ray cluster: auto, HOST:PORT or ray://…", show_default=False),
]
#: Most lost parts that are printed with their reason.
MAX_LOST = 12


def bench(
    plan: Annotated[
        str, typer.Argument(metavar="[PLAN]", help="A TOML file, or the name of a plan of the package.")
    ] = "scenes",
    listing: Annotated[
        bool, typer.Option("--list", help="List the plans of the package with their estimated cost.")
    ] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME=ADDRESS",
            help="Folder or address of a data set of the plan; repeat it for several. "
            "Default: the subfolder of that name in the folder VITRAIL_DATA.",
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option("--weights", metavar="MODEL=FILE", help="Weights of a model of the plan; repeat it for several."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Maximum number of images of each data set, for a quick test.")
    ] = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N|env", help="Run the I-th of N shares only.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Keep the finished parts of an earlier run, or delete them.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plan and estimate forward passes, time and memory; do not run.")
    ] = False,
    to: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of all runs.")] = Path("runs"),
    device: DeviceOption = "cpu",
    address: AddressOption = None,
    imports: ImportOption = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser at the end.")] = False,
) -> None:
    """Run a benchmark: models × methods × protocols.

    It can be interrupted and resumed. Images without any score are counted in the last line, and the exit status is
    then 1.

    For example: `vitrail bench scenes --workers 2`, or `vitrail bench gradtoken_table2 --data imagenet=/data/imagenet`
    """
    from rich.markup import escape

    from vitrail.cli import common

    require_bench()
    from vitrail.bench.dry_run import dry_run_all, dry_run_plan
    from vitrail.bench.engines import LostTasksError
    from vitrail.bench.engines.shard import parse_shard
    from vitrail.bench.plan import PlanError
    from vitrail.bench.plan_file import PlanOverrides
    from vitrail.bench.report import write_report
    from vitrail.bench.results_table import count_failed_images
    from vitrail.bench.run import make_engine, open_run, run_missing
    from vitrail.bench.run_progress import show_progress

    own_shard = parse_shard(shard) if shard else None
    if own_shard is not None and not resume:
        raise OptionError("--fresh would delete the parts of other shards: delete the run's folder instead")
    overrides = PlanOverrides(
        parse_pairs("--data", data), parse_pairs("--weights", weights), limit, tuple(imports or ())
    )
    # A process that only distributes work needs no GPU; a single worker, or a dry run, is this process.
    devices = getattr(make_engine(engine, workers, device, 1, address), "devices", None)
    own_device = devices[0] if devices and (len(devices) == 1 or dry_run) else "cpu"
    worker_count = len(devices) if devices else workers or 1
    if listing:
        _print_plans(dry_run_all(worker_count, own_device, overrides))
        return
    _print_new_name(plan)
    try:
        if dry_run:
            _print_dry_run(dry_run_plan(plan, to, worker_count, own_device, overrides))
            return
        store = open_run(plan, to, device=own_device, overrides=overrides, fresh=not resume, worker_device=device)
    except PlanError as error:  # several lines, which the command line would join into one
        common.err.print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    runner = make_engine(engine, workers, device, store.context.plan.threads, address)
    warn_shared_gpu(runner)
    try:
        with show_progress(common.err) as progress:
            done = run_missing(store, runner, own_shard, progress.begin, progress.done)
    except LostTasksError as error:
        left = len(store.missing())
        if left == len(store.chunks):
            raise
        _print_lost(store, error.reasons)
        common.out.print(f"Report: [bold]{write_report(store.folder, device=own_device)}[/bold]", soft_wrap=True)
        raise typer.Exit(error.exit_status) from error
    left = len(store.missing())
    if left:
        common.out.print(
            f"{done} parts done; {left} parts of other shards are missing: [bold]{store.folder}[/bold]", soft_wrap=True
        )
        return
    _print_summary(store)
    page = write_report(store.folder, device=own_device)
    common.out.print(f"Report: [bold]{page}[/bold]", soft_wrap=True)
    if show:
        common.open_in_browser(page)
    failed, count = count_failed_images(store.merge())
    if failed:
        common.out.print(f"{count - failed} of {count} images scored, {failed} failed", highlight=False)
        raise typer.Exit(1)


def require_bench() -> None:
    """Raise an error if a library of the extra ``bench`` is missing."""
    for module in ("pydantic", "polars", "pyarrow"):
        require(module, "bench", "run benchmarks")


def parse_pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """Parse ``NAME=VALUE`` arguments into values by name."""
    options = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise OptionError(f"{option} {text}: expected NAME=PATH, for example {option} imagenet=/data")
        options[name] = value
    return options


def _print_note(text: str) -> None:
    from vitrail.cli import common

    common.err.print(f"[yellow]note:[/yellow] {text}", highlight=False, soft_wrap=True)


def _print_new_name(plan: str) -> None:
    """Print a note if a plan was given by its former name."""
    from vitrail.bench.papers import current_name

    if current_name(plan) != plan:
        _print_note(f"the plan {plan} is now called {current_name(plan)}")


def warn_shared_gpu(engine: Any) -> None:
    """Print a note if several workers share a GPU, which slows all of them down."""
    devices: list[str] = getattr(engine, "devices", ["cpu"])
    gpus = len(set(devices))
    if devices[0] != "cpu" and len(devices) > gpus:
        shared = "one GPU" if gpus == 1 else f"{gpus} GPUs"
        _print_note(f"{len(devices)} workers share {shared}; one worker per GPU, the default, is likely to be faster")


def _print_table(rows: list[tuple[str, str]]) -> None:
    from rich.table import Table

    from vitrail.cli import common

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, value in rows:
        table.add_row(f"[bold]{label}[/bold]", value)
    common.out.print(table)


def _print_dry_run(dry_run: DryRun) -> None:
    """Print the estimated cost of a plan."""
    folder = [("run", str(dry_run.folder))] if dry_run.folder else []
    notes = [("note", note) for note in dry_run.notes]
    _print_table([("plan", dry_run.plan.name), *folder, *dry_run.estimate.rows(), *notes])


def _print_plans(rows: list[tuple[str, DryRun]]) -> None:
    """Print all plans with their estimated cost."""
    from rich.table import Table

    from vitrail.bench.dry_run import plan_summary
    from vitrail.cli import common

    table = Table("plan", "images", "forward passes", "time", "memory", "", box=None, header_style="bold")
    for name, (_, _, cost, notes) in rows:
        numbers = (f"{cost.images:,}", f"{cost.forwards:,.0f}", cost.time, f"{cost.memory / 2**30:.1f} GiB")
        table.add_row(name, *numbers, "\n".join((plan_summary(name), *(f"[dim]{note}[/dim]" for note in notes))))
    common.out.print(table)
    common.out.print("Times are rough; --dry-run measures. Give folders with --data, or set VITRAIL_DATA.")


def _print_lost(store: ResultsStore, reasons: Mapping[str, str]) -> None:
    """Print the parts that could not be computed, and the paths of the tables of the others."""
    from rich.markup import escape

    from vitrail.bench.results_store import PARTIAL
    from vitrail.cli import common

    for name, reason in list(reasons.items())[:MAX_LOST]:
        common.err.print(f"[red]missing:[/red] {name}: {escape(reason)}", highlight=False, soft_wrap=True)
    if len(reasons) > MAX_LOST:
        common.err.print(f"[red]missing:[/red] {len(reasons) - MAX_LOST} more", highlight=False)
    common.out.print(f"Table of the finished parts: [bold]{store.folder / PARTIAL[1]}[/bold]", soft_wrap=True)
    total, left = len(store.chunks), len(store.missing())
    common.out.print(
        f"{total - left} of {total} parts are in the tables, {left} could not be computed: run the same command again",
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _print_summary(store: ResultsStore) -> None:
    """Write the tables of a run, and print their paths and the most frequent failures."""
    from rich.table import Table

    from vitrail.bench.results_table import count_failures
    from vitrail.cli import common

    results, csv, costs = store.export()
    table = store.merge()
    failed = count_failures(table)
    _print_table([("rows", f"{len(table):,}"), ("results", f"{results}\n{csv}"), ("costs", str(costs)),
                  ("without a score", f"{failed['rows'].sum():,} rows")])  # fmt: skip
    if len(failed):
        shown = Table("model", "method", "rows", "reason", box=None, header_style="bold")
        for row in failed.head(12).iter_rows(named=True):
            shown.add_row(row["model"], row["method"], str(row["rows"]), row["error"])
        common.out.print(shown)
