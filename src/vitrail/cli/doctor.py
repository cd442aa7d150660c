"""``vitrail doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from vitrail.cli.common import DeviceOption, ModelOption, WeightsOption, load_model, out, plain_table

if TYPE_CHECKING:
    from vitrail.models import LoadedModel


def doctor(
    model: ModelOption = "scenes",
    weights: WeightsOption = "pretrained",
    device: DeviceOption = "cpu",
    speed: Annotated[
        bool, typer.Option("--speed", help="Time the methods on this device instead, as ratios to bare passes.")
    ] = False,
) -> None:
    """Check a model: its structure, and which methods work on it.

    Every method runs once on random noise, except the perturbation methods, which are only checked.
    """
    loaded = load_model(model, weights, device)
    if speed:
        _print_speed(loaded)
        return
    from vitrail.diagnose import diagnose

    diagnosis = diagnose(loaded)
    table = plain_table(padding=(0, 2, 0, 0))
    for name, value in diagnosis.properties:
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    out.print(table)
    table = plain_table("check", "result")
    for name, result in diagnosis.checks:
        table.add_row(name, escape(result))
    out.print(table)
    table = plain_table("method", "works", "remark")
    for name, works, remark in diagnosis.methods:
        table.add_row(name, "[green]yes[/green]" if works else "[red]no[/red]", escape(remark))
    out.print(table)


def _print_speed(loaded: LoadedModel) -> None:
    """Print what methods cost for one image and for eight."""
    from vitrail.speed import measure_speed

    for batch in (1, 8):
        table = plain_table(f"{batch} image{'s' if batch > 1 else ''}", "ms ↓", "× F ↓", "× F+B ↓")
        for row in measure_speed(loaded, batch=batch):
            ratios = (f"{row.over_forward:.2f}", f"{row.over_forward_backward:.2f}")
            table.add_row(escape(row.call), f"{row.seconds * 1e3:.1f}", *ratios)
        out.print(table)
