"""The command ``vitrail figure``: a typed function over `draw`, with a progress bar."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.errors import InputError, OptionError, OutputError
from vitrail.figures.registry import FIGURES, Progress, draw, find_figure

#: What a figure can be saved as.
KINDS = (".png", ".pdf", ".svg")


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which figure; without it, the list.", show_default=False)
    ] = None,
    images: Annotated[
        list[Path] | None, typer.Argument(help="Image files; without any, embedded scenes.", show_default=False)
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", metavar="SOURCE:NAME", help="The model; see `vitrail models`.")
    ] = "scenes",
    weights: Annotated[
        str, typer.Option("--weights", "-w", metavar="FILE|pretrained|random", help="Its weights.")
    ] = "pretrained",
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="NAME|INDEX|topN",
            help="Class to explain, by name or index, or the N likeliest; "
            "repeat it for several. For open_clip models, a text. Default: the predicted class, or the two likeliest "
            "where the figure is about two, or what is seen in embedded scenes.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="An option of the figure; repeat it for several."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="A .png, .pdf or .svg file; out/NAME.png by default.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, mps …")] = "cpu",
) -> None:
    """Draw a figure of the papers for any model and images.

    For example: `vitrail figure gradtoken-10 cat.jpg -m timm:vit_base_patch16_224 --target 281 -o heads.pdf`
    """
    from vitrail.cli import common
    from vitrail.models.preprocess import open_image

    if name is None:
        _list()
        return
    line = find_figure(name)
    to = Path("out") / f"{name}.png" if to is None else to
    if to.suffix.lower() not in KINDS:
        raise OutputError(f"{to} cannot be drawn: end its name in {', '.join(KINDS)}")
    chosen = dict(_pair(word) for word in option or ())
    for path in images or ():  # every file is looked at before the model is loaded
        open_image(path)
    about = common.load_model(model, weights, device)
    aimed = common.parse_targets(about, target)
    with _progress() as progress:
        drawn = draw(line.name, about, list(images) if images else None, aimed, progress, **chosen)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(to)
    except OSError as error:
        raise OutputError(f"cannot write {to} ({error})") from error
    common.out.print(f"{line.name}, {line.title}: [bold]{to}[/bold]", soft_wrap=True, highlight=False)


def _list() -> None:
    from rich.table import Table

    from vitrail.cli import common

    table = Table("figure", "shows", "options", "cite", box=None, header_style="bold")
    table.columns[0].no_wrap = table.columns[3].no_wrap = True
    for line in FIGURES.values():
        options = (f"{k}={v}" for k, v in line.options.items() if k != "truth")
        table.add_row(line.name, line.title, ", ".join(options), line.cite)
    common.out.print(table, highlight=False)
    common.out.print(
        "`vitrail figure NAME IMAGES… --model …` draws one; options go as --option key=value.", highlight=False
    )


def _pair(word: str) -> tuple[str, Any]:
    """An option from the command line.

    Example:
        >>> _pair("block=3"), _pair("block=mean"), _pair("masks=[1, 2]"), _pair("methods=rollout,gradtoken")
        (('block', 3), ('block', 'mean'), ('masks', [1, 2]), ('methods', 'rollout,gradtoken'))
    """
    key, equals, value = word.partition("=")
    if not equals or not key or key == "truth":  # which is for programs
        raise OptionError(f"--option {word}: write it as key=value")
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return key, words[value.lower()]
    try:
        return key, literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on standard error: steps done, and how many pictures the model has been shown."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from vitrail.cli import common

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[looks]}"),
               TimeElapsedColumn())  # fmt: skip
    with Bar(*columns, console=common.err, transient=True) as bar:
        yield _Shown(bar)


class _Shown(Progress):
    """Progress as a bar."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.looks = bar, 0
        self.task = bar.add_task("Starting", total=1, looks="")

    def begin(self, what: str, total: int) -> None:
        if total < 1:
            raise InputError("nothing to draw from")
        self.bar.reset(self.task, description=what, total=total, looks="")

    def step(self) -> None:
        self.bar.advance(self.task)

    def evaluated(self, images: int) -> None:
        self.looks += images
        self.bar.update(self.task, looks=f"{self.looks} pictures shown to the model")
