"""The help pages: terms, the check, and a page for each method, as HTML without scripts."""

from __future__ import annotations

import inspect
from html import escape

from vitrail.methods import METHODS, Method
from vitrail.methods.card import MODELS, method_card
from vitrail.methods.model_kinds import MODEL_KINDS
from vitrail.trust.check_run import SAME, SIGNIFICANT, STABLE
from vitrail.trust.map_check import VERDICTS
from vitrail.web.references import paper_of

TERMS = {
    "Relevance map": "A number for each patch of an image: how much it counts for a class according to a "
    "method. Methods disagree, and a map can be wrong. That is why every map is checked.",
    "Class-specific, class-agnostic": "A class-specific method gives another map for another class. A class-agnostic "
    "one gives the same map for every class, so it cannot say why the model chose this class.",
    "Signed": "A signed method separates patches that speak for the class from patches that speak against it. Its maps "
    "have two colours. Other methods only say how much a patch counts.",
    "Two maps, difference": "For two classes, “two maps” shows the map of each. “Difference” explains one number, "
    "the logit of the first class minus the logit of the second: what speaks for the first class rather than the "
    "second.",
    "Shared pass, perturbed images": "Fast methods read one forward and backward pass that they share; its time is not "
    "the time of any one of them. Other methods evaluate perturbed images, up to several thousand.",
    "The check": "The patches that a map marks are removed from the image. A map is faithful if this lowers the "
    "probability of the class more than 95 % of its copies do, which are shifted, rotated or flipped. The map is also "
    "computed again for another class, under noise, and with random weights.",
    "Deletion and insertion": "Deletion replaces pixels by the mean colour, the most relevant first. Insertion starts "
    "from a blurred image and adds pixels in the same order. The curves show the probability of the class.",
}


#: What each test of the check does, and its good or doubtful range.
TESTS = {
    "Removal": "Does the output depend on what the map marks? The most relevant 10 % and 40 % of the patches are "
    "removed, and the same is done with 49 shifted copies of the map. "
    f"Good: p, the share of copies that do as well, is at most {SIGNIFICANT:g}.",
    "Noise and seed": "Is the map stable? Rank correlation with the map under small noise, and with another seed. "
    f"Good: at least {STABLE:g}.",
    "Class and head": "Does the map depend on the class? Rank correlation with the map of another likely class, and "
    "with the map after the classification head was set to random values. "
    f"Doubtful: both above {SAME:g}.",
}


def help_page(version: str) -> str:
    """Render the help page."""
    terms = "".join(f"<dt><strong>{escape(name)}</strong></dt><dd>{escape(text)}</dd>" for name, text in TERMS.items())
    verdicts = "".join(f"<li><strong>{escape(name)}</strong>: {escape(text)}</li>" for name, text in VERDICTS.items())
    tests = "".join(f"<li><strong>{escape(name)}</strong>: {escape(text)}</li>" for name, text in TESTS.items())
    families = dict.fromkeys(method.family for method in METHODS.values())
    methods = "".join(f"<h3>{escape(family.capitalize())}</h3><ul>{_links(family)}</ul>" for family in families)
    return document(
        "Terms, the check and methods",
        "<nav><a href='#terms'>Terms</a> · <a href='#trust'>Can I trust this map?</a> · <a href='#methods'>Methods</a> "
        "· <a href='/api/docs'>HTTP API</a></nav>"
        f"<h2 id='terms'>Terms</h2><dl>{terms}</dl>"
        f"<h2 id='trust'>Can I trust this map?</h2><p>A map that is no better than chance looks as convincing as a "
        f"right one. The check tests a map on the model and image that it explains.</p><ul>{tests}</ul>"
        f"<h3>Verdicts</h3><ul>{verdicts}</ul><p>A faithful map is not necessarily complete, nor the only faithful "
        f"one.</p><h2 id='methods'>Methods</h2>{methods}<p>Vitrail {escape(version)}. In Python, "
        "<code>help(vitrail.explain)</code> and <code>vitrail.methods()</code>; on the command line, "
        "<code>vitrail methods NAME</code> and <code>vitrail --help</code>.</p>",
    )


