"""The API's description as a page to read, made from its schema; no script, nothing fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any


def reference(schema: dict[str, Any]) -> str:
    """A page of all operations with what they take and give.

    Args:
        schema: The API's description in OpenAPI's form.
    """
    info = schema["info"]
    parts = [f"<h1>{escape(info['title'])} API</h1>", f"<p>{escape(info['description'])}</p>"]
    parts.append("<p>The same for programs: <a href='/api/openapi.json'>/api/openapi.json</a></p>")
    for path, methods in schema["paths"].items():
        for verb, operation in methods.items():
            parts += _operation(path, verb, operation, schema)
    parts.append("<h2>Forms</h2>")
    for name, form in schema["components"]["schemas"].items():
        parts.append(f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{escape(form.get('description', ''))}</p>")
        parts.append(_table([(field, _kind(one), field in form.get("required", ()), one.get("description", ""))
                             for field, one in form.get("properties", {}).items()]))  # fmt: skip
        parts += [_code(example) for example in form.get("examples", ())]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Vitrail API</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'></head>"
        f"<body><main>{''.join(parts)}</main></body></html>"
    )


def _operation(path: str, verb: str, operation: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{verb.upper()} {escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
    rows = [
        (f"{one['name']} ({one['in']})", _kind(one["schema"]), one.get("required", False), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    if rows:
        yield _table(rows)
    for media, one in operation.get("requestBody", {}).get("content", {}).items():
        form = _kind(one["schema"])
        yield f"<p>Body: {escape(media)}, {_link(form)}</p>"
        yield from (_code(e) for e in schema["components"]["schemas"].get(form, {}).get("examples", ()))
    answers = []
    for status, one in operation.get("responses", {}).items():
        content: dict[str, dict[str, Any]] = one.get("content", {})
        media = next(iter(content), "")
        form = _kind(content[media]["schema"]) if "schema" in content.get(media, {}) else media
        answers.append(f"<li>{escape(status)}: {escape(one.get('description', ''))} {_link(form)}</li>")
    yield f"<ul>{''.join(answers)}</ul>"


def _link(form: str) -> str:
    bare = form.removeprefix("list of ")
    known = bare.isidentifier() and bare[:1].isupper()
    return f"<a href='#{escape(bare)}'>{escape(form)}</a>" if known else escape(form)


def _kind(schema: dict[str, Any]) -> str:
    """A type in words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _table(rows: list[tuple[str, str, bool, str]]) -> str:
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_link(kind)}</td><td>{'needed' if needed else ''}</td>"
        f"<td>{escape(about)}</td></tr>"
        for name, kind, needed, about in rows
    )
    return f"<table>{lines}</table>" if rows else ""


def _code(example: Any) -> str:
    return f"<pre>{escape(json.dumps(example, indent=2))}</pre>"
