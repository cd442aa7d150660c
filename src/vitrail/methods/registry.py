"""The methods by name: what each needs, what it is, whom to cite."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any, NoReturn

from torch import Tensor

from vitrail.capture.structure import UNCHAINED_KINDS, ModelStructure
from vitrail.capture.trace import Needs
from vitrail.errors import NotApplicableError, OptionError

Relevance = Callable[..., Tensor]

#: What a method works with, which says on what models it can.
READS = {
    "chain": "multiplies or reads attention between all patches",
    "features": "reads a feature map",
    "input": "needs the model's answers only",
}
#: The kinds of models of the applicability table.
MODEL_KINDS = ("CLS", "distilled", "registers", "mean", "pool", "Swin", "text")


@dataclass(frozen=True)
class Method:
    """A registry line.

    Attributes:
        name: What users type.
        relevance: The method itself, a function of what it takes and its options. Taking ``trace``: what one pass left
            behind, with the gradients of one target. Taking ``trace, probe``: also more looks at the model. Taking
            ``probe``: all targets at once. Gives the relevance of patches, shape (b, S), or of any grid up to the
            pixels, shape (b, rows, columns); with all targets at once, (b, K, S) or (b, K, rows, columns).
        title: Its name in print.
        family: "attention", "gradient" or another of the catalogue's families.
        needs: What the pass must keep, or a function from the options to that.
        class_specific: Whether the map depends on the class asked for.
        signed: Whether negative relevance has a meaning, or a function from the options to that.
        score: What is differentiated unless the option ``score`` says otherwise: "logit", "prob" or "logprob".
        cite: BibTeX key in ``docs/bibliography.bib``, or "" for what needs no reference.
        variants: Named sets of options.
        reads: A key of ``READS``.
        cut: Whether its gradients do not pass through attention.
        unfit: Kinds of models it does not apply to although it could read them, and why.
        stitches: Whether it works on windows joined into attention between all patches.
        quick: Options for a rough answer in a fraction of the time, where the method looks at many pictures.
        words: Whether it also works on the vectors of a text's words, where it does not read attention.
        made: For methods made from others: from all options to the line of the one that was made.
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
    reads: str = "chain"
    cut: bool = False
    unfit: Mapping[str, str] = field(default_factory=dict)
    stitches: bool = False
    quick: Mapping[str, Any] = field(default_factory=dict)
    words: bool = False
    made: Callable[[Mapping[str, Any]], tuple[Method, dict[str, Any]]] | None = None

    @cached_property
    def takes(self) -> tuple[str, ...]:
        """What the function is given: "trace", "probe" or both."""
        return tuple(p for p in inspect.signature(self.relevance).parameters if p in ("trace", "probe"))

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return (inspect.getdoc(self.relevance) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Its options with their defaults; methods that read off a score also take ``score``."""
        return dict(self._defaults)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        parameters = inspect.signature(self.relevance).parameters.values()
        options = {p.name: p.default for p in parameters if p.name not in self.takes}
        return options if self.score is None else {**options, "score": self.score}

    @cached_property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """By option, the kinds of values it takes, keys of ``PLAIN``; options that take anything else are left out."""
        parameters = inspect.signature(self.relevance).parameters.values()
        notes = {p.name: p.annotation for p in parameters if p.name not in self.takes}
        texts = {name: n if isinstance(n, str) else inspect.formatannotation(n) for name, n in notes.items()}
        found = {name: tuple(text.replace(" ", "").split("|")) for name, text in texts.items()}
        return {name: kinds for name, kinds in found.items() if PLAIN.keys() >= set(kinds)}

    def needed(self, options: Mapping[str, Any]) -> Needs:
        """What the pass must keep for these options."""
        own = {k: v for k, v in options.items() if k != "score"}
        return self.needs(**own) if callable(self.needs) else self.needs

    def is_signed(self, options: Mapping[str, Any]) -> bool:
        """Whether maps made with these options have a sign."""
        return self.signed(**options) if callable(self.signed) else self.signed

    def apply(self, given: Sequence[Any], options: Mapping[str, Any]) -> Tensor:
        """The relevance of patches, from what the method takes."""
        return self.relevance(*given, **{k: v for k, v in options.items() if k != "score"})

    def reason_against(self, kind: str) -> str | None:
        """Why the method does not apply to a kind of model of ``MODEL_KINDS``, or None if it does."""
        if kind in self.unfit:
            return self.unfit[kind]
        if kind == "Swin" and self.reads == "chain":
            return "attends inside windows, so no attention matrix joins all its patches"
        if kind == "text" and self.reads != "chain" and not self.words:
            return "a text has no pixels and no grid"
        return None

    def check(self, structure: ModelStructure, options: Mapping[str, Any], stitch: bool = False) -> None:
        """Refuse a model the method is not defined on, and say why and what to use instead."""
        if stitch and self.stitches:
            return
        if self.reads == "chain" and structure.kind != "plain":
            self._refuse(structure, f"the model {UNCHAINED_KINDS[structure.kind]}", "Swin")
        kind = kind_of(structure)
        reason = self.reason_against(kind)
        if reason is not None:
            self._refuse(structure, reason, kind)
        paired = self.family == "relevance" or not {"Q", "K", "dQ"}.isdisjoint(self.needed(options))
        if paired and self.reads == "chain" and not all(o.product for o in structure.layers):
            raise NotApplicableError(
                f"{self.name} does not apply to {structure.model}: it takes attention apart into queries and keys, and "
                "this model's attention has more in it than their product; transformer_mm needs the attention only"
            )
        if "stream" in self.needed(options) and self.reads == "chain" and not structure.has_stream:
            missing = next(
                i for i, o in enumerate(structure.layers)
                if o.projection is None or not (o.pool or (o.stream and o.mlp))
            )  # fmt: skip
            raise NotApplicableError(
                f"{self.name} does not apply to {structure.model}: it follows the residual stream through each block's "
                f"attention and MLP, and block {missing} has no such pair of sums; transformer_mm needs none"
            )

    def _refuse(self, structure: ModelStructure, reason: str, kind: str) -> NoReturn:
        usable = [m.name for m in METHODS.values() if m.class_specific and m.reason_against(kind) is None]
        more = " or stitch=True" if self.stitches and structure.kind == "windowed" else ""
        raise NotApplicableError(
            f"{self.name} does not apply to {structure.model}: {reason}; use {', '.join(usable[:6])} instead{more}"
        )


def kind_of(structure: ModelStructure) -> str:
    """A model's kind among ``MODEL_KINDS``; whatever is no plain encoder counts as Swin does."""
    if structure.kind != "plain":
        return "Swin"
    layout = structure.layout
    if layout.grid is None:
        return "text"
    if structure.pooled:
        return "pool"
    if layout.readout in ("mean", "all"):
        return "mean"
    if layout.readout == "distilled":
        return "distilled"
    return "registers" if (layout.prefix or 0) > 1 else "CLS"


#: Kinds of values an option may take, as they are annotated, and what they are called.
PLAIN = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word", "None": "none"}

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
    for key, value in chosen.items():
        kinds = method.kinds.get(key)
        if kinds is not None and not _fits(value, kinds):
            allowed = " or ".join(PLAIN[kind] for kind in kinds)
            raise OptionError(f"{key}={value!r} of {name} must be {allowed}; it is {defaults[key]} by default")
    chosen = {**defaults, **chosen}
    if method.made is not None:
        method, chosen = method.made(chosen)
    return f"{name}{':' + tail if tail else ''}", method, chosen


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


def _fits(value: Any, kinds: Sequence[str]) -> bool:
    """Whether a plain value is of one of some kinds; what is not plain, as a tensor of one number, is let pass."""
    if isinstance(value, bool) or value is None:
        return ("bool" if isinstance(value, bool) else "None") in kinds
    if isinstance(value, int):
        return not {"int", "float", "str"}.isdisjoint(kinds)  # names may be numbers, as those of GradToken's variants
    if isinstance(value, float):
        return "float" in kinds
    return not isinstance(value, str) or "str" in kinds


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
