"""``vitrail leaderboard``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from vitrail.cli.common import err, out
from vitrail.errors import VitrailError, error_line


class LeaderboardAction(StrEnum):
    """What `vitrail leaderboard` does."""

    check = "check"


def leaderboard(
    action: Annotated[LeaderboardAction, typer.Argument(help='"check" computes a sample of each entry again.')],
    files: Annotated[list[Path], typer.Argument(help="Entries, as `vitrail report --leaderboard DIR` writes them.")],
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="NAME=DIR", help="Folder of a data set.", show_default=False),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option("--weights", metavar="NAME=FILE", help="Weights of a model.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Torch device of the model.")] = "cpu",
) -> None:
    """Check entries of the leaderboard.

    Computes a sample of their scores again: four images that the run's key decides. An entry is refused, with exit
    status 1, if its weights differ, or if a score differs by more than 0.001 and by more than 1 %.

    For example: `vitrail leaderboard check results/leaderboard/*.toml`
    """
    from vitrail.bench.leaderboard import check_entry
    from vitrail.bench.plan_file import PlanOverrides
    from vitrail.cli.bench import parse_pairs

    del action  # the only one
    overrides = PlanOverrides(parse_pairs("--data", data), parse_pairs("--weights", weights))
    refused = 0
    for path in files:
        try:
            count, mismatches = check_entry(path, overrides=overrides, device=device)
            reasons = [f"{path}: {one}" for one in mismatches]
        except VitrailError as error:  # the other entries are still checked
            count, reasons = 0, [error_line(error) if str(path) in str(error) else f"{path}: {error_line(error)}"]
        for reason in reasons[:5]:
            err.print(f"[red]not reproduced:[/red] {escape(reason)}", soft_wrap=True)
        if not reasons:
            out.print(f"{escape(str(path))}: {count} scores reproduced", highlight=False, soft_wrap=True)
        refused += bool(reasons)
    out.print(f"{len(files) - refused} of {len(files)} entries reproduced, {refused} refused", highlight=False)
    if refused:
        raise typer.Exit(1)
