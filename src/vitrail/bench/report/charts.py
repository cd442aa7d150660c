"""SVG charts that take their colours from the page: lines with bands, and values with intervals."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import NamedTuple

from markupsafe import Markup

from vitrail.viz.templating import render

#: Number of lines with a colour; others are grey.
COLOURS = 6
WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 40
#: Height of a row of an interval chart, and the longest label in characters.
ROW_HEIGHT, MAX_LABEL = 19, 26


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart.

    Attributes:
        name: Its name.
        y: Its values.
        style: "c0" … "c5" for a colour, "rest" for grey, "control" for dashed.
        low: Lower ends of intervals, or empty.
        high: Upper ends of intervals, or empty.
    """

    name: str
    y: Sequence[float]
    style: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class ChartInterval:
    """One row of an interval chart.

    Attributes:
        name: Its label.
        value: Position of the dot.
        low: Lower end of the interval.
        high: Upper end of the interval.
        style: "lead", "plain" or "control".
        published: Position of a diamond, for a published number, or None.
    """

    name: str
    value: float
    low: float
    high: float
    style: str
    published: float | None = None


class Tick(NamedTuple):
    """A tick of an axis: position and label."""

    at: float
    label: str


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between ``low`` and ``high``, about ``most`` of them.

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


def line_styles(names: Sequence[str], ranked: Sequence[str], controls: Collection[str]) -> dict[str, str]:
    """Style of each line: colours for the first of the ranking, dashes for controls, grey for the rest."""
    coloured = {name: f"c{i}" for i, name in enumerate([n for n in ranked if n not in controls][:COLOURS])}
    return {name: "control" if name in controls else coloured.get(name, "rest") for name in names}


def line_chart(x: Sequence[float], lines: Sequence[ChartLine], x_label: str, y_label: str, title: str) -> Markup:
    """Draw a line chart with a legend.

    Args:
        x: Positions of the values.
        lines: Later lines are drawn on top.
        x_label: Label of the horizontal axis.
        y_label: Name of the vertical axis, for the text alternative.
        title: Text alternative.
    """
    values = [v for line in lines for v in (*line.y, *line.low, *line.high)]
    low, high = min(0.0, *values), max(values)
    high = 1.0 if 0.8 < high <= 1.0 else high * 1.05 or 1.0
    left, right = min(x), max(x)

    def at_x(value: float) -> float:
        return LEFT + (value - left) / ((right - left) or 1) * (WIDTH - LEFT - RIGHT)

    def at_y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def points(xs: Sequence[float], ys: Sequence[float]) -> list[str]:
        return [f"{at_x(a):.1f},{at_y(b):.1f}" for a, b in zip(xs, ys, strict=True)]

    drawn = [(line.name, line.style, " ".join(points(x, line.y))) for line in lines]
    bands = [
        (line.style, " ".join([*points(x, line.high), *reversed(points(x, line.low))])) for line in lines if line.low
    ]
    order = sorted(lines, key=lambda line: (line.style == "rest", line.style == "control", line.style))
    return Markup(  # noqa: S704
        render(
            "report_line_chart.html",
            width=WIDTH,
            height=HEIGHT,
            title=f"{title}; vertical axis: {y_label}",
            left=LEFT,
            right=WIDTH - RIGHT,
            bottom=HEIGHT - BOTTOM,
            x_label=x_label,
            x_ticks=[Tick(at_x(v), f"{v:g}") for v in (x if len(x) < 10 else ticks(left, right))],
            y_ticks=[Tick(at_y(v), f"{v:g}") for v in ticks(low, high)],
            bands=bands,
            lines=drawn,
            legend=[(line.name, line.style) for line in order],
        )
    )


def interval_chart(
    rows: Sequence[ChartInterval], title: str, digits: int = 2, reference: float | None = None
) -> Markup:
    """Draw values with intervals, one row for each.

    Args:
        rows: From top to bottom.
        title: Text alternative.
        digits: Decimal places of the values at the right.
        reference: Position of a dashed line, such as the strongest control.
    """
    label_width = min(190, 14 + 7.2 * max(len(row.name) for row in rows))
    height = len(rows) * ROW_HEIGHT + 30
    values = [v for row in rows for v in (row.low, row.high, row.published) if v is not None]
    padding = (max(values) - min(values)) * 0.04 or 0.5
    low, high = min(values) - padding, max(values) + padding

    def at(value: float) -> float:
        return label_width + (value - low) / (high - low) * (WIDTH - label_width - 56)

    return Markup(  # noqa: S704
        render(
            "report_interval_chart.html",
            width=WIDTH,
            height=height,
            title=title,
            label_width=label_width,
            ticks=[Tick(at(v), f"{v:g}") for v in ticks(low, high, 5)],
            reference=None if reference is None else at(reference),
            rows=[
                {
                    "y": 14 + i * ROW_HEIGHT,
                    "style": row.style,
                    "name": row.name if len(row.name) <= MAX_LABEL else f"{row.name[: MAX_LABEL - 1]}…",
                    "low": at(row.low),
                    "high": at(row.high),
                    "x": at(row.value),
                    "published": None if row.published is None else at(row.published),
                    "text": f"{row.value:.{digits}f}",
                }
                for i, row in enumerate(rows)
            ],
        )
    )
