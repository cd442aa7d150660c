"""The command ``vitrail bench``, and ``vitrail explain`` of a folder: typed functions over the engines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.errors import OptionError, require

ENGINES = ("local", "ray")

EngineOption = Annotated[
    str, typer.Option("--engine", metavar="local|ray", help="Processes of this machine, or actors of a Ray cluster.")
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="How many; default: one a GPU, or one a core.", show_default=False),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda (all GPUs), cuda:1 …")]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="Of a Ray cluster: auto, HOST:PORT or ray://…", show_default=False),
]


def bench(
    plan: Annotated[str, typer.Argument(metavar="[PLAN]", help="A TOML file, or a plan of the package.")] = "scenes",
    listing: Annotated[
        bool, typer.Option("--list", help="List the plans of the package and about what each would take.")
    ] = False,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="NAME=FOLDER",
            help="Where a data set of the plan is; repeat it for several. "
            "Else VITRAIL_DATA, a folder that holds one for each, is looked into.",
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option("--weights", metavar="MODEL=FILE", help="Weights of a model of the plan; repeat it for several."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most pictures of each data set, to try things out.")
    ] = None,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N|env", help="Do the I-th of N shares only.", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on from the parts that are there, or forget them.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plan, count forwards, estimate time and memory; run nothing.")
    ] = False,
    to: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder of all runs.")] = Path("runs"),
    device: DeviceOption = "cpu",
    address: AddressOption = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser once it is there.")] = False,
) -> None:
    """Run a benchmark: models × methods × protocols, safe to kill and to run again.

    For example: `vitrail bench scenes --workers 2`, or `vitrail bench 003_table2 --data imagenet=/data/imagenet`
    """
    from rich.markup import escape

    from vitrail.cli import common

    _needs()
    from vitrail.bench.context import open_context
    from vitrail.bench.dry_run import overview, trial
    from vitrail.bench.engines.shard import parse_shard, share
    from vitrail.bench.plan import PlanError, PlanOverrides
    from vitrail.bench.progress import Meter, progress
    from vitrail.bench.results_store import ResultsStore
    from vitrail.bench.validate import read_plan
    from vitrail.report.write import write_report

    part = parse_shard(shard) if shard else None
    if part is not None and not resume:
        raise OptionError("--fresh would remove what other shards have done: remove the run's folder instead")
    given = PlanOverrides(_pairs("--data", data), _pairs("--weights", weights), limit)
    runs = make_engine(engine, workers, device, 1, address)
    # Whoever only hands out work needs no GPU; a single worker, or a trial, is this process.
    devices: list[str] = getattr(runs, "devices", ["cpu"])
    home = "cpu" if len(devices) > 1 and not dry_run else devices[0]
    count = len(getattr(runs, "devices", ())) or workers or 1
    if listing:
        _plans(overview(count, home, given))
        return
    try:
        if dry_run:
            _tried(trial(plan, to, count, home, given))
            return
        checked, text = read_plan(plan, home, given)
    except PlanError as error:  # several lines, which the command line would join into one
        common.err.print(f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    stage = open_context(checked.model_dump_json(), home)
    runs = make_engine(engine, workers, device, checked.threads, address)
    _crowd(runs)
    store = ResultsStore.create(stage, to, text, fresh=not resume, device=device)
    todo = store.missing()
    own = todo if part is None else [c for c in share(store.chunks, part) if c in todo]
    with progress(Meter(), common.err) as meter:
        meter.begin(own, len(store.chunks) - len(todo))
        runs.run(own, meter.done)
    left = len(store.missing())
    if left:
        common.out.print(
            f"{len(own)} parts done; {left} are other shards': [bold]{store.folder}[/bold]", soft_wrap=True
        )
        return
    _summary(store)
    page = write_report(store.folder, device=home)
    common.out.print(f"Report: [bold]{page}[/bold]", soft_wrap=True)
    if show:
        common.open_in_browser(page)


def explain_directory(
    directory: Path,
    to: Path,
    *,
    recursive: bool,
    model: str,
    weights: str,
    methods: list[str],
    target: list[str] | None,
    engine: str,
    workers: int | None,
    device: str,
    address: str | None,
) -> None:
    """Explain every image of a folder, as ``vitrail explain`` does when it is given one."""
    from vitrail.cli import common

    _needs()
    from vitrail.bench.folder import explain_folder
    from vitrail.bench.progress import Meter, progress

    runs = make_engine(engine, workers, device, 1, address)
    _crowd(runs)
    aimed: Any = None
    if target:  # classes for all images alike are a row of them; "topN" stands alone
        aimed = target[0] if len(target) == 1 and target[0].startswith("top") else [target]
    with progress(Meter(), common.err) as meter:
        index = explain_folder(
            directory, to, recursive=recursive, model=model, weights=None if weights == "pretrained" else weights,
            methods=methods, target=aimed, device="cuda:0" if device == "cuda" else device, engine=runs,
            begin=meter.begin, done=meter.done,
        )  # fmt: skip
    common.out.print(f"Index of all maps: [bold]{index}[/bold]", soft_wrap=True)


def make_engine(name: str, workers: int | None, device: str, threads: int, address: str | None) -> Any:
    """An engine by name."""
    if name == "local":
        from vitrail.bench.engines.local import LocalEngine

        return LocalEngine(workers, device, threads)
    if name == "ray":
        from vitrail.bench.engines.ray import RayEngine

        return RayEngine(workers, device, threads, address)
    raise OptionError(f"--engine {name}: choose from {', '.join(ENGINES)}")


def _crowd(runs: Any) -> None:
    """Say so where workers share a GPU, which makes all of them wait."""
    from vitrail.cli import common

    devices: list[str] = getattr(runs, "devices", ["cpu"])
    gpus = len(set(devices))
    if devices[0] != "cpu" and len(devices) > gpus:
        shared = "one GPU" if gpus == 1 else f"{gpus} GPUs"
        common.err.print(
            f"[yellow]note:[/yellow] {len(devices)} workers share {shared} and wait for each other; one a GPU, the "
            "default, is likely to be faster", highlight=False, soft_wrap=True,
        )  # fmt: skip


def _pairs(option: str, given: list[str] | None) -> dict[str, str]:
    """``NAME=VALUE`` as typed, by name."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise OptionError(f"{option} {text}: write a name of the plan, = and a path, as {option} imagenet=/data")
        found[name] = value
    return found


