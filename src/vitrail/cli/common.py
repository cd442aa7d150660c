"""Shared by the commands: consoles, options, loading a model, reading targets, progress."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from vitrail.cli.network import no_retries
from vitrail.errors import InputError, writing

out = Console()
err = Console(stderr=True)

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="SOURCE:NAME",
        help="timm:NAME, hf:NAME, torchvision:NAME, open_clip:NAME, or the name of an embedded model. "
        "See `vitrail models`.",
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        "-w",
        metavar="FILE|pretrained|random",
        help="A .safetensors file, or a torch file that holds only tensors. 'pretrained' downloads the source's "
        "weights, 'random' downloads nothing.",
    ),
]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="NAME|INDEX|topN",
        help="Class to explain, by name or index, or the N most probable classes. 'tabby|tiger cat' is a group, "
        "explained as one class. Repeat it for several classes. For open_clip models: a text. Default: the predicted "
        "class.",
    ),
]
ScoresOption = Annotated[
    str | None,
    typer.Option(
        "--scores",
        metavar="softmax|sigmoid|identity",
        help="What turns the model's class scores into probabilities: 'sigmoid' for several labels an image, "
        "'identity' for a regression. Default: what the model states.",
        show_default=False,
    ),
]
ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="Import a module that registers methods or scores; it is also looked for in the current folder. Repeat it "
        "for several.",
        show_default=False,
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Torch device: cpu, cuda, cuda:1, mps …")]


class BarAdvance:
    """Advances a progress bar by one when called."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._evaluations: TaskID | None = None

    def __call__(self) -> None:
        """Advance the bar by one."""
        if self._evaluations is not None:
            self._bar.remove_task(self._evaluations)
            self._evaluations = None
        self._bar.advance(self._task)

    def evaluations(self, done: int, total: int) -> None:
        """Show in a second bar how many images were evaluated for the current step, as ``explain(progress=…)``."""
        if self._evaluations is None:
            self._evaluations = self._bar.add_task("Evaluating images", total=total)
        self._bar.update(self._evaluations, completed=done, total=total)


class WarningPrinter:
    """Prints each warning once, as one line on standard error; used in place of `warnings.showwarning`."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def __call__(self, message: Warning | str, *_: Any, **__: Any) -> None:
        """Print the message if it was not printed before; file and line are left out."""
        line = " ".join(str(message).split())
        if line not in self._printed:
            self._printed.add(line)
            err.print("[yellow]warning:[/yellow] ", end="")
            err.print(line, markup=False, highlight=False, soft_wrap=True)


def require_files(paths: Iterable[Path]) -> None:
    """Refuse paths that do not exist, before anything is computed.

    Raises:
        InputError: Some do not exist; all of them are named.
    """
    missing = list(dict.fromkeys(str(path) for path in paths if not path.exists()))
    if missing:
        verb = "does" if len(missing) == 1 else "do"
        raise InputError(f"{', '.join(missing)} {verb} not exist: check the path{'s' * (len(missing) > 1)}")


def require_output(path: Path, *, folder: bool = True) -> None:
    """Refuse a folder or file of results that cannot be written, before anything is computed; makes nothing.

    Raises:
        OutputError: The nearest folder that exists cannot be written to, or is a file.
    """
    own = path.absolute()
    with writing(path, f"choose another {'folder' if folder else 'file'} with --out"):
        if not folder and own.is_dir():
            raise IsADirectoryError(f"{own} is a folder")
        if not folder and own.exists():  # a file that is written in place, such as /dev/stdout
            existing, needed = own, os.W_OK
        else:
            to_make = own if folder else own.parent
            existing = next(one for one in (to_make, *to_make.parents) if one.exists())
            needed = os.W_OK | os.X_OK
            if not existing.is_dir():
                raise NotADirectoryError(f"{existing} is a file")
        if not os.access(existing, needed):
            raise PermissionError(f"no permission to write to {existing}")


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[BarAdvance]:
    """Show a progress bar on standard error; yields a function that advances it by one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Outside of a terminal, rich would print an empty line in place of the bar.
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        yield BarAdvance(progress, progress.add_task(description, total=total))


def plain_table(*columns: str, **options: Any) -> Table:
    """A table without lines, with bold column headings if there are any."""
    return Table(*columns, box=None, header_style="bold", show_header=bool(columns), **options)


def load_model(model: str, weights: str, device: str, scores: str | None = None) -> Any:
    """Load the model named on the command line onto a device; ``scores`` is what the user says of its class scores."""
    from dataclasses import replace

    from vitrail.capture.output_tensors import OutputReading
    from vitrail.models import EMBEDDED_MODELS, load

    OutputReading(scores=scores)  # raises for an unknown word, before anything is loaded
    file = None if weights in ("pretrained", "random") else weights
    if model in EMBEDDED_MODELS and weights != "pretrained":
        raise InputError(f"{model} is an embedded model with its own weights: remove --weights")
    with no_retries(model, weights):
        loaded = load(model, file, pretrained=weights == "pretrained")
    try:
        loaded.module.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    return replace(loaded, scores=scores)


def model_sentence(model: str, weights: str) -> str:
    """Which model was used; of the embedded toy models, what they are for."""
    if model == "lm-recall":
        return (
            f"Model: {model}, the embedded toy language model, which knows 109 words and texts such as 'Anna has the "
            "key. Ben has the lamp. Anna has the'. Choose a model with --model."
        )
    if model.startswith("scenes"):
        return (
            f"Model: {model}, the embedded toy model, which only knows drawn shapes: on a photograph its classes and "
            "maps mean nothing. Choose a model with --model."
        )
    return f"Model: {model}, weights: {weights}"


def parse_targets(loaded: Any, target: list[str] | None) -> Any:
    """Convert --target to the ``target`` of `vitrail.explain`.

    Returns:
        None, "topN", class indices and groups, or for CLIP models the similarity to the embeddings of the texts.
    """
    from vitrail.inputs.targets import class_or_group, similarity
    from vitrail.models.sources import embed_texts

    if hasattr(loaded.module, "encode_text"):
        if not target:
            raise InputError('a CLIP model has no classes: pass a text, as in --target "a photo of a dog"')
        return similarity(embed_texts(loaded, target), labels=target)
    if not target:
        return None
    if len(target) == 1 and target[0].startswith("top") and target[0][3:].isdigit():
        return target[0]
    return [[class_or_group(name, loaded.classes) for name in target]]


def open_in_browser(page: Path) -> None:
    """Open a local HTML file in the default browser."""
    import webbrowser

    webbrowser.open(page.resolve().as_uri())
