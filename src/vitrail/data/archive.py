"""Read files by name from a folder or a tar archive, without unpacking the archive."""

from __future__ import annotations

import lzma
import os
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

from vitrail.errors import DataError

__all__ = ["FileCollection", "open_files"]

MAX_CACHED_BYTES = 2 << 30
"""Maximum number of bytes of a compressed archive that are kept in memory."""

_READ_ERRORS = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError)


class FileCollection:
    """The files of a folder or of a tar archive whose full names, with "/" between folders, match a regular expression.

    Nothing is unpacked to disk. A plain tar archive is read in place. A compressed one (gz, bz2, xz) has no random
    access, so it is read once and the matching files are kept in memory. No file stays open. Pickling keeps the names,
    not the contents.

    Attributes:
        sizes: Size in bytes of each matching file, by name, sorted by name.

    Raises:
        DataError: The folder or archive does not exist, or the archive is damaged.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.txt").write_text("hello"), Path(folder, "b.bin").write_text("")
        ...     files = FileCollection(folder, r".*[.]txt")
        ...     dict(files.sizes), files.read("a.txt"), files.read("a.txt", 1, 3)
        ({'a.txt': 5}, b'hello', b'ell')
    """

    def __init__(self, root: str | Path, pattern: str = ".*") -> None:
        self.root, self.pattern = Path(root), pattern
        self._offsets: dict[str, int] | None = None  # for a plain tar archive
        self._cached: dict[str, bytes] | None = None  # for a compressed archive
        if self.root.is_dir():
            self.sizes = self._index_folder()
            self._kind = "folder"
        elif not self.root.is_file():
            raise DataError(f"{self.root} does not exist: pass the folder or the archive of the data set")
        else:
            self._kind = "archive"
            self.sizes = self._index_archive()
        self.sizes = {name: self.sizes[name] for name in sorted(self.sizes)}

    def __repr__(self) -> str:
        return f"FileCollection({str(self.root)!r}, {len(self.sizes)} files)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}

    def path(self, name: str) -> str:
        """Description of a file for messages."""
        return str(self.root / name) if self._kind == "folder" else f"{name} in {self.root}"

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a file or a part of it."""
        size = self.sizes[name]
        length = size - start if length is None else length
        if self._kind == "archive" and self._offsets is None:
            if self._cached is None:
                self._index_archive()
            assert self._cached is not None
            content = self._cached.get(name, b"")[start : start + length]
        else:
            path, offset = (self.root / name, 0) if self._offsets is None else (self.root, self._offsets[name])
            try:
                with path.open("rb") as file:
                    file.seek(offset + start)
                    content = file.read(length)
            except OSError as error:
                raise DataError(f"{self.path(name)} cannot be read ({error})") from error
        if len(content) != length:
            raise DataError(f"{self.path(name)} is truncated: unpack or download it again")
        return content

    def _index_folder(self) -> dict[str, int]:
        matches, sizes = re.compile(self.pattern).fullmatch, {}
        for folder, _, names in os.walk(self.root):
            relative = Path(folder).relative_to(self.root)
            for file in names:
                name = (relative / file).as_posix()
                if matches(name):
                    sizes[name] = Path(folder, file).stat().st_size
        return sizes

    def _index_archive(self) -> dict[str, int]:
        """Sizes of an archive's files; stores their offsets, or their contents if the archive is compressed."""
        try:
            try:
                with tarfile.open(self.root, "r:") as tar:
                    members = self._matching_members(tar)
                    self._offsets = {name: member.offset_data for name, member in members.items()}
                    return {name: member.size for name, member in members.items()}
            except tarfile.ReadError:
                cached: dict[str, bytes] = {}
                with tarfile.open(self.root, "r|*") as tar:
                    self._matching_members(tar, cached)
                self._cached = cached
                return {name: len(content) for name, content in cached.items()}
        except _READ_ERRORS as error:
            raise DataError(
                f"{self.root} cannot be read as a tar archive ({error}): it is damaged or truncated; download it again"
            ) from error

    def _matching_members(
        self, tar: tarfile.TarFile, cached: dict[str, bytes] | None = None
    ) -> dict[str, tarfile.TarInfo]:
        """Regular files of an archive that match the pattern; stores their contents in ``cached`` if it is given."""
        matches, total, members = re.compile(self.pattern).fullmatch, 0, {}
        for member in tar:
            name = member.name.removeprefix("./")
            if not member.isreg() or member.issparse() or not matches(name):
                continue
            members[name] = member
            if cached is not None:
                total += member.size
                if total > MAX_CACHED_BYTES:
                    raise DataError(
                        f"{self.root} holds more than {MAX_CACHED_BYTES >> 30} GiB, too much to keep in memory: unpack "
                        "it and pass the folder"
                    )
                file = tar.extractfile(member)
                assert file is not None
                cached[name] = file.read()
        return members


def open_files(root: str | Path, pattern: str) -> FileCollection:
    """Matching files of a folder or an archive, or of the only archive in a folder without matching files."""
    files = FileCollection(root, pattern)
    if not files.sizes and files.root.is_dir():
        archives = [p for p in sorted(files.root.iterdir()) if re.search(r"[.](tar([.]\w+)?|tgz|txz)$", p.name)]
        if len(archives) == 1:
            return FileCollection(archives[0], pattern)
    return files