def _needs() -> None:
    for module in ("pydantic", "polars", "pyarrow"):
        require(module, "bench", "run benchmarks")


def _table(rows: list[tuple[str, str]]) -> None:
    from rich.table import Table

    from vitrail.cli import common

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for label, value in rows:
        table.add_row(f"[bold]{label}[/bold]", value)
    common.out.print(table)


def _tried(found: Any) -> None:
    """What a plan would take."""
    _table([("plan", found.plan.name), *([("run", str(found.folder))] if found.folder else []), *found.found.rows(),
            *(("note", note) for note in found.notes)])  # fmt: skip


def _plans(rows: list[tuple[str, Any]]) -> None:
    """All plans and about what each would take."""
    from rich.table import Table

    from vitrail.bench.dry_run import about
    from vitrail.cli import common

    table = Table("plan", "images", "forwards", "time", "memory", "", box=None, header_style="bold")
    for name, (_, _, found, notes) in rows:
        numbers = (f"{found.images:,}", f"{found.forwards:,.0f}", found.time, f"{found.memory / 2**30:.1f} GiB")
        table.add_row(name, *numbers, "\n".join((about(name), *(f"[dim]{note}[/dim]" for note in notes))))
    common.out.print(table)
    common.out.print("Times are rough: --dry-run measures. Give folders with --data, or set VITRAIL_DATA.")


def _summary(store: Any) -> None:
    """What was written, and what failed."""
    from rich.table import Table

    from vitrail.bench.results_store import failures
    from vitrail.cli import common

    results, csv, costs = store.export()
    table = store.merge()
    failed = failures(table)
    _table([("rows", f"{len(table):,}"), ("results", f"{results}\n{csv}"), ("costs", str(costs)),
            ("without a score", f"{failed['rows'].sum():,} rows")])  # fmt: skip
    if len(failed):
        shown = Table("model", "method", "rows", "reason", box=None, header_style="bold")
        for row in failed.head(12).iter_rows(named=True):
            shown.add_row(row["model"], row["method"], str(row["rows"]), row["error"])
        common.out.print(shown)
