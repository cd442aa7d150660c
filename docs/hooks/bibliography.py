"""MkDocs hook: render citations and reference lists from docs/bibliography.bib.

``[@key]`` and ``[@key; @key]`` in a page become links such as "Wu et al., 2024". A list of the cited entries is added
under the heading "References" at the end of the page. An unknown key is a warning, which fails a strict build.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.plugins import get_plugin_logger

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

logger = get_plugin_logger("bibliography")

ENTRY = re.compile(r"^@(\w+)\{([\w:-]+),\s*\n(.*?)^\}", re.DOTALL | re.MULTILINE)
FIELD = re.compile(r"^\s*(\w+)\s*=\s*\{(.*?)\},?\s*$", re.DOTALL | re.MULTILINE)
CITATION = re.compile(r"\[(@[\w:-]+(?:;\s*@[\w:-]+)*)\]")
CODE = re.compile(r"(^(?P<fence>`{3,}).*?^(?P=fence)|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
ACCENT = re.compile(r"\{\\(['\"`^~v])\s*(\w)\}")
COMBINING = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "^": "\u0302", "~": "\u0303", "v": "\u030c"}
MAX_AUTHORS = 8  # a longer list of authors ends in "et al."


@dataclass(frozen=True)
class Entry:
    """One entry of the bibliography.

    Attributes:
        key: The BibTeX key.
        fields: Plain text by field name, without LaTeX markup.
    """

    key: str
    fields: dict[str, str]

    @property
    def authors(self) -> list[str]:
        """Full names, given name first."""
        names = []
        for name in self.fields["author"].split(" and "):
            family, _, given = name.partition(", ")
            names.append(f"{given} {family}".strip())
        return names

    @property
    def label(self) -> str:
        """The text of a citation, such as "Abnar and Zuidema, 2020"."""
        families = [name.partition(",")[0] for name in self.fields["author"].split(" and ")]
        who = families[0] if len(families) == 1 else f"{families[0]} et al."
        if len(families) == 2:
            who = " and ".join(families)
        return ", ".join(filter(None, [who, self.fields.get("year")]))

    @property
    def link(self) -> str | None:
        """The address to read it at: its url, or its doi."""
        doi = self.fields.get("doi")
        return self.fields.get("url") or (f"https://doi.org/{doi}" if doi else None)

    def reference(self) -> str:
        """Authors, year, title with link, and where it was published, in Markdown."""
        authors = self.authors
        names = ", ".join(authors[:MAX_AUTHORS]) + (" et al." if len(authors) > MAX_AUTHORS else "")
        year = f" ({self.fields['year']})" if "year" in self.fields else ""
        title = f"[{self.fields['title']}]({self.link})" if self.link else self.fields["title"]
        where = [self.fields.get(field) for field in ("journal", "booktitle", "howpublished")]
        version = self.fields.get("version")
        details = ", ".join(filter(None, [*where, f"version {version}" if version else None]))
        return f"{names}{year}. {title}." + (f" *{details}*." if details else "")


def parse(text: str) -> dict[str, Entry]:
    """Read BibTeX entries with one field a line and values in braces.

    Raises:
        ValueError: If an entry has no author or no title, or a key is used twice.
    """
    entries: dict[str, Entry] = {}
    for _, key, body in ENTRY.findall(text):
        fields = {name: plain(value) for name, value in FIELD.findall(body)}
        if key in entries or not {"author", "title"} <= fields.keys():
            raise ValueError(f"entry {key} of the bibliography needs an author, a title and a key of its own")
        entries[key] = Entry(key, fields)
    return entries


def plain(value: str) -> str:
    """LaTeX text as plain text: accents, dashes and braces."""
    value = ACCENT.sub(lambda m: unicodedata.normalize("NFC", m[2] + COMBINING[m[1]]), value)
    value = re.sub(r"\\url\{([^}]*)\}", r"\1", value).replace("\\&", "&").replace("--", "–")
    return " ".join(re.sub(r"[{}]", "", value).split())


@cache
def load(path: Path) -> dict[str, Entry]:
    """The entries of a bibliography file."""
    return parse(path.read_text(encoding="utf-8"))


def render(markdown: str, entries: dict[str, Entry]) -> tuple[str, list[str]]:
    """Replace citations outside code and add the list of references.

    Returns:
        The page, and the keys that are not in the bibliography.
    """
    cited: dict[str, Entry] = {}
    unknown: list[str] = []

    def cite(match: re.Match[str]) -> str:
        links = []
        for key in re.findall(r"@([\w:-]+)", match[1]):
            if key not in entries:
                unknown.append(key)
                links.append(f"@{key}")
                continue
            cited[key] = entries[key]
            links.append(f"[{entries[key].label}](#ref-{key})")
        return f"({'; '.join(links)})"

    pieces: list[str] = []
    end = 0
    for code in CODE.finditer(markdown):
        pieces += [CITATION.sub(cite, markdown[end : code.start()]), code[0]]
        end = code.end()
    page = "".join([*pieces, CITATION.sub(cite, markdown[end:])])
    if cited:
        listed = "\n".join(f'- <span id="ref-{key}"></span>{entry.reference()}' for key, entry in cited.items())
        page = f"{page.rstrip()}\n\n## References\n\n{listed}\n"
    return page, unknown


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Render the citations of one page."""
    rendered, unknown = render(markdown, load(Path(config.docs_dir) / "bibliography.bib"))
    for key in unknown:
        logger.warning("%s cites %r, which is not in docs/bibliography.bib", page.file.src_uri, key)
    return rendered
