"""Area rules: how a perturbation curve becomes one number. The papers use different rules.

The last axis of a curve is its levels. All rules are linear, so the area of a mean curve is the mean of the areas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import InputError, OptionError

AreaFunction = Callable[[Tensor, Sequence[float]], Tensor]


def trapezoid(values: Tensor, x: Sequence[float]) -> Tensor:
    """Trapezoidal area over x, not rescaled: a curve that is 1 from 0 to 0.9 has the area 0.9.

    Example:
        >>> trapezoid(torch.tensor([1.0, 1.0, 0.0]), [0.0, 0.5, 1.0])
        tensor(0.7500)
    """
    return torch.trapezoid(values, torch.tensor(x, dtype=values.dtype, device=values.device), dim=-1)


def trapezoid_unit(values: Tensor, x: Sequence[float]) -> Tensor:  # noqa: ARG001 - all rules have one signature
    """Trapezoidal area over evenly spaced levels, with the range scaled to 1: RISE's rule.

    Example:
        >>> trapezoid_unit(torch.tensor([1.0, 1.0, 0.0]), [0.0, 0.45, 0.9])
        tensor(0.7500)
    """
    return _trapezoid_sum(values) / (values.shape[-1] - 1)


def trapezoid_forced(values: Tensor, x: Sequence[float]) -> Tensor:
    """Trapezoidal area over x with the point (1, 0) appended, whether measured or not.

    Example:
        >>> trapezoid_forced(torch.tensor([1.0, 1.0]), [0.0, 0.5])
        tensor(0.7500)
    """
    return trapezoid(torch.cat([values, torch.zeros_like(values[..., :1])], -1), [*x, 1.0])


def trapezoid_count(values: Tensor, x: Sequence[float]) -> Tensor:  # noqa: ARG001
    """Trapezoidal area with dx = 1 / number of levels, instead of 1 / number of intervals.

    Example:
        >>> trapezoid_count(torch.tensor([1.0, 1.0, 1.0, 1.0]), [0.2, 0.4, 0.6, 0.8])
        tensor(0.7500)
    """
    return _trapezoid_sum(values) / values.shape[-1]


def plain_mean(values: Tensor, x: Sequence[float]) -> Tensor:  # noqa: ARG001
    """Mean over the levels, with full weight for the first and the last.

    Example:
        >>> plain_mean(torch.tensor([1.0, 1.0, 0.0, 0.0]), [0.0, 0.1, 0.2, 0.3])
        tensor(0.5000)
    """
    return values.mean(-1)


def _trapezoid_sum(values: Tensor) -> Tensor:
    """Sum over the levels, with half weight for the first and the last."""
    if values.shape[-1] < 2:
        raise InputError(f"an area needs a curve of at least two levels, this one has {values.shape[-1]}")
    return values.sum(-1) - (values[..., 0] + values[..., -1]) / 2


@dataclass(frozen=True)
class AreaRule:
    """An area rule with its key, its title for tables and the factor of printed numbers."""

    name: str
    title: str
    area: AreaFunction
    factor: float = 1.0

    def __call__(self, values: Tensor, x: Sequence[float]) -> Tensor:
        """Compute the areas of curves, shape (…, L) to (…)."""
        return self.area(values, x) * self.factor


AREAS: dict[str, AreaRule] = {
    rule.name: rule
    for rule in (
        AreaRule("trapezoid×100", "trapezoid over the levels, ×100", trapezoid, 100.0),
        AreaRule("unit×100", "trapezoid, range scaled to 1, ×100", trapezoid_unit, 100.0),
        AreaRule("unit", "trapezoid, range scaled to 1", trapezoid_unit),
        AreaRule("forced×100", "trapezoid on [0, 1] with (1, 0) added, ×100", trapezoid_forced, 100.0),
        AreaRule("count", "trapezoid, dx = 1/number of levels", trapezoid_count),
        AreaRule("mean", "plain mean over the levels", plain_mean),
    )
}


def find_area(name: str) -> AreaRule:
    """Look up an area rule by name.

    Example:
        >>> find_area("mean").title
        'plain mean over the levels'
    """
    if name not in AREAS:
        raise OptionError(f"unknown area rule {name!r}: choose from {', '.join(AREAS)}")
    return AREAS[name]


def aopc(log_probs: Tensor) -> Tensor:
    """AOPC: mean drop of the probability over all levels, the unperturbed one included; higher is better.

    Args:
        log_probs: Log-probability of one class, most relevant pixels removed first, starting with the unperturbed
            image, shape (…, L).

    Example:
        >>> aopc(torch.tensor([0.8, 0.4, 0.0]).log())
        tensor(0.4000)
    """
    probs = log_probs.exp()
    return (probs[..., :1] - probs).mean(-1)


def lodds(log_probs: Tensor) -> Tensor:
    """LOdds: mean change of the natural log-probability over all levels, the unperturbed one included; lower is better.

    Args:
        log_probs: As for ``aopc``.

    Example:
        >>> lodds(torch.tensor([0.0, -1.0, -2.0]))
        tensor(-1.)
    """
    return (log_probs - log_probs[..., :1]).mean(-1)


def srg(lerf: Tensor, morf: Tensor) -> Tensor:
    """SRG, also called ABPC: area of the LeRF curve minus area of the MoRF curve; higher is better.

    With the same rule for both areas, the score of a random order cancels.

    Example:
        >>> srg(torch.tensor([0.7]), torch.tensor([0.2]))
        tensor([0.5000])
    """
    return lerf - morf


def deletion_area(probs: Tensor) -> Tensor:
    """Area under a deletion curve as in RISE, both ends included, shape (…, L) to (…); lower is better.

    Example:
        >>> deletion_area(torch.tensor([1.0, 0.5, 0.0]))
        tensor(0.5000)
    """
    return trapezoid_unit(probs, ())


def insertion_area(probs: Tensor) -> Tensor:
    """Area under an insertion curve as in RISE, both ends included, shape (…, L) to (…); higher is better.

    Example:
        >>> insertion_area(torch.tensor([0.0, 1.0, 1.0]))
        tensor(0.7500)
    """
    return trapezoid_unit(probs, ())
