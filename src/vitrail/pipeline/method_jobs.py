"""Methods to run in one call of `vitrail.explain`, with their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.errors import OptionError
from vitrail.methods import find
from vitrail.methods.registry import Method

#: Default method; its page says why.
DEFAULT = "leadlight"


@dataclass(frozen=True)
class MethodJob:
    """One method to run.

    Attributes:
        label: The method as requested.
        method: Its entry in the registry.
        options: All its options.
    """

    label: str
    method: Method
    options: dict[str, Any]

    @property
    def score(self) -> str | None:
        """What is differentiated or evaluated; None for methods without such an option."""
        return self.options.get("score")

    @property
    def round(self) -> tuple[str, bool] | None:
        """Which backward it shares: what is differentiated, and whether attention is cut; None if it needs none."""
        return None if self.score is None else (self.score, self.method.detach_attention)


def requested_methods(
    method: str, methods: str | Sequence[str] | Mapping[str, Mapping[str, Any]] | None, options: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    """Methods with their options from the arguments of `vitrail.explain`.

    Raises:
        OptionError: The arguments contradict each other, or name no method.

    Example:
        >>> requested_methods("rollout", None, {"heads": "mean"})
        {'rollout': {'heads': 'mean'}}
        >>> requested_methods(DEFAULT, ["rollout", "vtranm"], {})
        {'rollout': {}, 'vtranm': {}}
    """
    if not isinstance(method, str):
        raise OptionError("several methods go to methods=[…]; method= takes one name")
    if methods is None:
        return {method: options}
    if method != DEFAULT:
        raise OptionError(f"give either method={method!r} or methods=…, not both")
    if options:
        raise OptionError("with several methods, give each its options: methods={'vtranm': {'score': 'logit'}, …}")
    if isinstance(methods, str):
        return {methods: {}}
    requested = dict(methods) if isinstance(methods, Mapping) else {name: {} for name in methods}
    if not requested:
        raise OptionError("no methods given: see vitrail.methods()")
    return requested


def method_jobs(requested: Mapping[str, Mapping[str, Any]]) -> list[MethodJob]:
    """Look up the requested methods in the registry."""
    return [MethodJob(*find(spec, chosen)) for spec, chosen in requested.items()]
