"""Shares as text in per cent."""

from __future__ import annotations


def percent(share: float) -> str:
    """A share in whole per cent, with a decimal where it would be rounded to 0 or 100 % without being that.

    Example:
        >>> percent(0.0), percent(0.0004), percent(0.004), percent(0.356)
        ('0 %', '<0.1 %', '0.4 %', '36 %')
        >>> percent(0.996), percent(0.9999), percent(1.0), percent(-0.002)
        ('99.6 %', '>99.9 %', '100 %', '-0.2 %')
    """
    if 0 < share < 0.001:
        return "<0.1 %"
    if 0.9995 <= share < 1:
        return ">99.9 %"
    decimals = 1 if 0 < abs(share) < 0.0095 or 0.995 <= share < 1 else 0
    return f"{100 * share:.{decimals}f} %"
