"""The figures by name: what each shows, whom to cite, and what it wants to be drawn from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from vitrail.errors import InputError, OptionError, TargetError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from vitrail.inputs import Inputs
    from vitrail.models import LoadedModel
    from vitrail.targets import Target

Drawing = Callable[..., "Figure"]


class Progress:
    """What a drawing tells while it works; this one keeps it to itself."""

    def begin(self, what: str, total: int) -> None:
        """So many steps are to come."""

    def step(self) -> None:
        """One of them is done."""

    def looked(self, pictures: int) -> None:
        """The model has been shown so many more pictures."""


@dataclass(frozen=True)
class FigureEntry:
    """A registry line.

    Attributes:
        name: What users type: the paper and the number of the figure there.
        drawing: From a model, images, targets and options to a figure.
        title: What it shows, in a line.
        cite: BibTeX key in ``docs/bibliography.bib``.
        pairs: Whether it is about several classes of one image, so that scenes with two things suit it.
        scenes: How many of the embedded scenes it is drawn from where no images are given.
    """

    name: str
    drawing: Drawing
    title: str
    cite: str
    pairs: bool = False
    scenes: int = 2

    @property
    def options(self) -> dict[str, Any]:
        """Its options with their defaults."""
        hidden = ("about", "images", "targets", "progress")
        parameters = inspect.signature(self.drawing).parameters.values()
        return {p.name: p.default for p in parameters if p.name not in hidden}


FIGURES: dict[str, FigureEntry] = {}


def figure(name: str, title: str, cite: str, **line: Any) -> Callable[[Drawing], Drawing]:
    """Add a drawing function to the registry; the arguments are the fields of `FigureEntry`."""

    def add(drawing: Drawing) -> Drawing:
        FIGURES[name] = FigureEntry(name, drawing, title, cite, **line)
        return drawing

    return add


def find_figure(name: str) -> FigureEntry:
    """A figure by name.

    Example:
        >>> find_figure("gradtoken-10").cite
        'cheng2025gradtoken'
        >>> find_figure("gradtoken10")
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: unknown figure 'gradtoken10': did you mean gradtoken-10, ...
    """
    if name in FIGURES:
        return FIGURES[name]
    near = get_close_matches(name, FIGURES, n=2, cutoff=0.7)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise OptionError(f"unknown figure {name!r}: {hint}There are {', '.join(FIGURES)}")


def draw(
    name: str,
    model: nn.Module | LoadedModel,
    inputs: Inputs | None = None,
    target: Target = None,
    progress: Progress | None = None,
    **options: Any,
) -> Figure:
    """Draw a figure of a paper for any model and images.

    Args:
        name: A key of ``FIGURES``.
        model: Your model, or what ``load`` returned.
        inputs: Images, as ``explain`` takes them; without any, embedded scenes, for which the model must be one of
            those that were trained on them.
        target: What to explain, as for ``explain``. Without it, the predicted class, or the two likeliest in figures
            about several classes; in embedded scenes, what is seen there.
        progress: Is told how far the work is.
        **options: Options of the figure; the documentation lists them.

    Returns:
        A matplotlib figure, to be saved with ``savefig``; it belongs to no window.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> import torch
        >>> drawn = draw("gradtoken-9", tiny_vit(), torch.randn(1, 3, 32, 32), target=2)
        >>> sum(axes.get_label() == "picture" for axes in drawn.axes)
        6
    """
    from vitrail.capture.inputs import ModelInputs
    from vitrail.figures.scene_inputs import scenes_for
    from vitrail.inputs import to_model_inputs
    from vitrail.models import describe

    line, about = find_figure(name), describe(model)
    unknown = [key for key in options if key not in line.options]
    if unknown:
        takes = ", ".join(f"{k}={v!r}" for k, v in line.options.items()) or "no options"
        raise OptionError(f"{name} does not take {', '.join(unknown)}; it takes {takes}")
    if inputs is None:
        images, known = scenes_for(about, line)
        target = known if target is None else target
    else:
        found = to_model_inputs(inputs, about).image
        if found is None:
            raise InputError("a text has no pictures, and figures are made of them")
        images = found
    if hasattr(about.module, "encode_text") and not callable(target):
        raise TargetError("a CLIP model has no classes: pass target=vitrail.similarity(text embeddings)")
    target = "top2" if target is None and line.pairs else target
    ready = ModelInputs((images,)).onto(about.module).args[0]
    return line.drawing(about, ready, target, progress=progress or Progress(), **options)
