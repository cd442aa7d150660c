"""The report in Markdown: the tables of the page, for a repository or a paper's appendix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from vitrail.report.legend import MEANING, marks
from vitrail.report.paper_comparison import Cell, ComparisonPart, PaperComparison
from vitrail.report.paper_page import STAND_IN, labels, number
from vitrail.report.ranking import RankedMethod
from vitrail.report.section import Column, ReportSection
from vitrail.report.summary import ReportSummary


def markdown(sheet: ReportSummary) -> str:
    """The whole report."""
    return "\n".join([*_lines(sheet), ""])


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first column is words, the others numbers.

    Example:
        >>> print(grid(["a", "b"], [["x", "1"]]))
        | a | b |
        |---|---:|
        | x | 1 |
    """
    lines = [list(head), *map(list, rows)]
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([text[0], "|---" + "|---:" * (len(head) - 1) + "|", *text[1:]])


def _lines(sheet: ReportSummary) -> Iterator[str]:
    yield f"# {sheet.name}\n"
    if sheet.missing:
        yield f"**{sheet.unfinished}**\n"
    if sheet.beside:
        yield from _beside(sheet.beside)
    yield "## Scores\n"
    yield "\n".join(f"- {text}" for text in MEANING).replace("underlined", "in italics") + "\n"
    for (model, dataset), own in groupby(sheet.blocks, key=lambda b: (b.model, b.dataset)):
        yield f"### {model} on {dataset}\n"
        for block in own:
            yield f"#### {block.title}\n\n{block.about} {block.images:,} pictures.\n"
            yield _block(block) + "\n"
            yield "\n".join(f"- **{c.measure.short}**: {c.measure.label}" for c in block.columns) + "\n"
    yield from _rest(sheet)


def _beside(found: PaperComparison) -> Iterator[str]:
    source = found.table
    yield f"## Beside {source.paper}, {source.title}\n\n{source.about}.\n"
    if found.differs:
        yield "What differs from the paper's set-up:\n\n" + "\n".join(f"- {text}" for text in found.differs) + "\n"
    if source.notes:
        yield "What the paper leaves open, and where sources disagree:\n\n" + "\n".join(f"- {n}" for n in source.notes)
        yield ""
    for part in found.parts:
        yield f"### {part.model} on {part.dataset}\n"
        if not all(part.ours):
            yield "Not part of this plan.\n"
            continue
        yield f"Ours: `{part.ours[0]}` on `{part.ours[1]}`." + ("" if part.like else f" {STAND_IN}") + "\n"
        yield _part(found, part) + "\n"
        yield "\n".join(f"- **{source.short(name)}**: {label}" for name, label in labels(part)) + "\n"


def _part(found: PaperComparison, part: ComparisonPart) -> str:
    names = [name for name in part.metrics if not found.table.metrics[name].reason]
    arrows = {"up": "↑", "down": "↓"}
    head = ["method"]
    for name in names:
        title = f"{found.table.short(name)} {arrows.get(part.metrics[name], '')}"
        head += [f"{title} paper", "ours", "difference"]
    rows = []
    for row in part.rows:
        title = f"*{row.name}* (control)" if row.control else f"{row.name} (`{row.method}`)" if row.method else row.name
        rows.append([title, *(text for name in names for text in _three(row.cells.get(name)))])
    return grid(head, rows)


def _three(cell: Cell | None) -> tuple[str, str, str]:
    if cell is None:
        return "", "", ""
    said = "–" if cell.number is None or cell.number.value is None else number(cell, cell.number.value)
    said = _strong(said, cell.paper_place)
    if cell.ours is None:
        return said, cell.reason, ""
    low, high = number(cell, cell.ours.low), number(cell, cell.ours.high)
    ours = f"{_strong(number(cell, cell.ours.value), cell.place)} [{low}, {high}]"
    if cell.difference is None:
        return said, ours, ""
    gap = number(cell, cell.difference)
    return said, ours, gap if gap.startswith("-") else f"+{gap}"


def _block(block: ReportSection) -> str:
    head = ["method", *(f"{c.measure.short} {c.measure.arrow}".strip() for c in block.columns)]
    rows = []
    for method in block.methods:
        found = [(column, column.standings.get(method)) for column in block.columns]
        control = any(one.control for _, one in found if one is not None)
        title = f"*{method}* (control)" if control else f"`{method}`"
        rows.append([title, *(_value(column, one) for column, one in found)])
    return grid(head, rows)


def _value(column: Column, one: RankedMethod | None) -> str:
    if one is None:
        return "–"
    own = column.measure
    between = f"[{own.text(one.value.low)}, {own.text(one.value.high)}]"
    return f"{_strong(own.text(one.value.value), one.place)}{marks(one, own.direction)} {between}"


def _strong(text: str, place: int) -> str:
    return {1: f"**{text}**", 2: f"*{text}*"}.get(place, text)


def _rest(sheet: ReportSummary) -> Iterator[str]:
    yield "## Costs\n"
    yield grid(
        ["method", "model", "seconds a picture", "extra forwards", "memory", "maps that say nothing"],
        [
            [f"`{c.method}`", c.model, f"{c.seconds:.3f}", f"{c.forwards:.1f}", c.held, f"{c.flat:,}"]
            for c in sheet.costs
        ],
    )
    yield "\n## Not applicable, failed\n"
    if sheet.refused:
        yield grid(["method", "model", "reason"], [[f"`{r.method}`", r.model, r.reason] for r in sheet.refused]) + "\n"
    if sheet.failed:
        rows = [[f"`{f.method}`", f.model, f.dataset, f.protocol, f"{f.pictures:,}", f.reason] for f in sheet.failed]
        yield grid(["method", "model", "data", "protocol", "pictures", "reason"], rows) + "\n"
    if not sheet.refused and not sheet.failed:
        yield "Every method applies, and nothing failed.\n"
    about = sheet.manifest
    yield "## How it was made\n"
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    yield f"- run `{about['key']}`\n- {versions}\n- {about['accelerator'] or about['device']}, {about['machine']}"
    yield "\n".join(f"- weights of {name}: SHA-256 `{digest}`" for name, digest in about["weights"].items())
    yield "\n".join(f"- pictures of {name}: {count:,}" for name, count in about["images"].items())
