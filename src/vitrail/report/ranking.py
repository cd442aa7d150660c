"""Where methods stand by one score: intervals, who is best, and which differences are more than chance.

Every method is compared with the best one and with the strongest control, on the images both have. P-values are those
of a paired test over images, corrected after Holm for the number of methods, once for each of the two questions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from vitrail.report.values import Values
from vitrail.scores.statistics import Interval, difference, holm, interval, p_value

#: Below which corrected p-value a difference counts as real.
ALPHA = 0.05


@dataclass(frozen=True)
class RankedMethod:
    """One method by one score.

    Attributes:
        method: As it was typed.
        control: Whether it knows nothing of the model.
        images: How many have a value.
        value: The score with its 95 % interval, in the score's own units.
        place: 1 for the best, 2 for the second; 0 for others, for controls, and where neither way is better.
        behind: This method minus the best; None for the best, for controls, and where too few images are shared.
        p: That difference's corrected p-value.
        ahead: This method minus the strongest control.
        p_control: That difference's corrected p-value.
    """

    method: str
    control: bool
    images: int
    value: Interval
    place: int = 0
    behind: Interval | None = None
    p: float | None = None
    ahead: Interval | None = None
    p_control: float | None = None

    def tied(self) -> bool:
        """Whether it cannot be told from the best."""
        return self.place == 1 or (self.p is not None and self.p >= ALPHA)

    def beats(self, direction: str) -> bool | None:
        """Whether it is better than the strongest control by more than chance; None where there is none."""
        if self.ahead is None or self.p_control is None:
            return None
        right = self.ahead.value > 0 if direction == "up" else self.ahead.value < 0
        return right and self.p_control < ALPHA


def standings(
    values: Mapping[str, Values],
    direction: str,
    controls: Collection[str] = (),
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, RankedMethod]:
    """Methods by one score, best first, then controls, best first.

    Args:
        values: By method.
        direction: "up", "down", or "none", which leaves out all comparisons.
        controls: Which of the methods are controls.
        resamples: Draws for intervals and p-values.
        seed: For both.

    Example:
        >>> import numpy as np
        >>> ids = tuple("abcdefghijkl")
        >>> own = {"good": np.full((12, 1), 3.0), "bad": np.full((12, 1), 1.0)}
        >>> found = standings({name: Values(ids, table) for name, table in own.items()}, "up")
        >>> [(s.method, s.place, s.tied()) for s in found.values()]
        [('good', 1, True), ('bad', 2, False)]
    """
    plain = {
        name: RankedMethod(
            name, name in controls, len(v.ids), interval(v.table, v.score, resamples=resamples, seed=seed)
        )
        for name, v in values.items()
    }
    sign = {"up": -1, "down": 1}.get(direction, 0)
    order = sorted(plain, key=lambda name: (plain[name].control, sign * plain[name].value.value))
    ranked = [name for name in order if not plain[name].control]
    if not sign or not ranked:
        return {name: plain[name] for name in order}
    scores = list(dict.fromkeys(plain[name].value.value for name in ranked))
    for name in ranked:
        place = scores.index(plain[name].value.value) + 1
        plain[name] = replace(plain[name], place=place if place <= 2 else 0)
    behind = _against(values, ranked[0], ranked[1:], resamples, seed)
    strongest = next((name for name in order if plain[name].control), None)
    ahead = _against(values, strongest, ranked, resamples, seed) if strongest else {}
    for name in ranked:
        gap, p = behind.get(name, (None, None))
        over, p_control = ahead.get(name, (None, None))
        plain[name] = replace(plain[name], behind=gap, p=p, ahead=over, p_control=p_control)
    return {name: plain[name] for name in order}


def _against(
    values: Mapping[str, Values], rival: str, names: list[str], resamples: int, seed: int
) -> dict[str, tuple[Interval, float]]:
    """Paired differences to one rival on shared images, p-values corrected for their number."""
    found: dict[str, tuple[Interval, float]] = {}
    for name in names:
        one, two = values[name], values[rival]
        shared = sorted(set(one.ids) & set(two.ids))
        if len(shared) < 2:  # nothing to draw anew
            continue
        a, b = one.of(shared), two.of(shared)
        gap = difference(a, b, one.score, resamples=resamples, seed=seed)
        found[name] = gap, p_value(a, b, one.score, resamples=resamples, seed=seed)
    corrected = holm([p for _, p in found.values()])
    return {name: (gap, float(p)) for (name, (gap, _)), p in zip(found.items(), corrected, strict=True)}
