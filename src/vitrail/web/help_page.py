"""The help page: terms that the page uses, as HTML without scripts."""

from __future__ import annotations

from html import escape

from vitrail.trust.map_check import VERDICTS

TERMS = {
    "Relevance map": "A number for each patch of an image: how much the patch counts for a class, by the account of a "
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
    "probability of the class more than 95 % of copies of the map do that were moved to other places. The map is also "
    "computed again for another class, under noise, and with random weights.",
    "Deletion and insertion": "Deletion replaces pixels by the mean colour, the most relevant first. Insertion starts "
    "from a blurred image and adds pixels in the same order. The curves show the probability of the class.",
}


def help_page(version: str) -> str:
    """Render the help page.

    Args:
        version: The version of Vitrail.
    """
    terms = "".join(f"<dt><strong>{escape(name)}</strong></dt><dd>{escape(text)}</dd>" for name, text in TERMS.items())
    verdicts = "".join(f"<li><strong>{escape(name)}</strong>: {escape(text)}</li>" for name, text in VERDICTS.items())
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Vitrail: terms</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        "<link rel='stylesheet' href='/static/help.css'></head><body><main>"
        f"<p><a href='/'>Back to the page</a></p><h1>Terms</h1><dl>{terms}</dl><h2>Verdicts of the check</h2>"
        f"<ul>{verdicts}</ul><h2>Documentation</h2><p>Vitrail {escape(version)}. The documentation is in the folder "
        "<code>docs</code> of the source code: <code>docs/methods</code> has a page for each method, "
        "<code>docs/trust.md</code> describes the check, and <code>docs/web.md</code> this page. The HTTP API has its "
        "<a href='/api/docs'>reference</a>. On the command line, <code>vitrail methods NAME</code> describes a method."
        "</p></main></body></html>"
    )
