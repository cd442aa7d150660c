"""The levels of the page's deletion and insertion curves, which come in two passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.scores.presets import Curve, LevelGrid, Preset

FILLS = {"deletion": "mean", "insertion": "blur"}


def level_passes(steps: int) -> list[list[int]]:
    """Levels of curves in percent, in two passes: a coarse one over the whole range, then the others.

    Example:
        >>> level_passes(8)
        [[0, 25, 50, 75, 100], [12, 38, 62, 88]]
    """
    levels = [round(100 * i / steps) for i in range(steps + 1)]
    coarse = sorted({levels[round(i * steps / 4)] for i in range(5)})
    rest = [level for level in levels if level not in coarse]
    return [coarse, rest] if rest else [coarse]


def merge_levels(known: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Curves with further levels, in the order of the levels."""
    names = ("fractions", "deletion", "insertion")
    points = sorted(zip(*([*known.get(name, []), *further[name]] for name in names), strict=True))
    return dict(zip(names, map(list, zip(*points, strict=True)), strict=True))


def curve_preset(percents: tuple[int, ...]) -> Preset:
    """The deletion and insertion curves of the page at some levels, in percent."""
    grid = LevelGrid(percents)
    curves = (Curve("deletion", "morf", FILLS["deletion"], grid), Curve("insertion", "lerf", FILLS["insertion"], grid))
    return Preset("page", "the page's curves", curves, "predicted", "unit")
