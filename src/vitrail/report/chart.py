"""Charts as SVG that takes its colours from the page: lines with bands, and dots with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

#: How many lines get a colour of their own; others are grey.
COLOURS = 6
WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 40


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart.

    Attributes:
        name: What it is.
        y: Its values.
        style: "c0" … "c5" for a colour, "rest" for grey, "control" for dashed.
        low: Lower ends of intervals, or empty.
        high: Upper ends.
    """

    name: str
    y: Sequence[float]
    style: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Dot:
    """One row of a chart of intervals."""

    name: str
    value: float
    low: float
    high: float
    style: str
    paper: float | None = None


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from at or above ``low`` to at or below ``high``.

    Example:
        >>> ticks(0.0, 1.0), ticks(13.0, 88.0)
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [20.0, 40.0, 60.0, 80.0])
    """
    span = (high - low) or 1.0
    rough = span / (most - 1)
    base = 10.0 ** floor(log10(rough))
    step = next(base * k for k in (1, 2, 2.5, 5, 10) if base * k >= rough * 0.999)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]


def styles(names: Sequence[str], ranked: Sequence[str], controls: Sequence[str] | frozenset[str]) -> dict[str, str]:
    """A style for each line: colours for the first of the ranking, dashes for controls, grey for the rest."""
    coloured = {name: f"c{i}" for i, name in enumerate([n for n in ranked if n not in controls][:COLOURS])}
    return {name: "control" if name in controls else coloured.get(name, "rest") for name in names}


def lines(x: Sequence[float], drawn: Sequence[ChartLine], across: str, up: str, title: str) -> str:
    """A chart of lines.

    Args:
        x: Where the values stand.
        drawn: The lines, those to be on top last.
        across: What the horizontal axis is.
        up: What the vertical axis is.
        title: For those who cannot see it.
    """
    every = [v for line in drawn for v in (*line.y, *line.low, *line.high)]
    low, high = min(0.0, *every), max(every)
    high = 1.0 if 0.8 < high <= 1.0 else high * 1.05 or 1.0
    left, right = min(x), max(x)

    def at(a: float, b: float) -> tuple[float, float]:
        across_ = LEFT + (a - left) / ((right - left) or 1) * (WIDTH - LEFT - RIGHT)
        return across_, TOP + (high - b) / (high - low) * (HEIGHT - TOP - BOTTOM)

    body = []
    for value in ticks(low, high):
        _, y = at(left, value)
        body += [_rule("grid", LEFT, WIDTH - RIGHT, y, y), _text("tick", LEFT - 6, y + 4, f"{value:g}", "end")]
    for value in x if len(x) < 10 else ticks(left, right):
        body.append(_text("tick", at(value, low)[0], HEIGHT - BOTTOM + 16, f"{value:g}"))
    body.append(_text("axis", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, across))
    for line in drawn:
        if line.low:
            edge = [at(a, b) for a, b in zip(x, line.high, strict=True)]
            edge += [at(a, b) for a, b in zip(reversed(x), reversed(line.low), strict=True)]
            body.append(f'<polygon class="band {line.style}" points="{_points(edge)}"/>')
    for line in drawn:
        path, name = _points([at(a, b) for a, b in zip(x, line.y, strict=True)]), escape(line.name)
        body.append(f'<polyline class="line {line.style}" points="{path}"><title>{name}</title></polyline>')
    return _svg(WIDTH, HEIGHT, f"{title}; up: {up}", body)


def dots(drawn: Sequence[Dot], title: str, digits: int = 2, reference: float | None = None) -> str:
    """A chart of values with intervals, a row for each.

    Args:
        drawn: The rows, from the top.
        title: For those who cannot see it.
        digits: After the point, of the values at the right.
        reference: Where a dashed line goes, such as the strongest control.
    """
    label = min(190, 14 + 7.2 * max(len(dot.name) for dot in drawn))
    width, row = 440, 19
    height = len(drawn) * row + 30
    every = [v for d in drawn for v in (d.low, d.high, d.paper) if v is not None]
    low, high = min(every), max(every)
    pad = (high - low) * 0.04 or 0.5
    low, high = low - pad, high + pad

    def at(value: float) -> float:
        return label + (value - low) / (high - low) * (width - label - 56)

    body = []
    for value in ticks(low, high, 5):
        body.append(_rule("grid", at(value), at(value), 4, height - 22))
        body.append(_text("tick", at(value), height - 8, f"{value:g}"))
    if reference is not None:
        body.append(_rule("mark", at(reference), at(reference), 4, height - 22))
    for i, dot in enumerate(drawn):
        y, kind = 14 + i * row, f"row {dot.style}"
        name = dot.name if len(dot.name) < 27 else f"{dot.name[:25]}…"
        body.append(_text(kind, label - 8, y + 4, name, "end"))
        body.append(_rule(f"whisker {dot.style}", at(dot.low), at(dot.high), y, y))
        body.append(f'<circle class="dot {dot.style}" cx="{at(dot.value):.1f}" cy="{y}" r="4"/>')
        if dot.paper is not None:
            body.append(f'<path class="paper" d="M{at(dot.paper):.1f} {y - 5}l5 5l-5 5l-5 -5z"/>')
        body.append(_text(kind, width - 4, y + 4, f"{dot.value:.{digits}f}", "end"))
    return _svg(width, height, title, body)


def legend(styled: Mapping[str, str]) -> str:
    """Names beside samples of their lines, coloured ones first."""
    order = sorted(styled, key=lambda name: (styled[name] == "rest", styled[name] == "control", styled[name]))
    items = [f'<li><i class="swatch {styled[name]}"></i>{escape(name)}</li>' for name in order]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)


def _text(kind: str, x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _rule(kind: str, x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _svg(width: float, height: float, title: str, body: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'
