"""``vitrail doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from vitrail.cli.common import DeviceOption, ModelOption, WeightsOption, err, load_model, out, plain_table
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
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            metavar="FILE",
            help="Also list what a detector detects in this image, with the numbers that `--box` takes.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check a model: its structure, and which methods work on it.

    Every method runs once on random noise, except the perturbation methods, which are only checked.
    """
    if image is not None and speed:
        raise InputError("--image lists what a detector detects: it does not go with --speed")
    if batch and not speed:
        raise InputError("--batch goes with --speed: the check of a model takes one input")
    with err.status(f"Loading {escape(model)}"):
        loaded = load_model(model, weights, device)
    if speed:
        for size in batch or ((1,) if device == "cpu" else (1, 8)):
            _print_speed(loaded, size)
        return
    if image is not None:
        from vitrail.cli.named_targets import detection_table

        out.print(detection_table(loaded, image))
    from vitrail.tools.diagnose import diagnose

    with err.status("Running every method on random noise"):
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
