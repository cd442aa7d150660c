"""The methods by name: what each needs, what it is, whom to cite."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from vitrail.errors import NotApplicableError, OptionError
from vitrail.inside.anatomy import KINDS, Anatomy
from vitrail.inside.trace import Needs, Trace

Relevance = Callable[..., Tensor]


@dataclass(frozen=True)
class Method:
    """A registry line.

    Attributes:
        name: What users type.
        relevance: The method itself: from a trace and its options to the relevance of patches, shape (b, S).
        title: Its name in print.
        family: "attention", "gradient" or another of the catalogue's families.
        needs: What the pass must keep, or a function from the options to that.
        class_specific: Whether the map depends on the class asked for.
        signed: Whether negative relevance has a meaning, or a function from the options to that.
        score: What is differentiated unless the option ``score`` says otherwise: "logit", "prob" or "logprob".
        cite: BibTeX key in ``docs/bibliography.bib``.
        variants: Named sets of options.
    """

    name: str
    relevance: Relevance
    title: str
    family: str
    needs: Needs | Callable[..., Needs]
    class_specific: bool
    cite: str
    signed: bool | Callable[..., bool] = False
    score: str | None = None
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return (inspect.getdoc(self.relevance) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Its options with their defaults; gradient methods also take ``score``."""
        parameters = list(inspect.signature(self.relevance).parameters.values())[1:]
        options = {p.name: p.default for p in parameters}
        return options if self.score is None else {**options, "score": self.score}

    def needed(self, options: Mapping[str, Any]) -> Needs:
        """What the pass must keep for these options."""
        own = {k: v for k, v in options.items() if k != "score"}
        return self.needs(**own) if callable(self.needs) else self.needs

    def is_signed(self, options: Mapping[str, Any]) -> bool:
        """Whether maps made with these options have a sign."""
        return self.signed(**options) if callable(self.signed) else self.signed

    def apply(self, trace: Trace, options: Mapping[str, Any]) -> Tensor:
        """The relevance of patches, shape (b, S)."""
        return self.relevance(trace, **{k: v for k, v in options.items() if k != "score"})

    def check(self, anatomy: Anatomy, options: Mapping[str, Any]) -> None:
        """Refuse a model the method is not defined on, and say why."""
        if anatomy.kind != "plain":
            usable = [m.name for m in METHODS.values() if m.family == "perturbation"]
            instead = f"use {', '.join(usable)} instead" if usable else "it needs a plain ViT"
            raise NotApplicableError(
                f"{self.name} does not apply to {anatomy.model}: the model {KINDS[anatomy.kind]}; {instead}"
            )
        if "stream" in self.needed(options) and not anatomy.has_stream:
            missing = next(
                i for i, o in enumerate(anatomy.organs)
                if o.projection is None or not (o.pool or (o.stream and o.mlp))
            )  # fmt: skip
            raise NotApplicableError(
                f"{self.name} does not apply to {anatomy.model}: it follows the residual stream through each block's "
                f"attention and MLP, and block {missing} has no such pair of sums; transformer_mm needs none"
            )


METHODS: dict[str, Method] = {}


def register(name: str, title: str, family: str, **line: Any) -> Callable[[Relevance], Relevance]:
    """Add a pure function to the registry; the arguments are the fields of `Method`."""

    def add(relevance: Relevance) -> Relevance:
        METHODS[name] = Method(name, relevance, title, family, **line)
        return relevance

    return add


def find(spec: str, options: Mapping[str, Any] | None = None) -> tuple[str, Method, dict[str, Any]]:
    """A method and its options from what a user typed: ``name``, ``name:variant`` or ``name:option=value,…``.

    Returns:
        The label (the spec without blanks), the method, and all its options with defaults filled in.

    Example:
        >>> label, method, options = find("gradtoken:variant=3,heads=mean")
        >>> label, method.title, options["variant"], options["depth"]
        ('gradtoken:variant=3,heads=mean', 'GradToken', 3, 1)
        >>> find("gradtokn")
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: unknown method 'gradtokn': did you mean gradtoken? See `vitrail methods`.
    """
    name, _, tail = spec.replace(" ", "").partition(":")
    method = METHODS.get(name)
    if method is None:
        near = get_close_matches(name, METHODS, n=3, cutoff=0.7)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(METHODS)}."
        raise OptionError(f"unknown method {name!r}: {hint} See `vitrail methods`.")
    chosen: dict[str, Any] = {}
    for word in filter(None, tail.split(",")):
        key, equals, value = word.partition("=")
        if equals:
            chosen[key] = _value(value)
        elif key in method.variants:
            chosen |= method.variants[key]
        else:
            known = ", ".join(method.variants) or "none"
            raise OptionError(f"{name} has no variant {key!r}; variants: {known}; options go as option=value")
    chosen |= options or {}
    defaults = method.options
    unknown = [key for key in chosen if key not in defaults]
    if unknown:
        takes = ", ".join(f"{k}={v!r}" for k, v in defaults.items()) or "no options"
        raise OptionError(f"{name} does not take {', '.join(unknown)}; it takes {takes}")
    return f"{name}{':' + tail if tail else ''}", method, {**defaults, **chosen}


def choose(option: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse an option's value that is not one of a few.

    Example:
        >>> choose("heads", "max", ["relu", "mean"])
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: heads='max' is not one of 'relu', 'mean'
    """
    allowed = list(allowed)
    if value not in allowed:
        raise OptionError(f"{option}={value!r} is not one of {', '.join(map(repr, allowed))}")


def within(option: str, index: int, count: int, what: str) -> None:
    """Refuse an index that is not one of ``count`` things; negative ones count from the end.

    Example:
        >>> within("layer", 12, 12, "blocks")
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: layer=12 is out of range: this model has 12 blocks, 0 to 11
    """
    if not -count <= index < count:
        raise OptionError(f"{option}={index} is out of range: this model has {count} {what}, 0 to {count - 1}")


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
