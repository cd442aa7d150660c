"""Numbers on a page, the result files of their section, and whether a value of these files rounds to them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
    """A paragraph, a list item or a row of a table, with the headings above it and the names in a row's first cell."""

    headings: tuple[str, ...]
    text: str
    names: frozenset[str]

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
    """Split a page into blocks, without what is left out and without known parts of sentences."""
    headings: list[tuple[int, str]] = []
    lines: list[str] = []

    def finish() -> Iterator[Block]:
        whole = " ".join(line.strip() for line in lines)
        for part in known:
            whole = whole.replace(part, "")
        lines.clear()
        if whole:
            first = whole.split("|")[1] if whole.startswith("|") else ""
            names = re.findall(r"`([^`\n]+)`|(?<!\*)\*([\w ]+)\*(?!\*)", first)
            yield Block(tuple(one for _, one in headings), whole, frozenset(a or b for a, b in names))

    for line in _without(text, LEFT_OUT).splitlines():
        heading = re.match(r"(#+) (.+)", line)
        if heading or not line.strip() or re.match(r"\s*(?:[-*|]|\d+\.) ?", line):
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


def _walk(content: Any, labels: frozenset[str]) -> Iterator[Value]:
    if isinstance(content, dict):
        own = labels | {one for one in content.values() if isinstance(one, str)}
        for key, one in content.items():
            yield from _walk(one, own | {key, *re.split(r"[ ,]+", key)})
        bounds = [content.get("value", content.get("mean")), content.get("low"), content.get("high")]
        yield from _half_width(bounds, own)
    elif isinstance(content, list):
        own = labels | {one for one in content if isinstance(one, str)}
        for one in content:
            yield from _walk(one, own)
        yield from _half_width(content, own)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield Value(float(content), labels)


def _half_width(found: list[Any], labels: frozenset[str]) -> Iterator[Value]:
    """Half of the width of an interval [value, low, high], which pages print after ±."""
    if len(found) == 3 and all(isinstance(one, int | float) for one in found) and found[1] <= found[0] <= found[2]:
        yield Value((found[2] - found[1]) / 2, labels)


def _typed(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


@cache
def read_values(path: Path) -> tuple[Value, ...]:
    """All numbers of a JSON file or a table."""
    if path.suffix == ".json":
        return tuple(_walk(json.loads(path.read_text(encoding="utf-8")), frozenset()))
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{key: _typed(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
    return tuple(Value(one.number, one.labels - set(rows[0])) for row in rows for one in _walk(row, frozenset()))


@cache
def _by_label(path: Path) -> dict[str, list[Value]]:
    found: dict[str, list[Value]] = {}
    for one in read_values(path):
        for label in one.labels:
            found.setdefault(label, []).append(one)
    return found


@cache
def roundings(path: Path, names: frozenset[str]) -> frozenset[str]:
    """Values of a file as a page may have them: without sign, as they are or in percent, up to five decimals.

    Values that belong to one of the names count alone, where there are any. A five at the end is rounded either way.
    """
    own = [one for name in names for one in _by_label(path).get(name, ())]
    if names and not own:
        return roundings(path, frozenset())
    values = own or read_values(path)
    scaled = {abs(one.number) * f for one in values for f in _factors(one, path)}
    return frozenset(f"{number * up:.{d}f}" for number in scaled for up in (1, 1 + 1e-9) for d in range(6))


def _factors(value: Value, path: Path) -> Iterator[float]:
    """Pages print values as they are or in percent, seconds also in milliseconds, and MiB in GiB."""
    yield from (1, 100)
    if path.parent.parent.name == "benchmarks" or any("second" in label for label in value.labels):
        yield 1000
    if any("mib" in label for label in value.labels):
        yield 1 / 1024


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
