"""Papers of the methods, for display: the entries of ``docs/bibliography.bib`` that the registry cites."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _papers() -> dict[str, dict[str, Any]]:
    text = files("vitrail.web").joinpath("references.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def paper_of(key: str) -> dict[str, Any] | None:
    """Authors, year, title and URL of a paper by its BibTeX key; None if it has no entry.

    Example:
        >>> paper_of("abnar2020quantifying")["year"], paper_of("")
        ('2020', None)
    """
    return _papers().get(key)
