"""MkDocs hook: numbers that follow from the registry.

``{{ published_methods }}`` becomes the number of methods of published papers: those with a citation, without controls.
"""

from __future__ import annotations

from functools import cache

MARK = "{{ published_methods }}"


@cache
def published_methods() -> int:
    """Number of methods that cite a published paper."""
    from vitrail.methods import METHODS
    from vitrail.web.references import paper_of

    return sum(paper_of(method.cite) is not None and method.family != "control" for method in METHODS.values())


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the mark by the number."""
    return markdown.replace(MARK, str(published_methods())) if MARK in markdown else markdown
