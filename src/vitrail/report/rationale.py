"""Token-F1 of the top words against their number, as GradToken's Figure 6 has it, from what a benchmark wrote.

The file is JSON with ``rows``, one for each method: its name under ``method``, and under ``macro_f1_at`` (mean over
reviews) and ``micro_f1_at`` (from pooled counts) the F1 at each k, as a number or as ``value``, ``low`` and ``high``;
other scores, as ``auprc``, with ``mean``, ``low`` and ``high``. ``benchmarks/movies.py`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from vitrail.errors import DataError
from vitrail.report.chart import ChartLine, legend, lines, styles
from vitrail.report.markdown import grid
from vitrail.report.paper_comparison import places
from vitrail.scores.statistics import Interval
from vitrail.viz.html import heads, page, row, table

#: Names of what is drawn and in words.
AVERAGES = {"macro_f1_at": "macro: mean over reviews", "micro_f1_at": "micro: from pooled counts"}
#: Scores over all words or shares of them, and the way to better.
OTHERS = {"auprc": "up", "comprehensiveness": "up", "sufficiency": "down"}
INTRODUCTION = (
    "The k highest words of each review against those people marked. After GradToken, Figure 6, which gives a curve "
    "and no numbers. The six best have a colour, controls are dashed; bands are their 95 % intervals over reviews, "
    "and those of the others stand in the tables."
)
#: Methods that know nothing of the model.
CONTROLS = ("random", "start first", "end first")


@dataclass(frozen=True)
class Rationale:
    """One method on a set of texts.

    Attributes:
        method: Its name.
        f1: By kind of average, the F1 at each k.
        scores: Other scores.
    """

    method: str
    f1: dict[str, dict[int, Interval]] = field(repr=False)
    scores: dict[str, Interval] = field(repr=False)

    @property
    def control(self) -> bool:
        """Whether it knows nothing of the model."""
        return self.method in CONTROLS or self.method.startswith("inverted")


def read_rationales(path: str | Path) -> tuple[dict[str, Any], list[Rationale]]:
    """The manifest and the methods of a file, best by mean macro F1 first, then controls.

    Raises:
        DataError: The file is not of this kind.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        found = [
            Rationale(
                own["method"],
                {kind: {int(k): _interval(v) for k, v in own[kind].items()} for kind in AVERAGES if kind in own},
                {name: _interval(own[name]) for name in OTHERS if name in own},
            )
            for own in raw["rows"]
        ]
        assert found
        assert all(one.f1.get("macro_f1_at") for one in found)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise DataError(
            f"{path} has no token-F1 of methods: give what benchmarks/movies.py wrote with --out"
        ) from error
    found.sort(key=lambda one: (one.control, -_mean(one)))
    return raw.get("manifest", {}), found


def rationale_page(about: dict[str, Any], found: list[Rationale]) -> str:
    """The figure, its numbers with intervals, and how they were made."""
    title = "Token-F1 of the top words"
    told = "".join(f"<li><b>{escape(value)}</b>{escape(name)}</li>" for name, value in _facts(about))
    top = f'<p class="over">Vitrail report</p><h1>{title}</h1><ul class="facts">{told}</ul>'
    body = [f"<header>{top}</header><p>{INTRODUCTION}</p>"]
    kinds = [kind for kind in AVERAGES if all(kind in one.f1 for one in found)]
    body.append(f'<div class="charts">{"".join(_figure(kind, found) for kind in kinds)}</div>')
    body += [_table(kind, found) for kind in kinds]
    if found[0].scores:
        arrows = {"up": "↑", "down": "↓"}
        names = [name for name in OTHERS if name in found[0].scores]
        rows = [
            row([escape(one.method), *(_text(one.scores.get(name)) for name in names)], _kind(one)) for one in found
        ]
        body.append("<h2>Other scores</h2>")
        body.append(table(heads(["method", *(f"{name} {arrows[OTHERS[name]]}" for name in names)]), rows))
    versions = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
    body.append(f'<h2>How it was made</h2><p class="dim">{escape(versions)}</p>' if versions else "")
    return page(title, "".join(body))


