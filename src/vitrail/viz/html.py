"""Small pieces of HTML, well formed: what every page of a report is put together from."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files


def page(title: str, body: str) -> str:
    """A page of its own: one file, nothing fetched, also well-formed XML."""
    style = files("vitrail.viz").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>\n<body>{body}</body></html>\n"
    )


def items(texts: Iterable[str]) -> str:
    """Sentences as a list."""
    return f'<ul class="plain">{"".join(f"<li>{marked(text)}</li>" for text in texts)}</ul>'


def table(head: str, rows: Iterable[str], kind: str = "") -> str:
    """A table that can be moved sideways where it is wider than the page.

    Args:
        head: Rows of the head, with their tags, or "".
        rows: Rows of the body, with their tags.
        kind: Its class.
    """
    start = f"<thead>{head}</thead>" if head else ""
    named = f' class="{kind}"' if kind else ""
    return f'<div class="scroll"><table{named}>{start}<tbody>{"".join(rows)}</tbody></table></div>'


def row(cells: Sequence[str], kind: str = "", text: Sequence[int] = ()) -> str:
    """A row of plain cells; those at the places ``text`` are words, not numbers."""
    made = [f'<td class="text">{c}</td>' if i in text else f"<td>{c}</td>" for i, c in enumerate(cells)]
    return f"<tr{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{''.join(made)}</tr>"


def heads(cells: Sequence[str], text: Sequence[int] = ()) -> str:
    """The row of a simple head."""
    made = [f'<th class="text">{c}</th>' if i in text else f"<th>{c}</th>" for i, c in enumerate(cells)]
    return f"<tr>{''.join(made)}</tr>"


def marked(text: str) -> str:
    """Text with `code` between backquotes.

    Example:
        >>> marked("a `b<c` d")
        'a <code>b&lt;c</code> d'
    """
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def code(text: str) -> str:
    """A name as it is typed."""
    return f"<code>{escape(text)}</code>"


def name(text: str) -> str:
    """A method's name that may be broken where its words are joined.

    Example:
        >>> name("raw_attention")
        'raw_<wbr/>attention'
    """
    found = escape(text)
    for joint in "_:,":
        found = found.replace(joint, f"{joint}<wbr/>")
    return found


def picture(data: bytes, words: str) -> str:
    """A JPEG file as part of the page."""
    held = base64.b64encode(data).decode()
    return f'<img src="data:image/jpeg;base64,{held}" alt="{escape(words)}" loading="lazy"/>'
