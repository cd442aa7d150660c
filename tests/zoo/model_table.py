"""The table of models, kinds of targets and methods in docs/models.md, from the entries of the zoo.

``python -m tests.zoo.model_table`` writes it.
"""

from __future__ import annotations

from pathlib import Path

from tests.zoo.checks import ENTRIES
from tests.zoo.entry import Entry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
START, END = "<!-- zoo -->", "<!-- /zoo -->"


def right_methods(entry: Entry) -> tuple[str, ...]:
    """Methods that pass a test with a known answer on a model."""
    tests = [test for test in entry.tests if test not in entry.pending]
    return tuple(m for m in entry.methods if any(f"{test}:{m}" not in entry.pending for test in tests))


def refused_methods(entry: Entry) -> tuple[str, ...]:
    """Methods that are refused on a model with the reason that is tested."""
    return () if "refused" in entry.pending else tuple(entry.refused)


def table(entries: list[Entry] | None = None) -> str:
    """Rows of families with the same kind of target and the same methods, other targets than classes first."""
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for entry in ENTRIES if entries is None else entries:
        key = (entry.target, right_methods(entry), refused_methods(entry))
        if key[1] or key[2]:
            groups.setdefault(key, []).append(entry.name)
    lines = ["| target | models | right by a known answer | refused with the reason |", "|---|---|---|---|"]
    for (target, right, refused), names in sorted(groups.items(), key=lambda item: (item[0][0] == "class", item[0])):
        cells = (target, "; ".join(names), *(", ".join(f"`{m}`" for m in methods) for methods in (right, refused)))
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def renewed(page: str) -> str:
    """The page with the present table."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
