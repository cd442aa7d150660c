"""MkDocs hook: no TeX source in the search index, and pages that answer questions rank before others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

#: Pages that answer what people ask, before the pages that mention it.
BOOST = {"models.md": 12.0, "trust.md": 6.0, "quickstart.md": 3.0, "methods/index.md": 4.0, "api.md": 0.5}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Set the weight of a page in the search."""
    boost = BOOST.get(page.file.src_uri)
    if boost is not None:
        page.meta.setdefault("search", {"boost": boost})
    return markdown


def on_page_content(html: str, **_: object) -> str:
    """Mark every formula so that the search plugin skips it."""
    return html.replace('class="arithmatex"', 'class="arithmatex" data-search-exclude')
