"""Files of a saved explanation: their names, and writing them atomically."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.errors import OutputError

_OVERLAY_NAME = re.compile(r"overlay(-original)?(-\d{3,}-\d+-[a-z0-9-]+)?\.(png|jpg|gif)")
#: Quality of overlays at the size of the original image, which are JPEG files.
JPEG_QUALITY = 92


def slug(text: str) -> str:
    """Turn a label into a file name.

    Example:
        >>> slug("tiger cat (12.3 %)"), slug("gradtoken:variant=3")
        ('tiger-cat', 'gradtoken-variant-3')
    """
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\(.*?\)", "", text).lower()).strip("-") or "unnamed"


def saved_overlays(folder: Path) -> set[str]:
    """Overlays that the manifest in a folder lists; names of any other form are ignored."""
    try:
        listed = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["overlays"]
        return {name for name in listed if isinstance(name, str) and _OVERLAY_NAME.fullmatch(name)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


@contextmanager
def atomic_writes(folder: Path) -> Iterator[Any]:
    """Yield a function that opens a file for writing and renames it into place once it is complete."""

    @contextmanager
    def into(name: str) -> Iterator[Path]:
        unfinished = folder / f".{name}.part"
        try:
            yield unfinished
            unfinished.replace(folder / name)
        finally:
            unfinished.unlink(missing_ok=True)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield into
    except OutputError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        raise OutputError(
            f"cannot write to {folder} ({error}): choose another folder; finished files are complete"
        ) from error
