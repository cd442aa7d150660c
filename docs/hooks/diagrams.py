"""MkDocs hook: put the diagrams of docs/images/diagrams into the page, so that they follow its colour scheme.

An image ``![alternative text](../images/diagrams/NAME.svg)`` becomes the SVG itself. The file alone follows the colour
scheme of the system; in the page, docs/assets/site.css sets its colours.
"""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

IMAGE = re.compile(r'<img alt="([^"]*)" src="[^"]*images/diagrams/([\w-]+)\.svg"\s*/?>')


def inline(html: str, folder: Path) -> str:
    """Replace images of diagrams by the diagrams, labelled with the alternative text of the image."""

    def replace(match: re.Match[str]) -> str:
        alternative, name = match.groups()
        drawing = (folder / f"{name}.svg").read_text(encoding="utf-8").strip()
        label = f'role="img" aria-label="{escape(unescape(alternative))}"'
        drawing = re.sub(r'role="img" aria-labelledby="[^"]*"', lambda _: label, drawing, count=1)
        drawing = re.sub(r"\s*<title.*?</desc>", "", drawing, count=1, flags=re.DOTALL)  # else shown as a tooltip
        return f'<span class="diagram" data-search-exclude>{drawing}</span>'

    return IMAGE.sub(replace, html)


def on_page_content(html: str, *, config: MkDocsConfig, **_: object) -> str:
    """Put the diagrams into a page."""
    return inline(html, Path(config.docs_dir) / "images" / "diagrams")
