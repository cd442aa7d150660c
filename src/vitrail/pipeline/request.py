"""The request: what one call of `vitrail.explain` asks for, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from vitrail.capture.layout import Layout
from vitrail.capture.output_tensors import OutputReading
from vitrail.errors import OptionError, TargetError
from vitrail.inputs.targets import Target
from vitrail.methods import find
from vitrail.pipeline.method_job import MethodJob
from vitrail.pipeline.progress import Progress
from vitrail.pipeline.recommendation import AUTO, recommended
from vitrail.pipeline.smoothing import Smoothing

#: Default method; its page says why.
DEFAULT = "leadlight"
#: Default method for prompts of language models; docs/language-model-truth.md says why.
LANGUAGE_DEFAULT = "attnlrp:released"
#: What is used instead where that does not apply: models without attention, image tokens without a place on the image.
LANGUAGE_FALLBACK = "gradient_x_input"


@dataclass(frozen=True)
class Request:
    """What one call asks for.

    Attributes:
        methods: Names of the methods, with the options that were given.
        target: What to explain.
        layout: What the user states about the tokens, or None.
        batch_size: Number of inputs in one pass, or None for all.
        keep: Whether intermediate results are kept.
        stitch: Whether attention inside windows is joined.
        smoothing: How relevance is averaged over copies of each image, or None.
        check: Whether each map is checked: False, or a budget of `vitrail.trust`.
        progress: How progress is shown.
        advance: Called with the number of images a method has just evaluated.
        tokenizer: Tokenizer or its settings where the inputs are texts, or None.
        roles: What the user states about tensors of the inputs, by name, or None.
        of: Name of the tensor that is explained, or None.
        reading: Which part of the output is read, and what turns its scores into probabilities.
        units: Units of texts that are scored and removed as a whole, or None.
        recompute: Whether backward passes compute the activations of blocks again; None where one input does not fit.
    """

    methods: Mapping[str, Mapping[str, Any]]
    target: Target = None
    layout: Layout | None = None
    batch_size: int | None = None
    keep: bool = False
    stitch: bool = False
    smoothing: Smoothing | None = None
    check: bool | str = False
    progress: Progress = None
    advance: Callable[[int], None] = lambda _: None
    tokenizer: Any = None
    roles: Mapping[str, str] | None = None
    of: str | None = None
    reading: OutputReading = field(default_factory=OutputReading)
    units: Any = None
    recompute: bool | None = None

    def __post_init__(self) -> None:
        keep: object = self.keep
        if not isinstance(keep, bool):
            name = next(iter(self.methods))
            raise OptionError(
                f"keep={keep!r} must be True or False; an option of the method that is also called keep goes into "
                f"its name, as in '{name}:keep={keep}'"
            )
        size = self.batch_size
        if size is not None and (isinstance(size, bool) or not hasattr(size, "__index__")):
            raise OptionError(f"batch_size={size!r} must be an integer or None")
        if isinstance(self.target, type):
            raise TargetError(f"{self.target.__name__} is a Python class, not a target: give a class index or name")
        if self.smoothing is not None and self.keep:
            raise OptionError(
                "keep=True does not go with smooth=: intermediate results belong to one image, not to a mean"
            )

    def jobs(self, model: nn.Module) -> list[MethodJob]:
        """The methods from the registry; "auto" is the one that was recommended for the model."""
        named = {recommended(model) if name == AUTO else name: options for name, options in self.methods.items()}
        return [MethodJob(*find(spec, options)) for spec, options in named.items()]

    def settings(self) -> dict[str, Any]:
        """Arguments of `vitrail.explain` for other inputs of the same kind."""
        reading = {"output": self.reading.output, "scores": self.reading.scores}
        given = {"layout": self.layout, "batch_size": self.batch_size, "recompute": self.recompute, **reading}
        if self.tokenizer is not None:
            return {**given, "tokenizer": self.tokenizer, "units": self.units}
        smoothing = {} if self.smoothing is None else self.smoothing.settings()
        return {**given, "stitch": self.stitch, "roles": self.roles, "of": self.of, **smoothing}


def requested_methods(
    method: str | None,
    methods: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None,
    options: Mapping[str, Any],
    default: str = DEFAULT,
) -> dict[str, Mapping[str, Any]]:
    """Methods with their options from the arguments of `vitrail.explain`; ``default`` where none is named.

    Example:
        >>> requested_methods("rollout", None, {"heads": "mean"})
        {'rollout': {'heads': 'mean'}}
        >>> requested_methods(None, ["rollout", "vtranm"], {})
        {'rollout': {}, 'vtranm': {}}
    """
    if method is not None and not isinstance(method, str):
        raise OptionError("several methods go to methods=[…]; method= takes one name")
    if methods is None:
        return {default if method is None else method: options}
    if method not in (None, DEFAULT):
        raise OptionError(f"give either method={method!r} or methods=…, not both")
    if options:
        raise OptionError("with several methods, give each its options: methods={'vtranm': {'score': 'logit'}, …}")
    if isinstance(methods, str):
        return {methods: {}}
    requested = dict(methods) if isinstance(methods, Mapping) else {name: {} for name in methods}
    if not requested:
        raise OptionError("no methods given: see vitrail.methods()")
    return requested
