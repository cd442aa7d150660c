"""``vitrail doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from vitrail.cli.common import (
    DeviceOption,
    ModelOption,
    ScoresOption,
    WeightsOption,
    err,
    load_model,
    out,
    plain_table,
)
from vitrail.errors import InputError

if TYPE_CHECKING:
    from vitrail.models import LoadedModel


def doctor(
    model: ModelOption = "scenes",
    weights: WeightsOption = "pretrained",
    device: DeviceOption = "cpu",
    speed: Annotated[
        bool,
        typer.Option(
            "--speed",
            help="Time the attention, gradient and relevance methods on this device instead. Each row is a batch of "
            "random inputs: milliseconds, and how many forward passes (F), or forward and backward passes (F+B), of "
            "the bare model take as long. About 2 seconds a method.",
        ),
    ] = False,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            "--batch",
            metavar="N",
            min=1,
            help="Inputs in a batch, with --speed. Repeat it for several sizes. Default: 1, on a GPU 1 and 8.",
            show_default=False,
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="NAME=ROLE",
            help="What a tensor of the inputs is, as pixel_values=image or input_ids=shared. Repeat it for several.",
            show_default=False,
        ),
    ] = None,
    of: Annotated[
        str | None, typer.Option("--of", metavar="NAME", help="The tensor that is explained.", show_default=False)
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            metavar="NAME|INDEX",
            help="The part of the model's output that holds the class scores.",
            show_default=False,
        ),
    ] = None,
    scores: ScoresOption = None,
) -> None:
    """Check a model: its structure, and which methods work on it.

    Every method runs once on random noise, except the perturbation methods, which are only checked.
    """
    if batch and not speed:
        raise InputError("--batch goes with --speed: the check of a model takes one input")
    roles = _roles(role or [])
    with err.status(f"Loading {escape(model)}"):
        loaded = load_model(model, weights, device, scores)
    if speed:
        for size in batch or ((1,) if device == "cpu" else (1, 8)):
            _print_speed(loaded, size)
        return
    from vitrail.tools.diagnose import diagnose

    with err.status("Running every method on random noise"):
        part = int(output) if output is not None and output.lstrip("-").isdecimal() else output
        diagnosis = diagnose(loaded, roles=roles or None, of=of, output=part, scores=scores)
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


def _roles(given: list[str]) -> dict[str, str]:
    """Roles by name from the command line.

    Example:
        >>> _roles(["pixel_values=image", "input_ids=shared"])
        {'pixel_values': 'image', 'input_ids': 'shared'}
    """
    pairs = [one.partition("=") for one in given]
    wrong = next((one for one, (name, _, role) in zip(given, pairs, strict=True) if not (name and role)), None)
    if wrong is not None:
        raise InputError(f"--role {wrong} is not NAME=ROLE: write a tensor's name and its role, as pixel_values=image")
    return {name: role for name, _, role in pairs}


def _print_speed(loaded: LoadedModel, batch: int) -> None:
    """Print what methods cost for a batch, each row as soon as it is measured."""
    from vitrail.inputs.random_inputs import vocabulary_size
    from vitrail.tools.speed import FORWARD_BACKWARD, speed_rows

    kind = "image" if vocabulary_size(loaded.module) is None else "text"
    title, width = f"{batch} {kind}{'s' if batch > 1 else ''}", len(FORWARD_BACKWARD)
    note = f"Timing methods on random {kind}s, {title} in a batch; other programs on this machine change the times."
    err.print(note, highlight=False, soft_wrap=True)
    out.print(f"[bold]{title:<{width}}{'ms ↓':>10}{'× F ↓':>9}{'× F+B ↓':>10}[/bold]", soft_wrap=True)
    with err.status("Timing the bare model") as status:

        def starting(call: str) -> None:
            status.update(f"Timing {call}")

        for row in speed_rows(loaded, batch=batch, starting=starting):
            status.stop()  # else the spinner and the row share a line
            numbers = f"{row.seconds * 1e3:10.1f}{row.over_forward:9.2f}{row.over_forward_backward:10.2f}"
            out.print(f"{row.call:<{width}}{numbers}", markup=False, highlight=False, soft_wrap=True)
            status.start()
