"""The command ``vitrail report``: a typed function over `write_report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            show_default=False,
            help="A run's folder or key, or a .json file of token-F1; without it, the newest run.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of all runs.")] = Path("runs"),
    to: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Where to write; the run's folder unless told.", show_default=False
        ),
    ] = None,
    cases: Annotated[
        int,
        typer.Option(
            "--cases",
            min=0,
            help="Best, worst and disagreement pictures of each model and data set; with 0 no model is loaded.",
        ),
    ] = 1,
    device: Annotated[str, typer.Option("--device", help="Where maps of these pictures are made.")] = "cpu",
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Turn a run into a page of tables, curves and pictures, beside the paper's numbers where it repeats a table.

    For example: `vitrail report runs/1e84f672cc4edef5 --open`
    """
    from vitrail.cli import common
    from vitrail.report import find_run, write_rationale_report, write_report

    if run is not None and Path(run).suffix == ".json":
        page = write_rationale_report(run, to)
    else:
        page = write_report(find_run(run, runs), to, examples=cases, device=device)
    common.out.print(f"Report: [bold]{page}[/bold]", soft_wrap=True)
    if show:
        open_page(page)


def open_page(page: Path) -> None:
    """Show a page in the user's browser."""
    import webbrowser

    webbrowser.open(page.resolve().as_uri())
