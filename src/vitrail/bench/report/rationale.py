"""Report of token-F1 against the number of top words, as in GradToken's Figure 6, from a file of results.

The file is JSON with ``rows``, one for each method: its name under ``method``; under ``macro_f1_at`` (mean over
reviews) and ``micro_f1_at`` (pooled counts) the F1 at each k, as a number or as ``value``, ``low`` and ``high``; other
scores, such as ``auprc``, with ``mean``, ``low`` and ``high``. ``studies/movies.py`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitrail.bench.report.charts import ChartLine, line_chart, line_styles
from vitrail.bench.report.export import write_texts
from vitrail.bench.report.markdown_report import markdown_table
from vitrail.bench.report.paper_comparison import best_two
from vitrail.errors import DataError
from vitrail.scores.statistics import Interval
from vitrail.viz.templating import render

#: Keys of the averages, and their names.
AVERAGES = {"macro_f1_at": "macro: mean over reviews", "micro_f1_at": "micro: pooled counts"}
#: Other scores, and the direction of better values.
OTHER_SCORES = {"auprc": "up", "comprehensiveness": "up", "sufficiency": "down"}
#: Methods that do not use the model.
CONTROLS = ("random", "start first", "end first")


@dataclass(frozen=True)
class RationaleResult:
    """Scores of one method on a set of texts.

    Attributes:
        method: Its name.
        f1: By average, the F1 at each k.
        scores: Other scores.
    """

    method: str
    f1: dict[str, dict[int, Interval]] = field(repr=False)
    scores: dict[str, Interval] = field(repr=False)

    @property
    def control(self) -> bool:
        """Whether it does not use the model."""
        return self.method in CONTROLS or self.method.startswith("inverted")

    @property
    def mean_f1(self) -> float:
        """Mean macro F1 over k."""
        values = [v.value for v in self.f1["macro_f1_at"].values()]
        return sum(values) / len(values)


def read_rationale_results(path: str | Path) -> tuple[dict[str, Any], list[RationaleResult]]:
    """Read the manifest and the results of a file, best mean macro F1 first, then controls.

    Raises:
        DataError: The file does not have this format.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
        results = [
            RationaleResult(
                row["method"],
                {kind: {int(k): _interval(v) for k, v in row[kind].items()} for kind in AVERAGES if kind in row},
                {name: _interval(row[name]) for name in OTHER_SCORES if name in row},
            )
            for row in raw["rows"]
        ]
        assert results
        assert all(one.f1.get("macro_f1_at") for one in results)
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise DataError(
            f"{path} has no token-F1 of methods: pass a file that studies/movies.py wrote with --out"
        ) from error
    results.sort(key=lambda one: (one.control, -one.mean_f1))
    return raw.get("manifest", {}), results


def write_rationale_report(path: str | Path, out: str | Path | None = None) -> Path:
    """Write the HTML, Markdown and CSV report of a file of results, by default into its folder.

    Returns:
        Path of the HTML page.
    """
    manifest, results = read_rationale_results(path)
    folder, name = Path(out or Path(path).parent), f"{Path(path).stem}-report"
    texts = {
        ".md": rationale_markdown(results),
        ".csv": rationale_csv(results),
        ".html": rationale_html(manifest, results),
    }
    return write_texts(folder, name, texts)


def rationale_html(manifest: dict[str, Any], results: list[RationaleResult]) -> str:
    """Render the page: curves, tables with intervals, and versions."""
    kinds = _averages(results)
    arrows = {"up": "↑", "down": "↓"}
    others = [name for name in OTHER_SCORES if name in results[0].scores]
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    return render(
        "report_rationale.html",
        results=results,
        facts=list(_facts(manifest)),
        averages=[(AVERAGES[kind], _chart(kind, results), _table(kind, results)) for kind in kinds],
        other_names=[f"{name} {arrows[OTHER_SCORES[name]]}" for name in others],
        other_rows=[(one, [(one.scores.get(name), 0) for name in others]) for one in results],
        versions=versions,
    )


def rationale_markdown(results: list[RationaleResult]) -> str:
    """Render the numbers in Markdown, a table for each average."""
    texts = ["# Token-F1 of the top words\n"]
    for kind in _averages(results):
        ks = list(results[0].f1[kind])
        rows = [[f"`{one.method}`", *(_format(one.f1[kind][k]) for k in ks)] for one in results]
        texts.append(f"## {AVERAGES[kind]}\n\n" + markdown_table(["method", *(f"k = {k}" for k in ks)], rows) + "\n")
    return "\n".join(texts)


def rationale_csv(results: list[RationaleResult]) -> str:
    """Render the numbers as CSV rows: method, average, k, value, low, high."""
    lines = ["method,average,k,value,low,high"]
    for one in results:
        for kind, at in one.f1.items():
            lines += [f"{one.method},{kind[:5]},{k},{v.value},{v.low},{v.high}" for k, v in at.items()]
    return "\n".join([*lines, ""])


def _averages(results: list[RationaleResult]) -> list[str]:
    """Averages that all methods have."""
    return [kind for kind in AVERAGES if all(kind in one.f1 for one in results)]


def _facts(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Facts below the title: switches that are on, fractions in percent, strings and integers as they are."""
    for name, value in manifest.items():
        if isinstance(value, bool):
            yield from [(name, "yes")] if value else []
        elif isinstance(value, float):
            yield name, f"{100 * value:.1f} %"
        elif isinstance(value, str | int):
            yield name, str(value)


def _chart(kind: str, results: list[RationaleResult]) -> Markup:
    ranked = [one.method for one in results]
    style = line_styles(ranked, ranked, [one.method for one in results if one.control])
    ks = list(results[0].f1[kind])
    lines = []
    for one in sorted(results, key=lambda one: (style[one.method] != "rest", style[one.method])):
        values = [one.f1[kind][k] for k in ks]
        banded = values if style[one.method] != "rest" else []  # bands of all methods would hide the lines
        low, high = [v.low for v in banded], [v.high for v in banded]
        lines.append(ChartLine(one.method, [v.value for v in values], style[one.method], low, high))
    return line_chart(ks, lines, "k, number of top words", "token-F1", f"Token-F1 against k, {AVERAGES[kind]}")


def _table(
    kind: str, results: list[RationaleResult]
) -> tuple[list[str], list[tuple[RationaleResult, list[tuple[Interval, int]]]]]:
    """Column headings, and for each method its F1 and rank at each k."""
    ks = list(results[0].f1[kind])
    ranks = {k: best_two({one.method: one.f1[kind][k].value for one in results if not one.control}, "up") for k in ks}
    rows = [(one, [(one.f1[kind][k], ranks[k].get(one.method, 0)) for k in ks]) for one in results]
    return [f"k = {k}" for k in ks], rows


def _interval(given: Any) -> Interval:
    """Interval of a JSON value; a plain number is its own interval."""
    if isinstance(given, dict):
        value = given["value"] if "value" in given else given["mean"]
        return Interval(float(value), float(given["low"]), float(given["high"]))
    return Interval(float(given), float(given), float(given))


def _format(value: Interval) -> str:
    return f"{value.value:.3f}" + ("" if value.low == value.high else f" [{value.low:.3f}, {value.high:.3f}]")
