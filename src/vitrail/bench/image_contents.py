"""Contents of explained images: which files were replaced under the same name since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrail.data.source import Source, SourceItem
from vitrail.data.table_rows import TableSource
from vitrail.errors import VitrailError

#: Name of the contents in the footer of a part.
CONTENTS = "contents"


@dataclass(frozen=True)
class FileVersions:
    """Size and time of change of the local files that hold some images; files of a store are left out.

    Attributes:
        versions: Size in bytes and time in nanoseconds by file; None where the file cannot be read.
    """

    versions: Mapping[str, tuple[int, int] | None]

    @classmethod
    def of(cls, items: Sequence[SourceItem]) -> FileVersions:
        """The present versions of the files of some images."""
        files = dict.fromkeys(item.file for item in items if item.error is None and "://" not in item.file)
        return cls({file: _version(file) for file in files})


def explained_contents(source: Source, items: Sequence[SourceItem], before: FileVersions) -> str | None:
    """Versions of the files and hashes of the images that were explained, for the footer of their part.

    Hashes are those of the files now. A file that changed since ``before``, when they were read, gets no hash, so that
    the next run explains its images again. Rows of tables get none either, because reading them takes long.

    Args:
        source: The source.
        items: The images.
        before: Versions of their files before they were read.
    """
    if not before.versions:
        return None
    now = FileVersions.of(items)
    same = {file for file, version in now.versions.items() if version == before.versions.get(file)}
    hashed = not isinstance(source, TableSource)
    hashes = [_hash(source, item) if hashed and item.file in same else "" for item in items]
    return json.dumps({"files": dict(before.versions), "hashes": hashes})


def replaced_images(source: Source, items: Sequence[SourceItem], contents: str | None, written: int) -> list[str]:
    """Ids of images whose file holds something else than what was explained.

    Only files whose size or time differ are read. A file that was replaced by one of the same size and time is not
    found.

    Args:
        source: The source.
        items: The images.
        contents: What `explained_contents` returned for them; None for parts of earlier versions of Vitrail.
        written: When the part was written, in nanoseconds; files that are newer count as replaced without contents.
    """
    present = FileVersions.of(items).versions
    if contents is None:
        newer = {file for file, version in present.items() if version is not None and version[1] > written}
        return [item.id for item in items if item.file in newer]
    known = json.loads(contents)
    explained = {file: None if version is None else tuple(version) for file, version in known["files"].items()}
    differ = {file for file, version in present.items() if version != explained.get(file)}
    return [
        item.id
        for item, known_hash in zip(items, known["hashes"], strict=True)
        if item.file in differ and (not known_hash or _hash(source, item) != known_hash)
    ]


def _version(file: str) -> tuple[int, int] | None:
    try:
        found = Path(file).expanduser().stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _hash(source: Source, item: SourceItem) -> str:
    """Hash of an image's bytes; empty where they cannot be read."""
    try:
        return hashlib.sha256(source.open(item)).hexdigest()[:32]
    except VitrailError:
        return ""
