"""The API reference as an HTML page without scripts, generated from the OpenAPI schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

#: What the operator of a server that other machines can reach should know, as HTML.
OPERATORS = (
    (
        "The server answers to addresses, to localhost, and to the host names given by <code>--allow-host NAME</code>. "
        "Requests that change something must come from its own page."
    ),
    (
        "<code>--token auto</code> prints a link with a token. The link sets a cookie; programs send the header "
        "<code>Authorization: Bearer TOKEN</code>. Without a token, anyone who can reach the server can use it."
    ),
    (
        "Traffic is not encrypted. Put a reverse proxy with TLS in front of the server, and limit requests by address "
        "there: one client can use several cookies."
    ),
    "<code>/api/health</code> shows the memory of the process and what is kept in it, with the limits.",
)


def api_reference(schema: dict[str, Any]) -> str:
    """Render all operations with their requests and responses."""
    info = schema["info"]
    parts = [f"<h1>{escape(info['title'])} API</h1>", f"<p>{escape(info['description'])}</p>"]
    parts.append("<p>OpenAPI schema: <a href='/api/openapi.json'>/api/openapi.json</a></p>")
    parts.append(
        f"<h2 id='for-operators'>For operators</h2><ul>{''.join(f'<li>{line}</li>' for line in OPERATORS)}</ul>"
    )
    for path, methods in schema["paths"].items():
        for verb, operation in methods.items():
            parts += _operation(path, verb, operation, schema)
    parts.append("<h2>Schemas</h2>")
    for name, body in schema["components"]["schemas"].items():
        parts.append(f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{escape(body.get('description', ''))}</p>")
        parts.append(_table([(field, _type_name(one), field in body.get("required", ()), one.get("description", ""))
                             for field, one in body.get("properties", {}).items()]))  # fmt: skip
        parts += [_code(example) for example in body.get("examples", ())]
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Vitrail API</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'></head>"
        f"<body><main>{''.join(parts)}</main></body></html>"
    )


def _operation(path: str, verb: str, operation: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{verb.upper()} {escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
    rows = [
        (
            f"{one['name']} ({one['in']})",
            _type_name(one["schema"]),
            one.get("required", False),
            one.get("description", ""),
        )
        for one in operation.get("parameters", ())
    ]
    if rows:
        yield _table(rows)
    for media, one in operation.get("requestBody", {}).get("content", {}).items():
        name = _type_name(one["schema"])
        yield f"<p>Body: {escape(media)}, {_link(name)}</p>"
        yield from (_code(e) for e in schema["components"]["schemas"].get(name, {}).get("examples", ()))
    responses = []
    for status, one in operation.get("responses", {}).items():
        content: dict[str, dict[str, Any]] = one.get("content", {})
        media = next(iter(content), "")
        name = _type_name(content[media]["schema"]) if "schema" in content.get(media, {}) else media
        responses.append(f"<li>{escape(status)}: {escape(one.get('description', ''))} {_link(name)}</li>")
    yield f"<ul>{''.join(responses)}</ul>"


def _link(name: str) -> str:
    bare = name.removeprefix("list of ")
    is_schema = bare.isidentifier() and bare[:1].isupper()
    return f"<a href='#{escape(bare)}'>{escape(name)}</a>" if is_schema else escape(name)


def _type_name(schema: dict[str, Any]) -> str:
    """The name of a type."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type_name(one) for one in schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_type_name(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _table(rows: list[tuple[str, str, bool, str]]) -> str:
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_link(kind)}</td><td>{'required' if required else ''}</td>"
        f"<td>{escape(description)}</td></tr>"
        for name, kind, required, description in rows
    )
    return f"<table>{lines}</table>" if rows else ""


def _code(example: Any) -> str:
    return f"<pre>{escape(json.dumps(example, indent=2))}</pre>"
