"""What a request asks for, checked before any of it is done: methods, options and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.errors import InputError, OptionError, TargetError, VitrailError
from vitrail.methods import Method, find
from vitrail.web.costs import SHORT, allow
from vitrail.web.errors import refused
from vitrail.web.limits import Limits
from vitrail.web.model import ServedModel

SPEC = 200


@dataclass(frozen=True)
class Asked:
    """A method that was asked for.

    Attributes:
        label: The spec without blanks.
        method: Its registry line.
        extra: Options beyond the spec: the request's seed, for methods that draw numbers.
        looks: How many pictures it will show the model.
    """

    label: str
    method: Method
    extra: Mapping[str, Any]
    looks: int

    @property
    def cheap(self) -> bool:
        """Whether it shares the common pass."""
        return self.looks == 0

    @property
    def short(self) -> bool:
        """Whether it may be let in while another method is at work."""
        return self.looks <= SHORT


def ask(specs: Sequence[str], served: ServedModel, targets: int, seed: int, limits: Limits) -> list[Asked]:
    """Methods as users type them, each once, in the order given.

    Raises:
        Refusal: 422, a method is unknown, does not apply, or would take too long.
    """
    try:
        if not 1 <= len(specs) <= limits.methods:
            raise OptionError(f"{len(specs)} methods were asked for: give from 1 to {limits.methods}")
        found = {one.label: one for one in (_one(spec, served, targets, seed, limits) for spec in specs)}
        total, most = sum(one.looks for one in found.values()), limits.altogether * limits.looks
        if total > most:
            raise OptionError(
                f"all methods together would show the model {total} pictures, and this server allows {most} for a "
                "request: ask for fewer methods at a time"
            )
    except VitrailError as error:
        raise refused(error) from error
    return list(found.values())


def _one(spec: str, served: ServedModel, targets: int, seed: int, limits: Limits) -> Asked:
    if len(spec) > SPEC:
        raise OptionError(f"a method's name and options took {len(spec)} characters: {SPEC} are allowed")
    try:
        label, method, options = find(spec)
    except RecursionError as error:
        raise OptionError(f"{spec[:30]}… is nested too deeply: name the method itself") from error
    extra = {"seed": seed} if "seed" in options and "seed=" not in label else {}
    looks = allow(label, {**options, **extra}, served.structure, targets, limits)
    method.check(served.structure, options)
    if served.reading is not None and (against := method.reason_against("text")) is not None:
        raise OptionError(f"{method.name} does not apply to texts: {against}")
    return Asked(label, method, extra, looks)


def classes(targets: Sequence[int] | None, served: ServedModel, limits: Limits) -> list[int] | None:
    """Classes asked for, each once, or None for the predicted one.

    Raises:
        Refusal: 422, a class does not exist, or there are too many.
    """
    if targets is None:
        return None
    try:
        if not 1 <= len(targets) <= limits.targets:
            raise TargetError(f"{len(targets)} classes were asked for: give from 1 to {limits.targets}, or null")
        for index in targets:
            if not 0 <= index < served.class_count:
                count = served.class_count
                raise TargetError(f"class {index} does not exist: the model has {count} classes, 0 to {count - 1}")
    except VitrailError as error:
        raise refused(error) from error
    return list(dict.fromkeys(targets))


def text(given: str, limits: Limits) -> str:
    """A text that is not empty and not too long.

    Raises:
        Refusal: 422.
    """
    try:
        if not given.strip():
            raise InputError("the text is empty: write something to explain")
        if len(given) > limits.characters:
            raise InputError(f"the text has {len(given)} characters: {limits.characters} are allowed")
    except VitrailError as error:
        raise refused(error) from error
    return given
