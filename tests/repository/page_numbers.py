"""Numbers on a page, the result files of their section, and whether a value of these files rounds to them."""

from __future__ import annotations

import csv
import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.repository.page_subjects import Subjects

ROOT = Path(__file__).resolve().parents[2]

#: Left out of a page: code, generated tables (which have tests of their own) and formulas.
LEFT_OUT = (r"```.*?```", r"<!-- ([^/\n][^\n]*?) -->.*?<!-- /\1 -->", r"<!--.*?-->", r"\$\$.*?\$\$", r"\$[^$\n]+\$")
#: Left out of a block after the names in code are read: code, targets of links, tags, and the level of intervals.
MARKUP = (r"`[^`\n]*`", r"\]\([^)]*\)", r"<[^>]+>", r"(?<!\d)95 % (?:bootstrap )?intervals?|paired, 95 %|its 95 %")
#: Units and nouns behind a whole number that make it a claim about a result: of measured values, and of counts.
UNITS = ("%", "×", "ms", "s", "min", "h", "MB", "GB", "GiB", "points", "images per second", "images/s")
COUNTED = (
    "images", "pets", "photographs", "grids", "scenes", "pairs", "prompts", "reviews", "questions", "families",
    "methods", "rows", "forms", "columns", "masks", "maps", "checks", "classifiers", "tokens", "boxes", "forwards",
)  # fmt: skip

DECIMAL = re.compile(r"(?<![\w.,/])(\d{1,3}(?:,\d{3})*\.\d+)(?![\d.]*\w)")
_INTEGER = r"(?<![\w.,/–^-])(\d{1,3}(?:,\d{3})+|\d+)"
MEASURED = re.compile(rf"{_INTEGER}(?= ?(?:{'|'.join(UNITS)})(?!\w))")
COUNT = re.compile(
    rf"{_INTEGER}(?= (?:ImageNet |other |such )?(?:{'|'.join(COUNTED)})\b(?! per second|/s)| of (?:the )?\d)"
)
OF = re.compile(r"(?<![\w.,])\d+ of (?:the )?(\d{1,3}(?:,\d{3})+|\d+)(?![\w.,]*\d)")
RESULT_FILE = re.compile(r"(?:\.\./)*(?:[a-z]+/)*results/[\w./*-]*\w")


@dataclass(frozen=True)
class Block:
    """A paragraph, a list item or a cell of a table, with the headings above it.

    Attributes:
        headings: Anchors of the headings above, the outermost first.
        text: The text.
        names: Names in the first cell of the row, for a cell.
        column: The heading of the column, for a cell.
    """

    headings: tuple[str, ...]
    text: str
    names: frozenset[str] = frozenset()
    column: str = ""

    @property
    def subjects(self) -> Subjects:
        """What the text names; of a cell, what its row and its column name."""
        text = f"{self.column} {self.text}"
        return replace(Subjects.of(text, _without(text, MARKUP)), row=self.names)

    @property
    def shown(self) -> str:
        """The text, of a cell after its row and its column."""
        return f"{self.column}: {self.text}" if self.column else self.text

    @property
    def plain(self) -> str:
        """The text without code, targets of links and tags."""
        return _without(self.text, MARKUP)

    def decimals(self) -> set[str]:
        """Numbers with decimals."""
        return self._find(DECIMAL)

    def measured(self) -> set[str]:
        """Whole numbers in front of a unit."""
        return self._find(MEASURED)

    def counts(self) -> set[str]:
        """Whole numbers in front of what is counted, and both numbers of "N of M"."""
        return self._find(COUNT) | self._find(OF)

    def _find(self, regex: re.Pattern[str]) -> set[str]:
        return {number.replace(",", "") for number in regex.findall(self.plain)}


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def read_blocks(text: str, known: Sequence[str] = ()) -> Iterator[Block]:
    """Split a page into blocks, without what is left out and without known parts of sentences; a table by its cells."""
    headings: list[tuple[int, str]] = []
    lines: list[str] = []
    columns: list[str] = []

    def finish() -> Iterator[Block]:
        whole = " ".join(line.strip() for line in lines)
        for part in known:
            whole = whole.replace(part, "")
        lines.clear()
        above = tuple(one for _, one in headings)
        if not whole.startswith("|"):
            columns.clear()
        if whole.startswith("|"):
            cells = [cell.strip() for cell in whole.strip("|").split("|")]
            columns.extend(cells[len(columns) :])
            names = re.findall(r"`([^`\n]+)`|(?<!\*)\*([\w ]+)\*(?!\*)", cells[0])
            for cell, column in zip(cells, columns, strict=False):
                yield Block(above, cell, frozenset(a or b for a, b in names), f"{cells[0]} {column}")
        elif whole:
            yield Block(above, whole)

    for line in _without(text, LEFT_OUT).splitlines():
        heading = re.match(r"(#+) (.+)", line)
        if heading or not line.strip() or re.match(r"\s*(?:[-*] |\||\d+\. )", line):
            yield from finish()
        if heading:
            level = len(heading[1])
            headings = [*((n, one) for n, one in headings if n < level), (level, anchor(heading[2]))]
        elif line.strip():
            lines.append(line)
    yield from finish()


