"""Where in a TOML file something stands, so that a message can name the line."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?")


class Lines:
    r"""The lines of a TOML text, found by key.

    Tables, arrays of tables, keys and entries of lists are known; whatever cannot be told apart gives the line of the
    key above it.

    Args:
        text: The file's content.

    Example:
        >>> lines = Lines('name = "a"\nmethods = [\n  "rollout",\n  "tam",\n]\n[[dataset]]\nroot = "x"')
        >>> lines.of("name"), lines.of("methods", 1), lines.of("dataset", 0, "root"), lines.of("dataset", 0)
        (1, 4, 7, 6)
    """

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def of(self, *path: str | int) -> int | None:
        """The line, counted from 1, of a key such as ``"dataset", 0, "root"``; None if no part of it is there."""
        keys = [part for part in path if isinstance(part, str)]
        if not keys:
            return None
        numbers = [part for part in path if isinstance(part, int)]
        start, stop = self._section(keys[0], numbers[0] if numbers else 0)
        if start is not None:
            return self._key(keys[1], start + 1, stop) or start + 1 if len(keys) > 1 else start + 1
        top = self._key(keys[0], 0, self._first_header())
        if top is None or not numbers:
            return top
        return self._entry(top - 1, numbers[0]) or top

    def _section(self, name: str, number: int) -> tuple[int | None, int]:
        """First line (from 0) of a table, or of the numbered one of an array of tables, and the line after its last."""
        seen, start = -1, None
        for i, line in enumerate(self.lines):
            found = _HEADER.match(line)
            if found is None:
                continue
            if start is not None and not found[2].startswith(f"{name}."):
                return start, i
            if start is None and found[2] == name:
                seen += 1
                if found[1] == "[" or seen == number:
                    start = i
        return start, len(self.lines)

    def _first_header(self) -> int:
        return next((i for i, line in enumerate(self.lines) if _HEADER.match(line)), len(self.lines))

    def _key(self, key: str, start: int, stop: int) -> int | None:
        pattern = re.compile(rf"^\s*(?:[\"']?){re.escape(key)}(?:[\"']?)\s*[.=]")
        return next((i + 1 for i in range(start, stop) if pattern.match(self.lines[i])), None)

    def _entry(self, start: int, number: int) -> int | None:
        """The line of the numbered entry of a list whose key stands on line ``start``."""
        depth, count, quote = 0, 0, ""
        for i in range(start, len(self.lines)):
            line = self.lines[i] if i > start else self.lines[i].partition("=")[2]
            for sign in line:
                if quote:
                    quote = "" if sign == quote else quote
                    continue
                if sign == "#":
                    break
                if sign in "\"'{" and depth == 1 and count == number:
                    return i + 1
                if sign in "\"'":
                    quote = sign
                depth += (sign in "[{") - (sign in "]}")
                count += sign == "," and depth == 1
                if depth == 0 and sign == "]":
                    return None
        return None
