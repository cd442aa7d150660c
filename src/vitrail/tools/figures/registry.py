"""Registry of figures, and `draw`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from vitrail.capture.inputs import ModelInputs
from vitrail.errors import InputError, OptionError, TargetError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models import describe
from vitrail.tools.figures.scene_inputs import example_scenes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from vitrail.inputs.targets import Target
    from vitrail.inputs.user_inputs import Inputs
    from vitrail.models import LoadedModel

DrawFunction = Callable[..., "Figure"]


class Progress:
    """Progress callbacks of a figure; the base class ignores them."""

    def begin(self, what: str, total: int) -> None:
        """Begin a task of ``total`` steps."""

    def step(self) -> None:
        """Finish a step."""

    def evaluated(self, images: int) -> None:
        """Count images that the model has evaluated since the last call."""


@dataclass(frozen=True)
class FigureInputs:
    """What every figure is drawn from.

    Attributes:
        loaded: The model.
        images: The model's input, shape (b, 3, height, width).
        targets: What to explain, as for ``explain``.
        progress: Progress callbacks.
    """

    loaded: LoadedModel
    images: Tensor
    targets: Target
    progress: Progress

    @property
    def aspect(self) -> float:
        """Height of the images as a share of their width."""
        return self.images.shape[2] / self.images.shape[3]


@dataclass(frozen=True)
class FigureEntry:
    """A figure of the registry.

    Attributes:
        name: Name of the paper and number of the figure there, such as "gradtoken-10".
        function: From `FigureInputs` and options, which are keywords, to a figure.
        title: What it shows, in one line.
        cite: BibTeX key in ``docs/bibliography.bib``.
        pairs: Whether it shows several classes of one image; without images, scenes with two objects are used.
        scenes: Number of embedded scenes that are drawn where no images are given.
    """

    name: str
    function: DrawFunction
    title: str
    cite: str
    pairs: bool = False
    scenes: int = 2

    @property
    def options(self) -> dict[str, Any]:
        """Options with their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


FIGURES: dict[str, FigureEntry] = {}


def register_figure(name: str, title: str, cite: str, **fields: Any) -> Callable[[DrawFunction], DrawFunction]:
    """Register a drawing function; the arguments are the fields of `FigureEntry`."""

    def register(function: DrawFunction) -> DrawFunction:
        FIGURES[name] = FigureEntry(name, function, title, cite, **fields)
        return function

    return register


def find_figure(name: str) -> FigureEntry:
    """Find a figure by name.

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
    hint = f"did you mean {', '.join(near)}? Known" if near else "known"
    raise OptionError(f"unknown figure {name!r}: {hint}: {', '.join(FIGURES)}")


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
        model: A model, or what ``load`` returned.
        inputs: Images, as for ``explain``. Without them, embedded scenes, for models that were trained on scenes.
        target: What to explain, as for ``explain``. By default the predicted class, or the two most probable classes in
            figures about several classes; for embedded scenes, the classes present.
        progress: Progress callbacks.
        **options: Options of the figure; the documentation lists them.

    Returns:
        A matplotlib figure without a window; save it with ``savefig``.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> import torch
        >>> figure = draw("gradtoken-9", tiny_vit(), torch.randn(1, 3, 32, 32), target=2)
        >>> sum(axes.get_label() == "image" for axes in figure.axes)
        6
    """
    entry, loaded = find_figure(name), describe(model)
    unknown = [key for key in options if key not in entry.options]
    if unknown:
        known = ", ".join(f"{k}={v!r}" for k, v in entry.options.items()) or "no options"
        raise OptionError(f"{name} does not take {', '.join(unknown)}; it takes {known}")
    if inputs is None:
        images, classes = example_scenes(loaded, entry.scenes, entry.pairs)
        target = classes if target is None else target
    else:
        given = to_model_inputs(inputs, loaded).image
        if given is None:
            raise InputError("figures need images, got text")
        images = given
    if hasattr(loaded.module, "encode_text") and not callable(target):
        raise TargetError("a CLIP model has no classes: pass target=vitrail.similarity(text embeddings)")
    target = "top2" if target is None and entry.pairs else target
    on_device = ModelInputs((images,)).onto(loaded.module).args[0]
    return entry.function(FigureInputs(loaded, on_device, target, progress or Progress()), **options)
