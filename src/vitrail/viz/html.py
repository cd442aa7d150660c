"""HTML pages: maps of several images and methods (`explanation_page`), and the elements of a report."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING

from vitrail.errors import InputError
from vitrail.viz.colormap import to_image
from vitrail.viz.templating import render
from vitrail.viz.types import ExplanationLike

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class ImageSection:
    """One image of an `explanation_page`.

    Attributes:
        title: What the image shows.
        explanations: Explanations of the image by method name.
        remarks: For (method, target) a line below the map, such as a score; may be empty.
    """

    title: str
    explanations: Mapping[str, ExplanationLike]
    remarks: Mapping[tuple[str, int], str]


def explanation_page(
    title: str, introduction: str, sections: Sequence[ImageSection], table: Sequence[Sequence[str]] = ()
) -> str:
    """Render explanations as one HTML page that contains its images and loads nothing.

    Args:
        title: Heading.
        introduction: A paragraph of plain text; `words` between backquotes become code.
        sections: One for each image.
        table: Rows of text for a table at the end, the first one its header; empty for none.
    """
    rows = [
        {"title": f"{section.title}: maps for {_first(section).label(0, k)}", "images": _images(section, k)}
        for section in sections
        for k in range(_first(section).maps.shape[1])
    ]
    return render("explanations.html", title=title, introduction=introduction, rows=rows, table=table)


def _first(section: ImageSection) -> ExplanationLike:
    return next(iter(section.explanations.values()))


def _images(section: ImageSection, k: int) -> list[dict[str, str]]:
    """The input image and the map of each method for one target."""
    first = _first(section)
    if first.rgb_images is None:
        raise InputError("these are explanations of texts: render them with vitrail.viz.text.html")
    images = [{"data": _png(to_image(first.rgb_images[0])), "title": "Input", "remark": first.model, "alt": "input"}]
    for name, explanation in section.explanations.items():
        remark = "no relevance" if bool(explanation.constant[0, k]) else section.remarks.get((name, k), "")
        alt = f"{explanation.title} map for {explanation.label(0, k)}"
        data = _png(explanation.overlay(0, k))
        images.append({"data": data, "title": explanation.title, "remark": remark, "alt": alt})
    return images


def _png(image: Image) -> str:
    """A PNG file in base64."""
    buffer = BytesIO()
    image.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


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
