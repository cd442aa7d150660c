"""Render the package's Jinja2 templates."""

from __future__ import annotations

import base64
from functools import cache
from html import escape
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitrail.models.percentages import percent

if TYPE_CHECKING:
    from PIL.Image import Image


def render(template: str, **context: Any) -> str:
    """Render a template of ``vitrail/viz/templates``; values are escaped.

    Args:
        template: File name, such as "report.html".
        context: Variables of the template. A missing one raises ``jinja2.UndefinedError``.
    """
    return _environment().get_template(template).render(**context)


def png_uri(image: Image) -> str:
    """An image as the data address of a PNG file."""
    stream = BytesIO()
    image.save(stream, format="PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def code_spans(text: str) -> Markup:
    """Escape text and turn `words` between backquotes into code elements.

    Example:
        >>> print(code_spans("a `b<c` d"))
        a <code>b&lt;c</code> d
    """
    parts = escape(text).split("`")
    return Markup("".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts)))  # noqa: S704


def breakable(text: str) -> Markup:
    """Escape a method's name and allow line breaks after "_", ":" and ",".

    Example:
        >>> print(breakable("raw_attention"))
        raw_<wbr/>attention
    """
    escaped = escape(text)
    for separator in "_:,":
        escaped = escaped.replace(separator, f"{separator}<wbr/>")
    return Markup(escaped)  # noqa: S704


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vitrail.viz", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(code_spans=code_spans, breakable=breakable, percent=percent)
    environment.globals["report_style"] = Markup(  # noqa: S704
        files("vitrail.viz").joinpath("style.css").read_text(encoding="utf-8")
    )
    return environment
