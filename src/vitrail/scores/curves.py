"""From a curve to a number: the area rules of the papers, none of which agree.

Curves have levels in their last axis; all rules are linear, so the area of a mean curve is the mean of areas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import InputError, OptionError

Area = Callable[[Tensor, Sequence[float]], Tensor]


def trapezoid(values: Tensor, x: Sequence[float]) -> Tensor:
    """Trapezoids over x as it is: a curve that stays at one from 0 to 0.9 has the area 0.9.

    Args:
        values: A curve, shape (…, L).
        x: Where its levels stand, L numbers.

    Example:
        >>> trapezoid(torch.tensor([1.0, 1.0, 0.0]), [0.0, 0.5, 1.0])
        tensor(0.7500)
    """
    return torch.trapezoid(values, torch.tensor(x, dtype=values.dtype, device=values.device), dim=-1)


def trapezoid_unit(values: Tensor, x: Sequence[float]) -> Tensor:  # noqa: ARG001 - every rule takes the same
    """Trapezoids over evenly spaced levels, the whole range counting as one: RISE's rule.

    Example:
        >>> trapezoid_unit(torch.tensor([1.0, 1.0, 0.0]), [0.0, 0.45, 0.9])
        tensor(0.7500)
    """
    return _inner(values) / (values.shape[-1] - 1)


def trapezoid_forced(values: Tensor, x: Sequence[float]) -> Tensor:
    """Trapezoids over x with the point (1, 0) put at the end, measured or not.

    Example:
        >>> trapezoid_forced(torch.tensor([1.0, 1.0]), [0.0, 0.5])
        tensor(0.7500)
    """
    return trapezoid(torch.cat([values, torch.zeros_like(values[..., :1])], -1), [*x, 1.0])


def trapezoid_count(values: Tensor, x: Sequence[float]) -> Tensor:  # noqa: ARG001
    """Trapezoids whose width is one over the number of levels, not of the gaps between them.

    Example:
        >>> trapezoid_count(torch.tensor([1.0, 1.0, 1.0, 1.0]), [0.2, 0.4, 0.6, 0.8])
        tensor(0.7500)
    """
    return _inner(values) / values.shape[-1]


def plain_mean(values: Tensor, x: Sequence[float]) -> Tensor:  # noqa: ARG001
    """The mean over the levels, ends counted like the others.

    Example:
        >>> plain_mean(torch.tensor([1.0, 1.0, 0.0, 0.0]), [0.0, 0.1, 0.2, 0.3])
        tensor(0.5000)
    """
    return values.mean(-1)


def _inner(values: Tensor) -> Tensor:
    if values.shape[-1] < 2:
        raise InputError(f"an area needs two levels at least, this curve has {values.shape[-1]}")
    return values.sum(-1) - (values[..., 0] + values[..., -1]) / 2


@dataclass(frozen=True)
class AreaRule:
    """A rule with its name in words and the factor numbers are printed with."""

    name: str
    title: str
    area: Area
    factor: float = 1.0

    def __call__(self, values: Tensor, x: Sequence[float]) -> Tensor:
        """The area of curves of shape (…, L), shape (…)."""
        return self.area(values, x) * self.factor


AREAS: dict[str, AreaRule] = {
    rule.name: rule
    for rule in (
        AreaRule("trapezoid×100", "trapezoid over the levels as they stand, ×100", trapezoid, 100.0),
        AreaRule("unit×100", "trapezoid, range scaled to 1, ×100", trapezoid_unit, 100.0),
        AreaRule("unit", "trapezoid, range scaled to 1", trapezoid_unit),
        AreaRule("forced×100", "trapezoid on [0, 1] with (1, 0) added, ×100", trapezoid_forced, 100.0),
        AreaRule("count", "trapezoid, dx = 1/number of levels", trapezoid_count),
        AreaRule("mean", "plain mean over the levels", plain_mean),
    )
}


def find_area(name: str) -> AreaRule:
    """An area rule by its name.

    Example:
        >>> find_area("mean").title
        'plain mean over the levels'
    """
    if name not in AREAS:
        raise OptionError(f"unknown area rule {name!r}: choose from {', '.join(AREAS)}")
    return AREAS[name]


# -- scores that are differences ---------------------------------------------------------------------------------------


def aopc(log_probs: Tensor) -> Tensor:
    """Mean drop of the probability, the unperturbed level counted as a drop of zero; higher is better.

    Args:
        log_probs: Log-probability of one class, most relevant pixels removed first, the first level unperturbed,
            shape (…, L).

    Example:
        >>> aopc(torch.tensor([0.8, 0.4, 0.0]).log())
        tensor(0.4000)
    """
    probs = log_probs.exp()
    return (probs[..., :1] - probs).mean(-1)


def lodds(log_probs: Tensor) -> Tensor:
    """Mean change of the log-probability, natural log, the unperturbed level counted as zero; lower is better.

    Args:
        log_probs: As for ``aopc``.

    Example:
        >>> lodds(torch.tensor([0.0, -1.0, -2.0]))
        tensor(-1.)
    """
    return (log_probs - log_probs[..., :1]).mean(-1)


def gap(lerf: Tensor, morf: Tensor) -> Tensor:
    """Area when the least relevant go first minus area when the most relevant do: SRG, also called ABPC.

    With the two areas by one rule, what a random order would score cancels. Higher is better.

    Example:
        >>> gap(torch.tensor([0.7]), torch.tensor([0.2]))
        tensor([0.5000])
    """
    return lerf - morf


def deletion(probs: Tensor) -> Tensor:
    """RISE's area of a deletion curve, both ends in it, shape (…, L) to (…); lower is better.

    Example:
        >>> deletion(torch.tensor([1.0, 0.5, 0.0]))
        tensor(0.5000)
    """
    return trapezoid_unit(probs, ())


def insertion(probs: Tensor) -> Tensor:
    """RISE's area of an insertion curve, both ends in it, shape (…, L) to (…); higher is better.

    Example:
        >>> insertion(torch.tensor([0.0, 1.0, 1.0]))
        tensor(0.7500)
    """
    return trapezoid_unit(probs, ())
