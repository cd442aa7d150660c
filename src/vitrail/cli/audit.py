"""``vitrail audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from vitrail.cli.common import err, open_in_browser, out, plain_table, require_output


def audit(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            show_default=False,
            help="Folder or key of a run with keep_maps = true, or the --out folder of `vitrail explain DIR`. "
            "Default: the newest run.",
        ),
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder of all runs.")] = Path("runs"),
    to: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder of both files. Default: RUN.", show_default=False),
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="Whose maps. Default: the first method.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help='"predicted" or "label", in runs with both.', show_default=False)
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUN",
            show_default=False,
            help="Maps of the same images by another model or version: adds the drift of each class.",
        ),
    ] = None,
    per_class: Annotated[int, typer.Option("--per-class", min=1, help="Most maps that are read of a class.")] = 200,
    checks: Annotated[
        int,
        typer.Option("--checks", min=0, help="Maps to compute again and check, about 120 forward passes each."),
    ] = 8,
    device: Annotated[str, typer.Option("--device", help="Torch device for the checks.")] = "cpu",
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Find shortcuts in the maps of a data set.

    Clusters the maps of each class and lists places that many maps share and that are off the object, such as a
    watermark. Also mean maps, relevance on the border and outside the object, failed checks, and drift between models.
    Writes audit.html, and audit.json for a model card.

    For example: `vitrail explain photos/ --out maps/`, then `vitrail audit maps/ --open`
    """  # fmt: skip
    from vitrail.bench.audit import write_audit
    from vitrail.bench.report import find_run
    from vitrail.models.percentages import percent

    if to is not None:
        require_output(to)
    other = None if against is None else find_run(against, runs)
    with err.status("Audit") as status:
        found, page = write_audit(
            find_run(run, runs), to, method=method, target=target, against=other, per_class=per_class, checks=checks,
            device=device, advance=lambda step: status.update(f"Audit: {step.lower()}"),
        )  # fmt: skip
    table = plain_table("", "class", "score", "finding")
    for number, one in enumerate(found.findings[:5], 1):
        owner = f"{one.name} [dim]{escape(one.model)}[/dim]" if one.model else escape(one.name)
        table.add_row(str(number), owner, f"{one.score:.2f}", one.sentence)
    if found.findings:
        out.print(table)
    else:
        out.print("No findings: no cluster of a class has 10 % of its relevance at one place off the object.")
    if found.checks:
        total = sum(found.checks.values())
        out.print(f"{percent(found.failed_checks)} of {total} checked maps failed", highlight=False)
    out.print(f"Audit: [bold]{escape(str(page))}[/bold]", soft_wrap=True, highlight=False)
    if browse:
        open_in_browser(page)
