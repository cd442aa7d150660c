"""The part of the page that sets a run beside a paper's table."""

from __future__ import annotations

from html import escape

from vitrail.papers import PaperTable
from vitrail.report.chart import Dot, dots
from vitrail.report.paper_comparison import Cell, ComparisonPart, ComparisonRow, PaperComparison
from vitrail.viz.html import code, items, table

#: Metrics side by side in one table.
ACROSS = 4
#: What is said above a table whose model or data are not the paper's.
STAND_IN = (
    "Ours is another model or other pictures: compare the order of the methods, not the numbers. Differences are "
    "printed faintly for that reason."
)


def paper_section(found: PaperComparison) -> str:
    """The heading, what differs, and the tables."""
    source = found.table
    body = [f'<h2 id="paper">Beside {escape(source.paper)}, {escape(source.title)}</h2>',
            f"<p>{escape(source.about)}.</p>"]  # fmt: skip
    if found.differs:
        body += ["<h4>What differs from the paper's set-up</h4>", items(found.differs)]
    if source.notes:
        body += ["<h4>What the paper leaves open, and where sources disagree</h4>", items(source.notes)]
    for part in found.parts:
        body.append(_part(found, part))
    return "".join(body)


def labels(part: ComparisonPart) -> list[tuple[str, str]]:
    """For each metric what its numbers of ours are; twice where rows are scored in two ways."""
    cells = [(name, cell.measure.label) for row in part.rows for name, cell in row.cells.items() if cell.measure]
    order = list(part.metrics)
    return sorted(dict.fromkeys(cells), key=lambda pair: order.index(pair[0]))


def number(cell: Cell, value: float) -> str:
    """A value in the paper's units, with as many digits as our score is printed with."""
    digits = cell.measure.digits if cell.measure else 2 if abs(value) >= 10 else 3
    return f"{value:.{digits}f}"


def _part(found: PaperComparison, part: ComparisonPart) -> str:
    source = found.table
    scored = [name for name in part.metrics if not source.metrics[name].reason]
    title = f"{escape(part.model)} on {escape(part.dataset)}"
    if not all(part.ours):
        return f'<h3>{title}</h3><p class="dim">Not part of this plan.</p>'
    kind = "like for like in model and data" if part.like else "a stand-in"
    body = [f"<h3>{title}</h3>", f'<p class="dim">Ours: {code(part.ours[0])} on {code(part.ours[1])}, {kind}.</p>']
    if not part.like:
        body.append(f'<p class="warn">{STAND_IN}</p>')
    body += [_table(source, part, scored[start : start + ACROSS]) for start in range(0, len(scored), ACROSS)]
    lines = [f"<b>{escape(source.short(name))}</b> {escape(label)}" for name, label in labels(part)]
    body.append(f"<p><small>{'<br/>'.join(lines)}</small></p>")
    unscored = {source.metrics[name].reason: name for name in part.metrics if source.metrics[name].reason}
    body += [f'<p class="dim">{escape(name)}: {escape(why)}.</p>' for why, name in unscored.items()]
    if part.order:
        said = [f"{escape(source.short(n))} {rho:+.2f}" for n, (rho, _) in part.order.items() if rho == rho]
        many = max(count for _, count in part.order.values())
        body.append(f"<p>Order of methods, the paper's against ours (Spearman's ρ over up to {many} methods): "
                    f"{'; '.join(said) or 'undefined'}.</p>")  # fmt: skip
    body.append(_chart(source.short(scored[0]), part, scored[0]) if scored else "")
    return "".join(body)


def _table(source: PaperTable, part: ComparisonPart, names: list[str]) -> str:
    arrows = {"up": " ↑", "down": " ↓"}
    short = {name: source.short(name) for name in names}
    top = "".join(f'<th class="group start" colspan="3">{escape(short[n])}{arrows.get(part.metrics[n], "")}</th>'
                  for n in names)  # fmt: skip
    below = '<th class="start">paper</th><th>ours</th><th>difference</th>' * len(names)
    head = f'<tr><th rowspan="2">method</th>{top}</tr><tr>{below}</tr>'
    rows, apart = [], False
    for one in part.rows:
        kind = f"control{'' if apart else ' first'}" if one.control else ""
        apart = apart or one.control
        rows.append(_row(one, names, kind, part.like))
    return table(head, rows)


def _row(one: ComparisonRow, names: list[str], kind: str, like: bool) -> str:
    ours = f"<small>{code(one.method)}</small>" if one.method and not one.control else ""
    cells = [f"<td>{escape(one.name)}{ours}</td>"]
    cells += [_cells(one.cells.get(name), like) for name in names]
    return f"<tr{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{''.join(cells)}</tr>"


def _cells(cell: Cell | None, like: bool) -> str:
    if cell is None:
        return '<td class="start"></td><td></td><td></td>'
    places = {1: " best", 2: " second"}
    said = "–" if cell.number is None or cell.number.value is None else number(cell, cell.number.value)
    first = f'<td class="start{places.get(cell.paper_place, "")}"><span class="num">{said}</span></td>'
    if cell.ours is None:
        return f'{first}<td colspan="2" class="text dim"><small>{escape(cell.reason)}</small></td>'
    assert cell.measure is not None
    between = f"[{number(cell, cell.ours.low)}, {number(cell, cell.ours.high)}]"
    mine = (f'<td class="{places.get(cell.place, "").strip()}" title="{escape(cell.measure.label)}">'
            f'<span class="num">{number(cell, cell.ours.value)}</span><small>{between}</small></td>')  # fmt: skip
    if cell.difference is None:
        return f"{first}{mine}<td></td>"
    note = '<small class="in">in interval</small>' if cell.within and like else ""
    gap = number(cell, cell.difference)
    sign = "" if gap.startswith("-") else "+"
    return f'{first}{mine}<td class="{"" if like else "faint"}">{sign}{gap}{note}</td>'


def _chart(short: str, part: ComparisonPart, name: str) -> str:
    drawn = []
    for one in part.rows:
        cell = one.cells.get(name)
        if cell is not None and cell.ours is not None:
            said = cell.number.value if cell.number is not None else None
            style = "control" if one.control else "lead" if cell.place == 1 else "plain"
            drawn.append(Dot(one.name, *cell.ours, style, said))
    if not drawn:
        return ""
    digits = next(c.measure.digits for r in part.rows if (c := r.cells.get(name)) and c.measure)
    picture = dots(drawn, f"{short}: ours with intervals, the paper's as diamonds", digits)
    words = f"{escape(short)}: ours with its interval, the paper's number as a diamond"
    return f'<div class="charts"><figure><figcaption>{words}</figcaption>{picture}</figure></div>'