def method_page(name: str) -> str | None:
    """Render the page of a method: what it computes, its options, where it applies, its paper and its card.

    Returns:
        The page, or None if there is no such method.
    """
    method = METHODS.get(name)
    if method is None:
        return None
    options = "".join(
        f"<li><code>{escape(key)}</code>, by default <code>{escape(str(value))}</code></li>"
        for key, value in method.options.items()
    )
    reasons = "".join(
        f"<li>Not on {escape(kind)}: {escape(reason)}.</li>"
        for kind in MODEL_KINDS
        if (reason := method.reason_against(kind))
    )
    kind = "class-specific" if method.class_specific else "class-agnostic: the same map for every class"
    return document(
        method.title,
        f"<p><code>{escape(name)}</code> · {escape(method.family)} · {kind}</p>{_paper(method)}"
        f"<h2>What it computes</h2>{_description(method)}"
        + (f"<h2>Options</h2><ul>{options}</ul>" if options else "")
        + (f"<h2>Where it does not apply</h2><ul>{reasons}</ul>" if reasons else "")
        + _card(name)
        + "<p><a href='/help#methods'>All methods</a></p>",
    )


def not_found_page(path: str) -> str:
    """Render the page for an address that does not exist."""
    return document("Page not found", f"<p>There is no page <code>{escape(path[:120])}</code> on this server.</p>")


def document(title: str, body: str, wide: bool = False) -> str:
    """A page without scripts.

    Args:
        title: Its heading.
        body: HTML below the heading.
        wide: Whether it is as wide as the window.
    """
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{escape(title)}: Vitrail</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<link rel='icon' href='/static/mark.svg' type='image/svg+xml'>"
        "<link rel='stylesheet' href='/static/help.css'></head><body>"
        f"<main{' class=wide' if wide else ''}>"
        f"<p><a href='/'>Back to the page</a></p><h1>{escape(title)}</h1>{body}</main></body></html>"
    )


def _links(family: str) -> str:
    members = (method for method in METHODS.values() if method.family == family)
    return "".join(
        f"<li><a href='/help/methods/{escape(m.name)}'>{escape(m.title)}</a>: {escape(m.summary)}</li>" for m in members
    )


def _paper(method: Method) -> str:
    paper = paper_of(method.cite)
    if paper is None:
        return "<p>A control, not a method.</p>" if method.family == "control" else "<p>A method of Vitrail.</p>"
    title = escape(paper["title"])
    link = f"<a href='{escape(paper['url'])}' rel='noopener noreferrer'>{title}</a>" if paper.get("url") else title
    return f"<p>{link} ({escape(paper['authors'])}, {escape(paper['year'])})</p>"


def _description(method: Method) -> str:
    """The docstring of a method up to its return value, with one list item for each option."""
    text, _, rest = (inspect.getdoc(method.compute) or method.summary).partition("\n\nArgs:")
    paragraphs = "".join(f"<p>{escape(' '.join(part.split()))}</p>" for part in text.split("\n\n"))
    entries: list[str] = []
    for line in rest.partition("\n\n")[0].splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            entries.append(line.strip())
        elif entries:
            entries[-1] += " " + line.strip()
    entries = [entry for entry in entries if not entry.startswith(("trace:", "probe:"))]
    items = (entry.partition(": ") for entry in entries)
    listed = "".join(f"<li><code>{escape(name)}</code>: {escape(about)}</li>" for name, _, about in items)
    return paragraphs + (f"<ul>{listed}</ul>" if listed else "")


def _card(name: str) -> str:
    """The card of a method as a table."""
    card = method_card(name)
    head = "".join(f"<th scope='col'>{escape(title)}</th>" for title in ("test", "rating", *MODELS.values()))
    rows = "".join(
        f"<tr><th scope='row'>{escape(line.section)}: {escape(line.title)}</th><td>{escape(line.rating)}</td>"
        + "".join(f"<td>{escape(line.cells.get(model, ''))}</td>" for model in MODELS)
        + "</tr>"
        for line in card.lines.values()
    )
    return (
        "<h2>Card</h2><p>Measured properties. pass: on all three photograph models; mixed: on some; fail: on none.</p>"
        f"<div class='scroll' tabindex='0' role='region' aria-label='Card'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )
