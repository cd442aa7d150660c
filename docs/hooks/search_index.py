"""MkDocs hook: no TeX source in the search index, and pages that answer a question rank before others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

#: Words of questions by the page that answers them. The search puts pages whose tags match first.
TAGS = {
    "models.md": ["my own model", "checkpoint"],
    "trust.md": ["trust", "verdict", "faithful", "chance"],
    "quickstart.md": ["install", "start"],
    "methods/index.md": ["which method to use"],
    "web.md": ["serve", "page"],
}
#: Weights of pages: one that is asked for in many words, of which other pages have some, and one that mentions all.
BOOST = {"models.md": 8.0, "api.md": 0.5}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Set the tags and the weight of a page in the search."""
    name = page.file.src_uri
    if name in TAGS:
        page.meta.setdefault("tags", TAGS[name])
    if name in BOOST:
        page.meta.setdefault("search", {"boost": BOOST[name]})
    return markdown


def on_page_content(html: str, **_: object) -> str:
    """Mark every formula so that the search plugin skips it."""
    return html.replace('class="arithmatex"', 'class="arithmatex" data-search-exclude')