def _facts(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What stands below the title: switches that are on, shares in percent, words and whole numbers as they are."""
    for name, value in about.items():
        if isinstance(value, bool):
            yield from [(name, "yes")] if value else []
        elif isinstance(value, float):
            yield name, f"{100 * value:.1f} %"
        elif isinstance(value, str | int):
            yield name, str(value)


def rationale_markdown(found: list[Rationale]) -> str:
    """The numbers in Markdown, a table for each kind of average."""
    parts = ["# Token-F1 of the top words\n"]
    for kind, words in AVERAGES.items():
        if all(kind in one.f1 for one in found):
            ks = list(found[0].f1[kind])
            cells = [[f"`{one.method}`", *(_plain(one.f1[kind][k]) for k in ks)] for one in found]
            parts.append(f"## {words}\n\n" + grid(["method", *(f"k = {k}" for k in ks)], cells) + "\n")
    return "\n".join(parts)


def rationale_csv(found: list[Rationale]) -> str:
    """The numbers as rows: method, average, k, value, low, high."""
    lines_ = ["method,average,k,value,low,high"]
    for one in found:
        for kind, at in one.f1.items():
            lines_ += [f"{one.method},{kind[:5]},{k},{v.value},{v.low},{v.high}" for k, v in at.items()]
    return "\n".join([*lines_, ""])


def _figure(kind: str, found: list[Rationale]) -> str:
    ranked = [one.method for one in found]
    style = styles(ranked, ranked, [one.method for one in found if one.control])
    ks = list(found[0].f1[kind])
    drawn = []
    for one in sorted(found, key=lambda one: (style[one.method] != "rest", style[one.method])):
        at = [one.f1[kind][k] for k in ks]
        ends = [(v.low, v.high) for v in at] if style[one.method] != "rest" else []  # twenty bands would be fog
        drawn.append(
            ChartLine(one.method, [v.value for v in at], style[one.method], [e[0] for e in ends], [e[1] for e in ends])
        )
    words = f"<b>Token-F1, {escape(AVERAGES[kind])}</b>"
    chart = lines(ks, drawn, "k, number of words picked", "token-F1", f"Token-F1 against k, {AVERAGES[kind]}")
    return f"<figure><figcaption>{words}</figcaption>{chart}{legend(style)}</figure>"


def _table(kind: str, found: list[Rationale]) -> str:
    ks = list(found[0].f1[kind])
    best = {k: places({one.method: one.f1[kind][k].value for one in found if not one.control}, "up") for k in ks}
    rows = []
    for one in found:
        cells = [_text(one.f1[kind][k], best[k].get(one.method, 0)) for k in ks]
        rows.append(row([escape(one.method), *cells], _kind(one)))
    return f"<h3>Token-F1, {escape(AVERAGES[kind])}</h3>" + table(heads(["method", *(f"k = {k}" for k in ks)]), rows)


def _kind(one: Rationale) -> str:
    return "control" if one.control else ""


def _interval(given: Any) -> Interval:
    """A number alone has no interval: its ends are itself."""
    if isinstance(given, dict):
        value = given["value"] if "value" in given else given["mean"]
        return Interval(float(value), float(given["low"]), float(given["high"]))
    return Interval(float(given), float(given), float(given))


def _mean(one: Rationale) -> float:
    values = [v.value for v in one.f1["macro_f1_at"].values()]
    return sum(values) / len(values)


def _text(value: Interval | None, place: int = 0) -> str:
    if value is None:
        return "–"
    ends = "" if value.low == value.high else f"<small>[{value.low:.3f}, {value.high:.3f}]</small>"
    mark = {1: " best", 2: " second"}.get(place, "")
    return f'<span class="num{mark}">{value.value:.3f}</span>{ends}'


def _plain(value: Interval) -> str:
    return f"{value.value:.3f}" + ("" if value.low == value.high else f" [{value.low:.3f}, {value.high:.3f}]")
