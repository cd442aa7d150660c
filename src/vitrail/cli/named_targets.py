"""Options of the commands for prompts, boxes and regions, and the targets they name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.common import plain_table
from vitrail.errors import InputError, TargetError

if TYPE_CHECKING:
    from rich.table import Table

Command = Callable[..., None]
POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
#: Options by the name of their parameter: whether they can be repeated, how their value is shown, and their help.
_OPTIONS = {
    "prompt": (True, "TEXT", "Explain how similar the image is to a text, for models such as CLIP."),
    "against": (True, "TEXT", "Compare each --prompt, --token or --answer with this text."),
    "box": (
        True,
        "QUERY|X0,Y0,X1,Y1",
        "Explain a box of a detector: the number of its query, or the box nearest to these corners in pixels.",
    ),
    "region": (
        True,
        "X,Y|FILE",
        "Explain a pixel, or the white part of a mask image, for models of segmentation and depth.",
    ),
    "label": (False, "NAME|INDEX", "Label of each --box or --region; by default the likeliest."),
    "processor": (False, "NAME", "Tokenizer for --prompt, where it is not that of the model."),
}


def with_named_targets(function: Command) -> Command:
    """Give a command the options for prompts, boxes and regions in place of its parameter ``named``."""
    signature = inspect.signature(function, eval_str=True)

    @wraps(function)
    def run(**options: Any) -> None:
        named = NamedTargetOptions(*(options.pop(name, None) for name in _OPTIONS))
        function(**options, named=named)

    added = []
    for name, (repeats, metavar, text) in _OPTIONS.items():
        help_text = f"{text} Repeat it for several." if repeats else text
        option = typer.Option(f"--{name}", metavar=metavar, help=help_text, show_default=False)
        kind: Any = Annotated[(list[str] if repeats else str) | None, option]
        added.append(inspect.Parameter(name, POSITIONAL_OR_KEYWORD, default=None, annotation=kind))
    parameters = list(signature.parameters.values())
    place = list(signature.parameters).index("named")
    parameters[place : place + 1] = added
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    return run


@dataclass(frozen=True)
class NamedTargetOptions:
    """What the options of a command name.

    Attributes:
        prompts: Texts.
        against: Texts they are compared with.
        boxes: Queries or corners.
        regions: Pixels or mask files.
        label: Label of the boxes and regions, or None.
        processor: Name of the tokenizer, or None.
    """

    prompts: Sequence[str] | None = None
    against: Sequence[str] | None = None
    boxes: Sequence[str] | None = None
    regions: Sequence[str] | None = None
    label: str | None = None
    processor: str | None = None

    def row(self, target: Sequence[str] | None = None) -> list[list[Any]] | None:
        """One row of targets for every image, as `vitrail.explain` takes it; None where none is named.

        Args:
            target: Values of --target, which go with no other option.

        Raises:
            InputError: The options contradict each other.
        """
        from vitrail.targets import box, prompt, region

        if self.against and not self.prompts:
            raise InputError("--against goes with --prompt: name the text that is explained")
        if self.label is not None and not (self.boxes or self.regions):
            raise InputError("--label goes with --box or --region; a class of a classifier is named by --target")
        named = [self.prompts, self.boxes, self.regions]
        if not any(named):
            return None
        if target:
            raise InputError("--target names classes: it does not go with --prompt, --box and --region")
        label: Any = int(self.label) if self.label is not None and self.label.isdecimal() else self.label
        found: list[Any] = [
            prompt(text, list(self.against or ()) or None, processor=self.processor) for text in self.prompts or ()
        ]
        for text in self.boxes or ():
            numbers = _numbers(text, "--box", (1, 4))
            corners = numbers if len(numbers) == 4 else None
            query = None if corners else int(numbers[0])
            found.append(box(query, nearest=corners, label=label, processor=self.processor))
        for text in self.regions or ():
            path = Path(text)
            where = _mask(path) if path.suffix and path.exists() else tuple(_numbers(text, "--region", (2,)))
            found.append(region(where, label))
        return [found]


def detection_table(loaded: Any, path: Path) -> Table:
    """What a detector detects in an image, as a table with the numbers that --box takes.

    Raises:
        TargetError: The model is no detector.
    """
    from vitrail.pipeline.original_image import original_images
    from vitrail.targets import detections

    geometries = [one.geometry for one in original_images(path, loaded.preprocess) or ()]
    table = plain_table("box", "label", "probability", "x0", "y0", "x1", "y1")
    for one in detections(loaded, path, geometries=geometries)[0]:
        table.add_row(str(one.query), one.name, f"{100 * one.probability:.1f} %", *(f"{v:.0f}" for v in one.box))
    return table


def is_detector(loaded: Any, path: Path) -> bool:
    """Whether a model detects objects, by its output for an image."""
    try:
        detection_table(loaded, path)
    except TargetError:
        return False
    return True


def _numbers(text: str, option: str, counts: tuple[int, ...]) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in counts or (counts == (1, 4) and len(numbers) == 1 and not text.strip().isdecimal()):
        expected = "a query such as 3, or x0,y0,x1,y1" if option == "--box" else "x,y or the file of a mask"
        raise InputError(f"{option} {text} is not understood: give {expected}")
    return numbers


def _mask(path: Path) -> Any:
    """A mask file as an array: bright pixels are inside."""
    import numpy as np

    from vitrail.models.preprocess import open_image

    return np.asarray(open_image(path).convert("L")) > 127
