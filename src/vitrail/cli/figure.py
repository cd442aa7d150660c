"""``vitrail figure``."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli.common import (
    DeviceOption,
    ModelOption,
    TargetOption,
    WeightsOption,
    err,
    load_model,
    model_sentence,
    out,
    parse_targets,
    plain_table,
    require_files,
    require_output,
)
from vitrail.errors import InputError, OptionError, OutputError, require, writing
from vitrail.tools.figures.registry import FIGURES, Progress, draw, find_figure

#: File types of a figure.
SUFFIXES = (".png", ".pdf", ".svg")


def figure(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A figure. Without it, all figures are listed.", show_default=False),
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Argument(help="Image files. Without any, embedded scenes are used.", show_default=False),
    ] = None,
    model: ModelOption = "scenes",
    weights: WeightsOption = "pretrained",
    target: TargetOption = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the figure. Repeat it for several."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="A .png, .pdf or .svg file. Default: out/NAME.png.",
            show_default=False,
        ),
    ] = None,
    device: DeviceOption = "cpu",
) -> None:
    """Draw a figure of the papers for any model and images.

    Without --target, figures about two classes use the two most probable ones, and embedded scenes use the classes of
    their objects.

    For example: `vitrail figure gradtoken-10 cat.jpg -m timm:vit_base_patch16_224 --target 281 -o heads.pdf`
    """
    from vitrail.models.preprocess import open_image

    if name is None:
        _list_figures()
        return
    entry = find_figure(name)
    require("matplotlib", "plot", "draw figures")
    to = Path("out") / f"{name}.png" if to is None else to
    if to.suffix.lower() not in SUFFIXES:
        raise OutputError(f"{to} has an unsupported file type: use one of {', '.join(SUFFIXES)}")
    require_output(to, folder=False)
    options = dict(_parse_option(text) for text in option or ())
    require_files(images or ())
    for path in images or ():  # report an unreadable file before the model is loaded
        open_image(path)
    loaded = load_model(model, weights, device)
    targets = parse_targets(loaded, target)
    with _progress() as progress:
        drawing = draw(entry.name, loaded, list(images) if images else None, targets, progress, **options)
    with writing(to, "choose another file with --out"):
        to.parent.mkdir(parents=True, exist_ok=True)
        drawing.savefig(to)
    if images:
        out.print(model_sentence(model, weights), highlight=False, soft_wrap=True)
    out.print(f"{entry.name}, {entry.title}: [bold]{to}[/bold]", soft_wrap=True, highlight=False)


def _list_figures() -> None:
    table = plain_table("figure", "shows", "options", "cite")
    table.columns[0].no_wrap = table.columns[3].no_wrap = True
    for entry in FIGURES.values():
        options = (f"{k}={v}" for k, v in entry.options.items() if k != "truth")
        table.add_row(entry.name, entry.title, ", ".join(options), entry.cite)
    out.print(table, highlight=False)
    out.print("`vitrail figure NAME IMAGES… --model …` draws one. Pass options as --option key=value.", highlight=False)


def _parse_option(text: str) -> tuple[str, Any]:
    """Split KEY=VALUE and convert the value to a Python literal if it is one.

    Example:
        >>> _parse_option("block=3"), _parse_option("block=mean"), _parse_option("masks=[1, 2]")
        (('block', 3), ('block', 'mean'), ('masks', [1, 2]))
    """
    key, equals, value = text.partition("=")
    if not equals or not key or key == "truth":  # "truth" takes tensors, which cannot be typed
        raise OptionError(f"--option {text} is not an option: write it as key=value")
    constants = {"true": True, "false": False, "none": None}
    if value.lower() in constants:
        return key, constants[value.lower()]
    try:
        return key, literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a progress bar on standard error: steps, and how many images the model has evaluated."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("{task.fields[count]}"), TimeElapsedColumn())  # fmt: skip
    with RichProgress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        yield BarProgress(bar)


class BarProgress(Progress):
    """Shows the progress of a figure as a bar."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.count = bar, 0
        self.task = bar.add_task("Starting", total=1, count="")

    def begin(self, what: str, total: int) -> None:
        """Start a bar of ``total`` steps."""
        if total < 1:
            raise InputError("there are no images to draw: pass at least one")
        self.bar.reset(self.task, description=what, total=total, count="")

    def step(self) -> None:
        """Advance the bar."""
        self.bar.advance(self.task)

    def evaluated(self, images: int) -> None:
        """Update the number of evaluated images."""
        self.count += images
        self.bar.update(self.task, count=f"{self.count} images evaluated")
