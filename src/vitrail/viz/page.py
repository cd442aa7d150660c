"""A page of explanations that opens from disk: one file, nothing fetched."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

from vitrail.viz.colormap import to_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from vitrail.explanation import Explanation

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 78rem; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
.row { display: flex; flex-wrap: wrap; gap: .7rem; }
figure { margin: 0; width: 9.2rem; } img { width: 100%; image-rendering: auto; border-radius: 4px; display: block; }
figcaption { font-size: .8rem; line-height: 1.3; padding-top: .25rem; overflow-wrap: anywhere; }
figcaption b { font-weight: 600; } .dim { opacity: .7; }
table { border-collapse: collapse; margin: .6rem 0; } td, th { padding: .25rem .8rem .25rem 0; text-align: left; }
th { font-weight: 600; border-bottom: 1px solid var(--line); } td { border-bottom: 1px solid var(--soft); }
code { background: var(--soft); padding: .1rem .3rem; border-radius: 3px; }
"""


@dataclass(frozen=True)
class PageSection:
    """Explanations of one image.

    Attributes:
        title: What is seen.
        explanations: By method.
        remarks: For (method, target) a line under the map, such as a score; may be empty.
    """

    title: str
    explanations: Mapping[str, Explanation]
    remarks: Mapping[tuple[str, int], str]


def page(title: str, introduction: str, parts: Sequence[PageSection], table: Sequence[Sequence[str]] = ()) -> str:
    """The page as HTML.

    Args:
        title: Heading.
        introduction: A paragraph of plain text.
        parts: One for each image.
        table: Rows of text for a closing table, the first of them its head; none by default.
    """
    body = [f"<h1>{escape(title)}</h1>", f"<p>{escape(introduction)}</p>"]
    for part in parts:
        first = next(iter(part.explanations.values()))
        for k in range(first.maps.shape[1]):
            body.append(f"<h2>{escape(part.title)}: why {escape(first.label(0, k))}?</h2><div class='row'>")
            assert first.pictures is not None
            body.append(_figure(to_image(first.pictures[0]), "input", first.model, "the picture"))
            for name, explanation in part.explanations.items():
                remark = "no relevance" if bool(explanation.flat[0, k]) else part.remarks.get((name, k), "")
                words = f"{explanation.title} map for {explanation.label(0, k)}"
                body.append(_figure(explanation.overlay(0, k), explanation.title, remark, words))
            body.append("</div>")
    if table:
        head, *rows = table
        body.append("<table><tr>" + "".join(f"<th>{escape(c)}</th>" for c in head) + "</tr>")
        body += ["<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows]
        body.append("</table>")
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
        f"content='width=device-width, initial-scale=1'><title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _figure(image: Image, name: str, remark: str, words: str) -> str:
    held = BytesIO()
    image.save(held, format="PNG")
    data = base64.b64encode(held.getvalue()).decode()
    note = f"<br><span class='dim'>{escape(remark)}</span>" if remark else ""
    return (
        f"<figure><img src='data:image/png;base64,{data}' alt='{escape(words)}'>"
        f"<figcaption><b>{escape(name)}</b>{note}</figcaption></figure>"
    )
