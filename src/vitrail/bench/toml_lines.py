"""Line numbers of keys in a TOML file, for error messages."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?")


class TomlLines:
    r"""Line numbers of the keys of a TOML text.

    Finds tables, arrays of tables, keys and entries of lists. Where an entry cannot be located, the line of its key is
    returned.

    Example:
        >>> lines = TomlLines('name = "a"\nmethods = [\n  "rollout",\n  "tam",\n]\n[[dataset]]\nroot = "x"')
        >>> lines.of("name"), lines.of("methods", 1), lines.of("dataset", 0, "root"), lines.of("dataset", 0)
        (1, 4, 7, 6)
    """

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()

    def of(self, *path: str | int) -> int | None:
        """Return the line, counted from 1, of a key such as ``"dataset", 0, "root"``; None if it is not there."""
        keys = [step for step in path if isinstance(step, str)]
        if not keys:
            return None
        numbers = [step for step in path if isinstance(step, int)]
        start, stop = self._section(keys[0], numbers[0] if numbers else 0)
        if start is not None:
            return self._key(keys[1], start + 1, stop) or start + 1 if len(keys) > 1 else start + 1
        top = self._key(keys[0], 0, self._first_header())
        if top is None or not numbers:
            return top
        return self._entry(top - 1, numbers[0]) or top

    def _section(self, name: str, number: int) -> tuple[int | None, int]:
        """Return the first line (from 0) of a table, or of one of an array of tables, and the line after its last."""
        seen, start = -1, None
        for i, line in enumerate(self.lines):
            header = _HEADER.match(line)
            if header is None:
                continue
            if start is not None and not header[2].startswith(f"{name}."):
                return start, i
            if start is None and header[2] == name:
                seen += 1
                if header[1] == "[" or seen == number:
                    start = i
        return start, len(self.lines)

    def _first_header(self) -> int:
        return next((i for i, line in enumerate(self.lines) if _HEADER.match(line)), len(self.lines))

    def _key(self, key: str, start: int, stop: int) -> int | None:
        pattern = re.compile(rf"^\s*(?:[\"']?){re.escape(key)}(?:[\"']?)\s*[.=]")
        return next((i + 1 for i in range(start, stop) if pattern.match(self.lines[i])), None)

    def _entry(self, start: int, number: int) -> int | None:
        """Return the line of one entry of the list whose key is on line ``start``."""
        depth, count, quote = 0, 0, ""
        for i in range(start, len(self.lines)):
            line = self.lines[i] if i > start else self.lines[i].partition("=")[2]
            for char in line:
                if quote:
                    quote = "" if char == quote else quote
                    continue
                if char == "#":
                    break
                if char in "\"'{" and depth == 1 and count == number:
                    return i + 1
                if char in "\"'":
                    quote = char
                depth += (char in "[{") - (char in "]}")
                count += char == "," and depth == 1
                if depth == 0 and char == "]":
                    return None
        return None
