"""What the commands share: consoles, options, loading a model, reading targets, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from vitrail.errors import InputError

out = Console()
err = Console(stderr=True)

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="SOURCE:NAME",
        help="timm:NAME, hf:NAME, torchvision:NAME, open_clip:NAME, or an embedded model. See `vitrail models`.",
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        "-w",
        metavar="FILE|pretrained|random",
        help="A .safetensors file or a torch file of tensors; 'pretrained' fetches the library's own; "
        "'random' fetches nothing, to try things out.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, mps …")]


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar; yields the function that advances it by one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def load_model(model: str, weights: str, device: str) -> Any:
    """Load the model named on the command line onto a device."""
    from vitrail.models import EMBEDDED_MODELS, load

    file = None if weights in ("pretrained", "random") else weights
    if model in EMBEDDED_MODELS and weights != "pretrained":
        raise InputError(f"{model} has weights of its own: leave --weights out")
    about = load(model, file, pretrained=weights == "pretrained")
    try:
        about.module.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    return about


def parse_targets(about: Any, target: list[str] | None) -> Any:
    """What ``explain`` takes as target: classes by name or index, "topN", or for CLIP the similarity to texts."""
    from vitrail.models import embed_texts
    from vitrail.targets import class_index, similarity

    if hasattr(about.module, "encode_text"):
        if not target:
            raise InputError('a CLIP model has no classes: say what to look for, as in --target "a photo of a dog"')
        return similarity(embed_texts(about, target))
    if not target:
        return None
    if len(target) == 1 and target[0].startswith("top") and target[0][3:].isdigit():
        return target[0]
    return [[class_index(name, about.classes) for name in target]]
