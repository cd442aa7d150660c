"""``vitrail doctor``."""

from __future__ import annotations

from rich.markup import escape

from vitrail.cli.common import DeviceOption, ModelOption, WeightsOption, load_model, out, plain_table


def doctor(model: ModelOption = "scenes", weights: WeightsOption = "pretrained", device: DeviceOption = "cpu") -> None:
    """Check a model: its structure, and which methods work on it.

    Every method runs once on random noise, except the perturbation methods, which are only checked.
    """
    from vitrail.diagnose import diagnose

    diagnosis = diagnose(load_model(model, weights, device))
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
