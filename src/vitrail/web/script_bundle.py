"""The modules of the page as one script, so that a browser loads them with one request."""

from __future__ import annotations

import hashlib
import re
from importlib.resources.abc import Traversable

IMPORT = re.compile(r'^import\s+(?:\* as (\w+)|(\{[^}]*\}))\s+from\s+"\./(\w+\.js)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async function|function|class|const) (\w+))", re.MULTILINE)


def bundle_modules(folder: Traversable, entry: str) -> str:
    """Join a JavaScript module and all that it imports, each in a function that returns its exports.

    Args:
        folder: Where the modules are. They import each other by ``"./name.js"``, without cycles, and export functions,
            classes and constants.
        entry: Name of the module that the page starts with.
    """
    functions: dict[str, str] = {}

    def add(name: str) -> None:
        text = folder.joinpath(name).read_text("utf-8")
        for *_, imported in IMPORT.findall(text):
            if imported not in functions:
                add(imported)
        body = EXPORT.sub("", IMPORT.sub(_assignment, text))
        functions[name] = (
            f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(EXPORT.findall(text))} }};\n}})();\n'
        )

    add(entry)
    return "export const modules = {};\n" + "\n".join(functions.values())


def content_name(name: str, text: str) -> str:
    """A file name that changes with the content, so that browsers may keep the file.

    Example:
        >>> content_name("page.js", "start();")
        'page-13a8d0beb4f6.js'
    """
    stem, _, kind = name.rpartition(".")
    return f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.{kind}"


def _assignment(found: re.Match[str]) -> str:
    """The constants that an import becomes."""
    whole, names, module = found.groups()
    return f'const {whole or names.replace(" as ", ": ")} = modules["{module}"];'
