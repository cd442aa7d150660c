"""Validation of requests before any work is done: methods, options, classes and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from vitrail.errors import InputError, OptionError, TargetError, VitrailError
from vitrail.methods import Method, find
from vitrail.methods.cost import size_of
from vitrail.web.api_errors import to_api_error
from vitrail.web.limits import (
    MAX_INTERLEAVED_EVALUATIONS,
    MAX_OPTION_CHARACTERS,
    MAX_OPTION_NUMBER,
    MAX_OPTION_VALUES,
    MAX_SPEC_CHARACTERS,
    Limits,
)
from vitrail.web.page_targets import PageTarget, RequestedTarget
from vitrail.web.schemas import NamedTargetRequest
from vitrail.web.served_model import ServedModel, takes_contrast


@dataclass(frozen=True)
class RequestedMethod:
    """A method of a request.

    Attributes:
        label: The method and its options as given, without spaces.
        method: Its registry entry.
        extra_options: Options beyond the label: the request's seed, for methods that draw random numbers.
        evaluations: Images it evaluates beyond the shared pass, at most.
    """

    label: str
    method: Method
    extra_options: Mapping[str, Any]
    evaluations: int

    @property
    def shares_pass(self) -> bool:
        """Whether it only reads the pass that such methods share."""
        return self.evaluations == 0

    @property
    def can_interleave(self) -> bool:
        """Whether it is short enough to run between two batches of a longer method."""
        return self.evaluations <= MAX_INTERLEAVED_EVALUATIONS


def check_methods(
    specs: Sequence[str], served: ServedModel, target_count: int, seed: int, limits: Limits
) -> list[RequestedMethod]:
    """Parse and check the methods of a request; duplicates are removed, the order is kept."""
    try:
        if not 1 <= len(specs) <= limits.methods:
            raise OptionError(f"{len(specs)} methods given: give 1 to {limits.methods}")
        methods = {m.label: m for m in (_check_method(spec, served, target_count, seed, limits) for spec in specs)}
        total, maximum = sum(m.evaluations for m in methods.values()), limits.request_factor * limits.evaluations
        if total > maximum:
            raise OptionError(
                f"the methods together evaluate {total} perturbed images, more than the {maximum} this server allows "
                "per request: use fewer methods at a time"
            )
    except VitrailError as error:
        raise to_api_error(error) from error
    return list(methods.values())


def _check_method(spec: str, served: ServedModel, target_count: int, seed: int, limits: Limits) -> RequestedMethod:
    if len(spec) > MAX_SPEC_CHARACTERS:
        raise OptionError(f"a method with its options has {len(spec)} characters: use at most {MAX_SPEC_CHARACTERS}")
    try:
        label, method, options = find(spec)
    except RecursionError as error:
        raise OptionError(f"{spec[:30]}… is nested too deeply: name the method itself") from error
    extra_options = {"seed": seed} if "seed" in options and "seed=" not in label else {}
    options = {**options, **extra_options}
    for name, value in options.items():
        _check_option(method.name, name, value)
    evaluations = method.cost(options, size_of(served.structure), target_count).evaluations
    if evaluations > limits.evaluations:
        raise OptionError(
            f"{label} evaluates {evaluations} perturbed images, more than the {limits.evaluations} this server allows "
            "per method: use fewer masks, samples, steps or classes"
        )
    served.check_method(method, options)
    return RequestedMethod(label, method, extra_options, evaluations)


def _check_option(method: str, name: str, value: Any) -> None:
    if isinstance(value, str) and len(value) > MAX_OPTION_CHARACTERS:
        raise OptionError(f"{name} of {method} is too long: use at most {MAX_OPTION_CHARACTERS} characters")
    if isinstance(value, int | float) and not isinstance(value, bool):
        maximum = MAX_OPTION_VALUES.get(name, MAX_OPTION_NUMBER)
        if not isfinite(value) or abs(value) > maximum:
            raise OptionError(f"{name}={value} of {method} is too large for this server: use at most {maximum}")


def check_targets(
    targets: Sequence[int | NamedTargetRequest] | None, served: ServedModel, limits: Limits
) -> list[RequestedTarget] | None:
    """Check the targets of a request; duplicates are removed, None stands for the predicted class."""
    try:
        if targets is None:
            if served.target_kind != "class":
                raise TargetError(
                    f"{served.title} has no predicted class: give targets of the kind {served.target_kind}"
                )
            return None
        if not 1 <= len(targets) <= limits.targets:
            raise TargetError(f"{len(targets)} targets given: give 1 to {limits.targets}, or null")
        found = [_page_target(target, served) for target in targets]
        contexts = {(one.text, one.written) for one in found if isinstance(one, PageTarget) and one.kind == "token"}
        if len(contexts) > 1:
            raise TargetError("the tokens follow different texts: explain each in a request of its own")
        for index in found:
            if isinstance(index, PageTarget):
                index.named(served)
            elif not 0 <= index < served.class_count:
                count = served.class_count
                raise TargetError(f"class {index} does not exist: the model has {count} classes, 0 to {count - 1}")
    except VitrailError as error:
        raise to_api_error(error) from error
    return list(dict.fromkeys(found))


def _page_target(target: int | NamedTargetRequest, served: ServedModel) -> RequestedTarget:
    kind = "class" if isinstance(target, int) else target.kind
    if kind != served.target_kind:
        needed = {
            "class": "name a class by its index", "prompt": "give a prompt, as {'kind': 'prompt', 'text': 'a star'}",
            "box": "give a box, as {'kind': 'box', 'query': 3}",
            "region": "give a region, as {'kind': 'region', 'point': [40, 30]}",
            "token": "give a token, as {'kind': 'token', 'token': 5}",
        }  # fmt: skip
        raise TargetError(f"a {kind} is not a target of {served.title}: {needed[served.target_kind]}")
    if isinstance(target, int):
        return target
    point = None if target.point is None else (target.point[0], target.point[1])
    patches = tuple(sorted(set(target.patches or ())))
    text = None if target.text is None else target.text.strip()
    if target.kind == "box" and target.query is None:
        raise TargetError("the box has no query: give the number of a query, as {'kind': 'box', 'query': 3}")
    if target.kind == "token":
        _check_tokens(target, served)
    written = tuple(target.written or ())
    return PageTarget(target.kind, text, target.query, target.label, point, patches, target.token, written)


def _check_tokens(target: NamedTargetRequest, served: ServedModel) -> None:
    """Refuse tokens outside the vocabulary, and a question where the text itself is explained, or none."""
    largest = max([target.token or 0, *(target.written or ())])
    if largest >= served.class_count:
        raise TargetError(f"token {largest} does not exist: the vocabulary has {served.class_count} tokens")
    if served.kind == "image" and not (target.text or "").strip():
        raise TargetError("the token has no question: give text='What colour is the fish?'")
    if served.kind == "text" and target.text is not None:
        raise TargetError("the target of a language model has no text of its own: send the prompt as text=")


def check_contrast(
    contrast: int | NamedTargetRequest | None,
    targets: Sequence[RequestedTarget] | None,
    specs: Sequence[str],
    served: ServedModel,
) -> RequestedTarget | None:
    """Check a request for the difference of two targets: one other target, and methods that take a function.

    Returns:
        What is subtracted, or None.
    """
    if contrast is None:
        return None
    try:
        other = _page_target(contrast, served)
        if served.kind == "text":
            raise TargetError(f"{served.title} is a text model: contrast= is available for images")
        if targets is None or len(targets) != 1 or targets[0] == other:
            raise TargetError("contrast= compares one class with another: give one other class as targets")
        if isinstance(other, PageTarget):
            other.named(served)
        elif not 0 <= other < served.class_count:
            count = served.class_count
            raise TargetError(f"class {other} does not exist: the model has {count} classes, 0 to {count - 1}")
        for spec in specs:
            name = spec.partition(":")[0]
            if not takes_contrast(name):
                raise TargetError(f"{name} explains single classes only: leave it out, or explain the two classes")
    except VitrailError as error:
        raise to_api_error(error) from error
    return other


def check_text(text: str, limits: Limits) -> str:
    """Check that a text is neither empty nor too long."""
    try:
        if not text.strip():
            raise InputError("the text is empty: enter a text to explain")
        if len(text) > limits.characters:
            raise InputError(f"the text has {len(text)} characters: use at most {limits.characters}")
    except VitrailError as error:
        raise to_api_error(error) from error
    return text
