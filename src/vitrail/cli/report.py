"""``vitrail report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vitrail.cli.common import open_in_browser, out, require_output


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            show_default=False,
            help="Folder or key of a run, or a .json file of token-F1 scores. Default: the newest run.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of all runs.")] = Path("runs"),
    to: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder for the report. Default: the run's folder.", show_default=False
        ),
    ] = None,
    examples: Annotated[
        int,
        typer.Option(
            "--cases",
            min=0,
            help="Number of example images with the best, the worst and the most different maps, for each model and "
            "data set. With 0 no model is loaded.",
        ),
    ] = 1,
    device: Annotated[str, typer.Option("--device", help="Torch device for the maps of the example images.")] = "cpu",
    leaderboard: Annotated[
        Path | None,
        typer.Option(
            "--leaderboard",
            metavar="DIR",
            show_default=False,
            help="Also write an entry of the leaderboard for each method into this folder.",
        ),
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Write a report of a run: tables, curves, example images.

    The report is written as HTML, Markdown and CSV. Runs of a published table are compared with the paper's numbers.

    For example: `vitrail report runs/1e84f672cc4edef5 --open`
    """
    from vitrail.bench.report import find_run, write_rationale_report, write_report

    for folder in (to, leaderboard):
        if folder is not None:
            require_output(folder)
    if run is not None and Path(run).suffix == ".json":
        page = write_rationale_report(run, to)
    else:
        page = write_report(find_run(run, runs), to, examples=examples, device=device)
    if leaderboard is not None:
        from vitrail.bench.leaderboard import write_entries

        entries = write_entries(find_run(run, runs), leaderboard)
        out.print(f"Entries: {len(entries)} in [bold]{leaderboard}[/bold]", soft_wrap=True, highlight=False)
    out.print(f"Report: [bold]{page}[/bold]", soft_wrap=True)
    if browse:
        open_in_browser(page)
