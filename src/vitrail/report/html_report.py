"""The report as one page that opens from disk: tables, curves, pictures, costs, and how it was made."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby

from vitrail.report.chart import ChartLine, Dot, dots, legend, lines, styles
from vitrail.report.curves import Curves, quantity
from vitrail.report.example_images import ExampleImage
from vitrail.report.legend import MEANING, WEAK, marks
from vitrail.report.metric import NONE
from vitrail.report.paper_page import paper_section
from vitrail.report.ranking import RankedMethod
from vitrail.report.section import Column, ReportSection
from vitrail.report.summary import ReportSummary
from vitrail.viz.html import code, heads, items, marked, name, page, picture, row, table

#: What the parts of the page are called in its list of links.
LINKS = {
    "paper": "Beside the paper", "glance": "At a glance", "scores": "Scores", "curves": "Curves",
    "pictures": "Pictures", "costs": "Costs", "absent": "Not applicable, failed", "made": "How it was made",
}  # fmt: skip


def html(sheet: ReportSummary) -> str:
    """The whole page."""
    sections = {
        "paper": paper_section(sheet.beside) if sheet.beside else "",
        "glance": _glance(sheet),
        "scores": _scores(sheet.blocks),
        "curves": _curves(sheet),
        "pictures": _pictures(sheet.shown),
        "costs": _costs(sheet),
        "absent": _absent(sheet),
        "made": _made(sheet),
    }
    links = "".join(f'<a href="#{key}">{LINKS[key]}</a>' for key, body in sections.items() if body)
    warning = f'<p class="warn">{escape(sheet.unfinished)}</p>' if sheet.missing else ""
    top = f'<p class="over">Vitrail benchmark report</p><h1>{escape(sheet.name)}</h1>{_facts(sheet)}'
    body = f"<header>{top}{warning}<nav>{links}</nav></header>{''.join(sections.values())}"
    return page(f"{sheet.name}: report", body)


def _facts(sheet: ReportSummary) -> str:
    about = sheet.manifest
    controls = {s.method for b in sheet.blocks for c in b.columns for s in c.standings.values() if s.control}
    counts = {
        "models": len(about["plan"]["models"]), "data sets": len(about["images"]),
        "pictures": sum(about["images"].values()), "methods": len(set(about["methods"]) - controls),
        "controls": len(controls), "parts": about["parts"] - sheet.missing,
    }  # fmt: skip
    facts = [f"<li><b>{count:,}</b>{escape(_one(what, count))}</li>" for what, count in counts.items()]
    return f'<ul class="facts">{"".join(facts)}<li class="dim">run {code(about["key"])}</li></ul>'


def _one(what: str, count: int) -> str:
    return what.removesuffix("s") if count == 1 else what


# -- scores ------------------------------------------------------------------------------------------------------------


def _glance(sheet: ReportSummary) -> str:
    """The first score of every block, as dots with intervals."""
    figures: dict[tuple[str, str, str], str] = {}
    for block in sheet.blocks:
        column = next((c for c in block.columns if c.measure.direction != "none"), None)
        if column is not None:  # where two classes are explained, the first will do
            figures.setdefault((block.model, block.dataset, block.protocol), _dots(block, column))
    words = (
        "The first score of each protocol, with 95 % intervals. The dashed line is the strongest control: what does "
        "not clear it has shown nothing."
    )
    return f'<h2 id="glance">At a glance</h2><p>{words}</p><div class="charts">{"".join(figures.values())}</div>'


def _dots(block: ReportSection, column: Column) -> str:
    own, factor = column.measure, column.measure.factor
    drawn = []
    for s in column.standings.values():
        style = "control" if s.control else "lead" if s.place == 1 else "plain"
        drawn.append(Dot(s.method, s.value.value * factor, s.value.low * factor, s.value.high * factor, style))
    strongest = column.standings[column.strongest].value.value * factor if column.strongest else None
    title = f"{block.model}, {block.dataset}: {own.short} {own.arrow}"
    words = f"<b>{escape(title)}</b><br/><small>{escape(own.label)}</small>"
    return f"<figure><figcaption>{words}</figcaption>{dots(drawn, title, own.digits, strongest)}</figure>"


def _scores(blocks: Iterable[ReportSection]) -> str:
    body = ['<h2 id="scores">Scores</h2>', items(MEANING)]
    for (model, dataset), own in groupby(blocks, key=lambda block: (block.model, block.dataset)):
        body.append(f"<h3>{code(model)} on {code(dataset)}</h3>")
        for block in own:
            about = f"{escape(block.about)} {block.images:,} pictures."
            body.append(f'<h4>{escape(block.title)}</h4><p class="dim">{about}</p>{_block(block)}')
    return "".join(body)


def _block(block: ReportSection) -> str:
    heading = "".join(_head(column) for column in block.columns)
    rows, apart = [], False
    for method in block.methods:
        found = [(column, column.standings.get(method)) for column in block.columns]
        control = any(one.control for _, one in found if one is not None)
        kind = f' class="control{"" if apart else " first"}"' if control else ""
        apart = apart or control
        cells = "".join(_cell(block, column, one) for column, one in found)
        rows.append(f"<tr{kind}><td>{name(method)}</td>{cells}</tr>")
    return table(f"<tr><th>method</th>{heading}</tr>", rows)


def _head(column: Column) -> str:
    own = column.measure
    fill = f"fill {own.fill}, " if own.fill else ""
    below = f"<small>{escape(fill + own.rule)}</small>" if own.rule != NONE else ""
    title = escape(f"{own.short} {own.arrow}").replace(" %", "&#160;%").replace(f" {own.arrow}", f"&#160;{own.arrow}")
    return f'<th title="{escape(own.label)}">{title}{below}</th>'


def _cell(block: ReportSection, column: Column, one: RankedMethod | None) -> str:
    own = column.measure
    if one is None:
        return '<td class="dim">–</td>'
    place = {1: "best", 2: "second"}.get(one.place, "")
    found = "".join(f'<span class="mk{" low" if m == WEAK else ""}">{m}</span>' for m in marks(one, own.direction))
    few = f"<br/>n = {one.images:,}" if one.images < block.images else ""
    cut = f"<br/>t = {block.thresholds[one.method]:g}" if own.score.startswith("best_") and block.thresholds else ""
    between = f"[{own.text(one.value.low)}, {own.text(one.value.high)}]{few}{cut}"
    title = escape(f"{own.label}; {_tests(one, column)}")
    value = f'<span class="num">{own.text(one.value.value)}</span>'
    return f'<td class="{place}" title="{title}">{value}{found}<small>{between}</small></td>'


def _tests(one: RankedMethod, column: Column) -> str:
    """Paired differences of a number, for those who ask."""
    own, said = column.measure, []
    if one.behind is not None:
        said.append(f"to the best {own.text(one.behind.value)}, p = {one.p:.3g}")
    if one.ahead is not None:
        said.append(f"to {column.strongest} {own.text(one.ahead.value)}, p = {one.p_control:.3g}")
    return "; ".join(said) or f"{one.images:,} pictures"


# -- curves and pictures -----------------------------------------------------------------------------------------------


def _curves(sheet: ReportSummary) -> str:
    if not sheet.curves:
        return ""
    words = "Means over pictures. The six best by area have a colour, controls are dashed."
    body = [f'<h2 id="curves">Curves</h2><p>{words}</p>']
    for (model, dataset), own in groupby(sheet.curves, key=lambda c: (c.model, c.dataset)):
        figures = "".join(_curve(sheet, one) for one in own)
        body.append(f'<h3>{code(model)} on {code(dataset)}</h3><div class="charts">{figures}</div>')
    return "".join(body)


def _curve(sheet: ReportSummary, one: Curves) -> str:
    block = next(b for b in sheet.blocks if (b.model, b.dataset, b.protocol, b.target) == (
        one.model, one.dataset, one.measure.protocol, one.measure.target))  # fmt: skip
    column = block.column(one.measure.score)
    standing = column.standings if column else {}
    ranked, controls = list(standing), [method for method, s in standing.items() if s.control]
    style = styles(list(one.y), ranked, controls)
    # Grey lines first, then dashed ones, then colours, so that colours lie on top.
    order = sorted(one.y, key=lambda method: (style[method] != "rest", style[method] != "control", style[method]))
    drawn = [ChartLine(method, one.y[method], style[method]) for method in order]
    up = quantity(one.measure.protocol)
    title = f"{one.measure.protocol} {one.measure.name} {one.measure.arrow}, {one.measure.target} class: {up}"
    words = f"<b>{escape(title)}</b><br/><small>{escape(one.measure.label)}</small>"
    chart = lines(one.x, drawn, one.across, up, title)
    return f"<figure><figcaption>{words}</figcaption>{chart}{legend(style)}</figure>"


def _pictures(shown: Iterable[ExampleImage]) -> str:
    body = []
    for (model, dataset), own in groupby(shown, key=lambda s: (s.case.model, s.case.dataset)):
        body.append(f"<h3>{code(model)} on {code(dataset)}</h3>")
        body += [_case(one) for one in own]
    words = (
        "Per model and data set: where the methods do best on average, where worst, and where they disagree most. Maps "
        "run from the best to the worst by the picture's own score; the outline is the object of the explained class."
    )
    return f'<h2 id="pictures">Pictures</h2><p>{words}</p>{"".join(body)}' if body else ""


def _case(one: ExampleImage) -> str:
    case, own = one.case, one.case.measure
    left = f"; {case.left_out} between are left out" if case.left_out else ""
    asked = f", explained: {escape(one.says)}" if one.says else ""
    title = f"<h4>{case.kind.capitalize()}: {escape(case.image)}{asked}</h4>"
    by = f'<p class="dim"><small>By {escape(own.label)}{left}.</small></p>'
    if one.reason:
        return f'<section class="case">{title}{by}<p class="warn">No picture: {escape(one.reason)}</p></section>'
    figures = [_figure(picture(one.picture, f"{case.image} as the model sees it"), "<b>picture</b>")]
    for method, score in case.scores.items():
        if method in one.maps:
            image = picture(one.maps[method], f"map by {method} over {case.image}")
            figures.append(_figure(image, f"<b>{name(method)}</b> {own.text(score)}"))
    return f'<section class="case">{title}{by}<div class="pictures">{"".join(figures)}</div></section>'


def _figure(image: str, words: str) -> str:
    return f"<figure>{image}<figcaption>{words}</figcaption></figure>"


# -- costs and provenance ----------------------------------------------------------------------------------------------


def _costs(sheet: ReportSummary) -> str:
    tested = any(one.test_forwards is not None for one in sheet.costs)
    names = ["method", "model", "maps", "seconds a picture", "extra forwards", "memory", "maps that say nothing"]
    names[6:6] = ["testing: seconds", "testing: forwards"] if tested else []
    rows = []
    order = list(sheet.manifest["weights"])
    for one in sorted(sheet.costs, key=lambda c: (order.index(c.model), c.seconds)):
        test = [f"{one.test_seconds:.3f}", f"{one.test_forwards:.1f}"] if one.test_forwards is not None else ["–", "–"]
        cells = [name(one.method), code(one.model), f"{one.maps:,}", f"{one.seconds:.3f}", f"{one.forwards:.1f}"]
        cells.append(one.held)
        rows.append(row([*cells, *(test if tested else []), f"{one.flat:,}"], text=(1,)))
    about = sheet.manifest
    words = (
        "Means over pictures. Forwards are pictures shown to the model besides the one common pass of all methods. "
        "Methods of one pass share it, and its time is shared out. Testing is one go for all presets, whose time and "
        "forwards all methods share. Memory is the most that a batch held beyond the model, for methods of one pass "
        "that of the pass; on a CPU it is how far the process grew, a lower bound. "
        f"Device: {about['accelerator'] or about['device']} ({about['machine']})."
    )
    return f'<h2 id="costs">Costs</h2><p>{escape(words)}</p>{table(heads(names, (1,)), rows)}'


def _absent(sheet: ReportSummary) -> str:
    body = ['<h2 id="absent">Not applicable, failed</h2>']
    if sheet.refused:
        rows = [row([name(r.method), code(r.model), escape(r.reason)], text=(1, 2)) for r in sheet.refused]
        body += ["<h3>Methods that do not apply</h3>", table(heads(["method", "model", "reason"], (1, 2)), rows)]
    else:
        body.append("<p>Every method applies to every model.</p>")
    if not sheet.failed:
        return "".join([*body, "<p>No map and no score failed.</p>"])
    total = sum(f.pictures for f in sheet.failed)
    rows = []
    for f in sheet.failed:
        where = code(f"{f.model} / {f.dataset}")
        cells = [name(f.method), where, escape(f.protocol), f"{f.pictures:,}", escape(f.reason)]
        rows.append(row(cells, text=(1, 2, 4)))
    head = heads(["method", "model / data", "protocol", "pictures", "reason"], (1, 2, 4))
    return "".join([*body, f"<h3>Without a score: {total:,}</h3>", table(head, rows)])


def _made(sheet: ReportSummary) -> str:
    about = sheet.manifest
    facts = {
        "run": about["key"],
        "versions": ", ".join(f"{library} {version}" for library, version in about["versions"].items()),
        "device": f"{about['device']}, {about['accelerator'] or 'no accelerator'}, {about['machine']}",
        **{f"weights of {model}": f"SHA-256 {digest}" for model, digest in about["weights"].items()},
        **{f"pictures of {data}": f"{count:,}" for data, count in about["images"].items()},
        "methods": ", ".join(about["methods"]),
        **{key: str(value) for key, value in about["plan"].items() if key in ("precision", "view", "seed", "batch")},
    }
    rows = [row([escape(key), f"<code>{escape(value)}</code>"]) for key, value in facts.items()]
    words = "The plan is `plan.toml` in the run's folder; every score of every picture is in `results.parquet` there."
    return f'<h2 id="made">How it was made</h2>{table("", rows, "facts2")}<p>{marked(words)}</p>'