def _without(text: str, patterns: tuple[str, ...]) -> str:
    for pattern in patterns:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return text


def named_files(text: str, folder: Path) -> set[Path]:
    """Files of results that a text names or links, from the root or from the folder of its page."""
    found: set[Path] = set()
    for name in RESULT_FILE.findall(text):
        for base in (ROOT, folder):
            path = (base / name).resolve()
            if path.is_dir() and path.name != "results":
                found |= set(path.glob("*.json")) | set(path.glob("*.csv"))
            elif path.parent.is_dir() and path.suffix in {".json", ".csv"}:
                found |= set(path.parent.glob(path.name))
    return found


@dataclass(frozen=True)
class Value:
    """A number of a file with the texts that stand beside it: names of rows, keys and columns."""

    number: float
    labels: frozenset[str]


def _add_values(content: Any, labels: frozenset[str], values: list[Value]) -> None:
    if isinstance(content, dict):
        own = labels | {one for one in content.values() if isinstance(one, str)}
        for key, one in content.items():
            if not isinstance(one, str):
                _add_values(one, own | _key_labels(key), values)
        bounds = [content.get("value", content.get("mean")), content.get("low"), content.get("high")]
        _add_half_width(bounds, own, values)
    elif isinstance(content, list):
        own = labels | {one for one in content if isinstance(one, str)}
        for one in content:
            _add_values(one, own, values)
        _add_half_width(content, own, values)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        values.append(Value(float(content), labels))


@cache
def _key_labels(key: str) -> frozenset[str]:
    return frozenset({key, *re.split(r"[ ,]+", key)})


def _add_half_width(found: list[Any], labels: frozenset[str], values: list[Value]) -> None:
    """Half of the width of an interval [value, low, high], which pages print after ±."""
    if len(found) == 3 and all(isinstance(one, int | float) for one in found) and found[1] <= found[0] <= found[2]:
        values.append(Value((found[2] - found[1]) / 2, labels))


def _typed(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


@cache
def read_values(path: Path) -> tuple[Value, ...]:
    """All numbers of a JSON file or a table."""
    values: list[Value] = []
    if path.suffix == ".json":
        _add_values(json.loads(path.read_text(encoding="utf-8")), frozenset(), values)
        return tuple(values)
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{key: _typed(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
    for row in rows:
        _add_values(row, frozenset(), values)
    return tuple(Value(one.number, one.labels - set(rows[0])) for one in values)


@cache
def _printed_values(path: Path, subjects: Subjects) -> list[float]:
    """Values of a file as a page may have them, in order: without sign, as they are or in another unit."""
    benchmark = path.parent.parent.name == "benchmarks"
    combinations = _label_sets(path)
    known = subjects.among(frozenset().union(*combinations))
    included = {labels for labels in combinations if known.include(labels)}
    values = [one for one in read_values(path) if one.labels in included and not math.isnan(one.number)]
    return sorted({abs(one.number) * f for one in values for f in _factors(one.labels, benchmark)})


@cache
def _label_sets(path: Path) -> frozenset[frozenset[str]]:
    return frozenset(one.labels for one in read_values(path))


@cache
def _factors(labels: frozenset[str], benchmark: bool) -> tuple[float, ...]:
    """Pages print shares as they are or in percent, seconds also in milliseconds, and MiB in GiB."""
    if "percent" in labels or any(label.startswith("over_") for label in labels):
        return (1,)
    if any("mib" in label for label in labels):
        return (1, 1 / 1024)
    seconds = any("second" in label for label in labels)
    return (1, 1000) if seconds else (1, 100, 1000) if benchmark else (1, 100)


def is_rounded(number: str, path: Path, subjects: Subjects) -> bool:
    """Whether a value of a file is printed as a number, with up to five decimals.

    A five at the end is rounded either way. See `_printed_values` for the values that count.
    """
    decimals = len(number.partition(".")[2])
    if decimals > 5:
        return False
    near = 0.5001 * 10.0**-decimals + 2e-9 * float(number)
    values = _printed_values(path, subjects)
    start, stop = bisect_left(values, float(number) - near), bisect_right(values, float(number) + near)
    return any(f"{value * up:.{decimals}f}" == number for value in values[start:stop] for up in (1, 1 + 1e-9))


@cache
def counts(path: Path) -> frozenset[str]:
    """Whole numbers of a file, and the lengths of its lists, objects and columns of distinct entries."""
    found = {f"{one.number:.0f}" for one in read_values(path) if one.number == int(one.number)}
    if path.suffix == ".json":
        return frozenset(found | {str(length) for length in _lengths(json.loads(path.read_text(encoding="utf-8")))})
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return frozenset(found | {str(len(set(column[1:]))) for column in zip(*rows, strict=True)} | {str(len(rows) - 1)})


def _lengths(content: Any) -> Iterator[int]:
    if isinstance(content, dict | list):
        yield len(content)
        for one in content.values() if isinstance(content, dict) else content:
            yield from _lengths(one)
