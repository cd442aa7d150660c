"""The method registry: what each method computes, needs, applies to, costs and cites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from inspect import getdoc, signature
from typing import Any, NoReturn, get_type_hints

from torch import Tensor, nn

from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.trace import Needs
from vitrail.errors import NotApplicableError, OptionError
from vitrail.inputs.targets import SCORES
from vitrail.lrp.rule_sets import RuleSet
from vitrail.methods.cost import CostFunction, shared_pass
from vitrail.methods.model_kinds import is_signal, kind_of, why_unchained
from vitrail.methods.option_values import OPTION_TYPES, annotated_types, has_type, parse_value
from vitrail.methods.plugins import TABLES, load_plugins, refuse_name_clash

Relevance = Callable[..., Tensor]

#: What a method reads, which decides on which models it works.
READS = {
    "attention": "attention between all patches",
    "features": "a feature map",
    "outputs": "the model's outputs, or gradients at its inputs",
}
#: Why a method that is defined on images refuses other inputs, given their axes.
NO_IMAGE = "it is defined on images, and the axes of what is explained here are {}"


@dataclass(frozen=True)
class Applies:
    """Which models a method applies to.

    Attributes:
        reads: A key of ``READS``.
        stitched: Whether the method also works on window attention stitched into attention between all patches.
        text: Whether a method that does not read attention also works on the embeddings of a text's tokens.
        any_axes: Whether a method works on inputs of any number of axes: videos,
            spectrograms, series and features. Methods that read attention do, but those that exclude texts only if this
            is set.
        drops_tokens: Whether a method that does not read attention removes patches by dropping their tokens.
        excluded: Kinds of models the method is not defined on although it could read them, with the reason.
        streams: Whether it is defined on streams of tokens that cross-attention joins.
        norm_first_texts: Whether a method that excludes texts works on text encoders whose blocks normalise first.
    """

    reads: str = "attention"
    stitched: bool = False
    text: bool = False
    any_axes: bool = False
    drops_tokens: bool = False
    excluded: Mapping[str, str] = field(default_factory=dict)
    streams: bool = False
    norm_first_texts: bool = False


#: By family, what is known of patents on its methods.
PATENT_NOTES = {
    "relevance": "The authors of LXT state that layer-wise relevance propagation is patented and free for personal and "
    "scientific use only. Vitrail's licence grants no rights of others."
}


@dataclass(frozen=True)
class Method:
    """A registry entry.

    Attributes:
        name: The name users type.
        compute: The method, a pure function. With ``takes="trace"`` it is called for each target with a `Trace` and
            gives the relevance of patches, shape (b, S), or of a grid up to the pixels, shape (b, rows, columns). With
            ``takes="probe"`` it is called once with a `Probe` and gives the relevance for all K targets, shape
            (b, K, S) or (b, K, rows, columns). Options are its keyword-only parameters.
        title: Its name in print.
        family: "attention", "gradient" or another of the families in ``docs/methods``.
        cite: BibTeX key in ``docs/bibliography.bib``, or "".
        class_specific: Whether the map depends on the class.
        takes: "trace" or "probe", see ``compute``.
        needs: What the shared pass must keep, or a function from the options to that.
        score: What is differentiated or evaluated unless the option ``score`` is set: "logit", "prob" or
            "logprob"; None for methods without such an option.
        stream_needs: The same on models of several streams of tokens, where it differs there.
        detach_attention: Whether its gradients do not pass through attention.
        signed: Whether negative relevance has a meaning, or a function from the options to that.
        variants: Named sets of options. "quick" is a rough result in a fraction of the time, "preview" one good enough
            to look at.
        applies: Which models it applies to.
        cost: Images it evaluates beyond the shared pass.
        evaluations_per_mask: For a method that scores masks: from the options to the number of images evaluated for
            each mask, by which its masks are counted.
        derive: For a method defined by another one: from all options to that method's entry and options.
        rules: For a method that propagates relevance by one rule set: from the options to the rule set, or to None
            where the method reads more of the shared pass than which token each pixel belongs to. A call for such
            methods alone needs no other forward pass than the one under these rules. Rules that carry no gradient
            cannot confirm that order either, so their maps must be of pixels.
        check_weights: For a method with weights of its own, trained for one model: a function of the model and the
            options that raises where the weights do not fit; None for all other methods.
    """

    name: str
    compute: Relevance
    title: str
    family: str
    cite: str
    class_specific: bool = True
    takes: str = "trace"
    needs: Needs | Callable[..., Needs] = field(default_factory=dict)
    stream_needs: Needs | None = None
    score: str | None = None
    detach_attention: bool = False
    signed: bool | Callable[..., bool] = False
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    applies: Applies = field(default_factory=Applies)
    cost: CostFunction = shared_pass
    evaluations_per_mask: Callable[[Mapping[str, Any]], int] | None = None
    derive: Callable[[Mapping[str, Any]], tuple[Method, dict[str, Any]]] | None = None
    rules: Callable[..., RuleSet | None] | None = None
    check_weights: Callable[[nn.Module, Mapping[str, Any]], None] | None = None

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        return (getdoc(self.compute) or "").partition("\n")[0]

    @property
    def quick(self) -> Mapping[str, Any]:
        """Options for a rough result in a fraction of the time; empty if the method is fast."""
        return self.variants.get("quick", {})

    @property
    def preview(self) -> Mapping[str, Any]:
        """Options for a preview of good quality; the defaults if the method is fast."""
        return self.variants.get("preview", self.quick)

    @property
    def reads_order(self) -> bool:
        """Whether its maps depend on which token is which patch: methods on pixels alone do not."""
        return self.applies.reads != "outputs" or self.applies.drops_tokens

    @property
    def options(self) -> dict[str, Any]:
        """Its options with their defaults; methods that evaluate a score also take ``score``."""
        return dict(self._defaults)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        parameters = signature(self.compute).parameters.values()
        options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        return options if self.score is None else {**options, "score": self.score}

    @cached_property
    def option_types(self) -> dict[str, tuple[type, ...]]:
        """By option, the types it accepts; options that accept anything else than ``OPTION_TYPES`` are left out."""
        hints = get_type_hints(self.compute)
        accepted = {name: annotated_types(hints[name]) for name in self._defaults if name in hints}
        return {name: types for name, types in accepted.items() if OPTION_TYPES.keys() >= set(types)}

    def needed(self, options: Mapping[str, Any], streams: bool = False) -> Needs:
        """What the shared pass must keep for these options, on a model of one or of several streams of tokens."""
        if streams and self.stream_needs is not None:
            return self.stream_needs
        without_score = {k: v for k, v in options.items() if k != "score"}
        return self.needs(**without_score) if callable(self.needs) else self.needs

    def rule_set(self, options: Mapping[str, Any], text: bool = False) -> RuleSet | None:
        """The rules by which relevance is propagated with these options, for a text or not; None for other methods."""
        if self.rules is None:
            return None
        return self.rules(**{k: v for k, v in options.items() if k != "score"}, **({"text": True} if text else {}))

    def is_signed(self, options: Mapping[str, Any]) -> bool:
        """Whether maps computed with these options have a sign."""
        return self.signed(**options) if callable(self.signed) else self.signed

    def apply(self, given: Any, options: Mapping[str, Any]) -> Tensor:
        """Compute the relevance from a `Trace` or a `Probe`, as the method requires."""
        return self.compute(given, **{k: v for k, v in options.items() if k != "score"})

    def reason_against(self, kind: str) -> str | None:
        """Why the method does not apply to a kind of model of ``MODEL_KINDS``, or None if it does."""
        if kind in self.applies.excluded:
            return self.applies.excluded[kind]
        if kind == "Swin" and self.applies.reads == "attention":
            return "attends inside windows, so no attention matrix connects all its patches"
        if kind == "text" and self.applies.reads != "attention" and not self.applies.text:
            return "the tokens lie on no grid of image patches, as in a text, audio or a video"
        return None

    def check(
        self,
        structure: ModelStructure,
        options: Mapping[str, Any],
        stitch: bool = False,
        model: nn.Module | None = None,
    ) -> None:
        """Raise `NotApplicableError` for a model the method is not defined on, with the reason and an alternative.

        Args:
            structure: The model's structure.
            options: All options of the method.
            stitch: Whether window attention is stitched.
            model: The model itself, to check the weights of methods that have their own; None to leave that out.
        """
        if stitch and self.applies.stitched and not is_signal(structure):
            return
        self._check_structure(structure, options)
        if self.check_weights is not None and model is not None:
            self.check_weights(model, options)

    def _check_structure(self, structure: ModelStructure, options: Mapping[str, Any]) -> None:
        attention = self.applies.reads == "attention"
        if structure.streams is not None and self.applies.streams:
            return
        if attention and structure.kind != "plain":
            self._refuse(structure, f"the model {why_unchained(structure)}", "Swin")
        norm_first = self.applies.norm_first_texts and structure.norm_first
        if structure.text and not norm_first and (reason := self.reason_against("text")) is not None:
            self._refuse(structure, reason, "text")
        if self.applies.reads == "features" and structure.members > 1:
            raise NotApplicableError(
                f"{self.name} does not apply to {structure.model}: {structure.members} encoders side by side compute "
                "its output, as in an ensemble, and this method reads the features of one; explain one of them, or use "
                "rise, occlusion or an input gradient"
            )
        kind = kind_of(structure)
        reason = self.reason_against(kind)
        if is_signal(structure):
            reason = None if self._supports_signals(kind) else NO_IMAGE.format(", ".join(structure.axes))
        if reason is not None and not (kind == "text" and norm_first):
            self._refuse(structure, reason, kind)
        paired = self.family == "relevance" or not {"Q", "K", "dQ"}.isdisjoint(self.needed(options))
        if paired and attention and not all(layer.product for layer in structure.layers):
            raise NotApplicableError(
                f"{self.name} does not apply to {structure.model}: it needs attention that is a product of queries and "
                "keys, and this model adds other terms to it; transformer_mm needs the attention only"
            )
        needed = self.needed(options)
        missing = structure.missing_stream if "stream" in needed else structure.missing_sum if "X" in needed else None
        if missing is not None and attention:
            raise NotApplicableError(
                f"{self.name} does not apply to {structure.model}: it follows the residual stream through each block's "
                f"attention{' and MLP' if 'stream' in needed else ''}, and block {missing} has no such "
                f"{'pair of sums' if 'stream' in needed else 'sum'}; transformer_mm needs none"
            )

    def _supports_signals(self, kind: str) -> bool:
        """Whether it works on inputs that are neither images nor texts, of a model of a kind of ``MODEL_KINDS``."""
        if self.applies.reads != "attention":
            return self.applies.any_axes
        return kind not in self.applies.excluded and ("text" not in self.applies.excluded or self.applies.any_axes)

    def _refuse(self, structure: ModelStructure, reason: str, kind: str) -> NoReturn:
        kinds = {kind, "text"} if structure.text else {kind}
        streams = structure.streams is not None
        known = [m for m in METHODS.values() if m.class_specific and m.family != "control"]
        usable = [
            m.name for m in known if (streams and m.applies.streams) or all(m.reason_against(k) is None for k in kinds)
        ]
        if is_signal(structure):
            fits = [m for m in known if m._supports_signals(kind)]  # noqa: SLF001
            usable = [m.name for m in fits if structure.kind == "plain" or m.applies.reads != "attention"]
        if structure.kind in ("quantised", "detached"):  # no gradient passes
            usable = [name for name in usable if METHODS[name].family == "perturbation"]
        windows = self.applies.stitched and structure.kind == "windowed" and not is_signal(structure)
        more = " or stitch=True" if windows else ""
        raise NotApplicableError(
            f"{self.name} does not apply to {structure.model}: {reason}; use {', '.join(usable[:6])} instead{more}"
        )


METHODS: dict[str, Method] = {}
TABLES["vitrail.methods"] = METHODS


def register(name: str, title: str, family: str, **entry: Any) -> Callable[[Relevance], Relevance]:
    """Add a pure function to the registry; the arguments are the fields of `Method`.

    Raises:
        OptionError: Another module registered a method of this name.
    """

    def add(compute: Relevance) -> Relevance:
        existing = METHODS.get(name)
        refuse_name_clash("method", name, None if existing is None else existing.compute, compute)
        METHODS[name] = Method(name, compute, title, family, **entry)
        return compute

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
    if not isinstance(spec, str):
        raise OptionError(f"{spec!r} is not a method: give its name, see `vitrail methods`")
    name, _, tail = spec.replace(" ", "").partition(":")
    if name not in METHODS:
        load_plugins("vitrail.methods", name)
    method = METHODS.get(name)
    if method is None:
        load_plugins("vitrail.methods")
        near = get_close_matches(name, METHODS, n=3, cutoff=0.7)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(METHODS)}."
        raise OptionError(f"unknown method {name!r}: {hint} See `vitrail methods`.")
    chosen: dict[str, Any] = {}
    for word in filter(None, tail.split(",")):
        key, equals, value = word.partition("=")
        if equals:
            chosen[key] = parse_value(value)
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
        types = method.option_types.get(key)
        if types is not None and not has_type(value, types):
            allowed = " or ".join(OPTION_TYPES[t] for t in types)
            raise OptionError(f"{key}={value!r} of {name} must be {allowed}; it is {defaults[key]} by default")
        if key == "score" and not (isinstance(value, str) and value in SCORES):
            raise OptionError(f"score={value!r} of {name} is not one of {', '.join(map(repr, SCORES))}")
    chosen = {**defaults, **chosen}
    if method.derive is not None:
        method, chosen = method.derive(chosen)
    return f"{name}{':' + tail if tail else ''}", method, chosen


def choose(option: str, value: object, allowed: Iterable[object]) -> None:
    """Raise an error if an option is not one of the given values.

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
    """Raise an error if an index is not below ``count``; negative indices count from the end.

    Example:
        >>> within("layer", 12, 12, "blocks")
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: layer=12 is out of range: this model has 12 blocks, 0 to 11
    """
    if not -count <= index < count:
        raise OptionError(f"{option}={index} is out of range: this model has {count} {what}, 0 to {count - 1}")


def check_whole_numbers(least: int, **values: int) -> None:
    """Raise an error if an option is not an integer of at least a minimum.

    Example:
        >>> check_whole_numbers(1, masks=0)
        Traceback (most recent call last):
        ...
        vitrail.errors.OptionError: masks=0 must be a whole number of at least 1
    """
    for option, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise OptionError(f"{option}={value!r} must be a whole number of at least {least}")
