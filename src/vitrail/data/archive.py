"""Files by name, in a folder or in a tar archive that stays packed."""

from __future__ import annotations

import lzma
import os
import re
import tarfile
import zlib
from pathlib import Path
from typing import Any

from vitrail.errors import DataError

__all__ = ["Files", "open_files"]

MOST = 2 << 30
"""Bytes of a compressed archive that are kept in memory, at the most."""

_BROKEN = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError)


class Files:
    """The files of a folder or of a tar archive whose names match a pattern.

    Nothing is unpacked to disk. A plain tar is read in place; a compressed one (gz, bz2, xz) allows no jumps, so it is
    run through once and the files that match are kept in memory. No file stays open, and a copy sent to another
    process takes the names along, not the contents.

    Args:
        root: Folder or archive.
        pattern: Regular expression for whole names; folders are divided by "/".

    Attributes:
        sizes: Bytes of each file that matched, by name, in the order of names.

    Raises:
        DataError: There is no such folder or archive, or the archive is damaged.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.txt").write_text("hello"), Path(folder, "b.bin").write_text("")
        ...     files = Files(folder, r".*[.]txt")
        ...     dict(files.sizes), files.read("a.txt"), files.read("a.txt", 1, 3)
        ({'a.txt': 5}, b'hello', b'ell')
    """

    def __init__(self, root: str | Path, pattern: str = ".*") -> None:
        self.root, self.pattern = Path(root), pattern
        self._offsets: dict[str, int] | None = None  # of a plain tar
        self._kept: dict[str, bytes] | None = None  # of a compressed one
        if self.root.is_dir():
            self.sizes = self._walk()
            self._kind = "folder"
        elif not self.root.is_file():
            raise DataError(f"{self.root} does not exist: give the folder or the archive of the data set")
        else:
            self._kind = "archive"
            self.sizes = self._run_through()
        self.sizes = {name: self.sizes[name] for name in sorted(self.sizes)}

    def __repr__(self) -> str:
        return f"Files({str(self.root)!r}, {len(self.sizes)} files)"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def path(self, name: str) -> str:
        """What to call a file in messages."""
        return str(self.root / name) if self._kind == "folder" else f"{name} in {self.root}"

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """A file's bytes, or some of them.

        Args:
            name: One of the names in ``sizes``.
            start: First byte.
            length: How many; None takes the rest.

        Raises:
            DataError: The file cannot be read, or ends too early.
        """
        size = self.sizes[name]
        length = size - start if length is None else length
        if self._kind == "archive" and self._offsets is None:
            if self._kept is None:
                self._run_through()
            assert self._kept is not None
            found = self._kept.get(name, b"")[start : start + length]
        else:
            where, skip = (self.root / name, 0) if self._offsets is None else (self.root, self._offsets[name])
            try:
                with where.open("rb") as file:
                    file.seek(skip + start)
                    found = file.read(length)
            except OSError as error:
                raise DataError(f"{self.path(name)} cannot be read ({error})") from error
        if len(found) != length:
            raise DataError(f"{self.path(name)} ends early: unpack or download it again")
        return found

    def _walk(self) -> dict[str, int]:
        matches, sizes = re.compile(self.pattern).fullmatch, {}
        for folder, _, names in os.walk(self.root):
            inner = Path(folder).relative_to(self.root)
            for file in names:
                name = (inner / file).as_posix()
                if matches(name):
                    sizes[name] = Path(folder, file).stat().st_size
        return sizes

    def _run_through(self) -> dict[str, int]:
        """Sizes of an archive's files; also keeps their places, or their bytes where it is compressed."""
        try:
            try:
                with tarfile.open(self.root, "r:") as tar:
                    members = self._members(tar)
                    self._offsets = {name: member.offset_data for name, member in members.items()}
                    return {name: member.size for name, member in members.items()}
            except tarfile.ReadError:
                kept: dict[str, bytes] = {}
                with tarfile.open(self.root, "r|*") as tar:
                    self._members(tar, kept)
                self._kept = kept
                return {name: len(data) for name, data in kept.items()}
        except _BROKEN as error:
            raise DataError(
                f"{self.root} cannot be read as a tar archive ({error}): it is damaged or cut short; download it again"
            ) from error

    def _members(self, tar: tarfile.TarFile, kept: dict[str, bytes] | None = None) -> dict[str, tarfile.TarInfo]:
        matches, total, found = re.compile(self.pattern).fullmatch, 0, {}
        for member in tar:
            name = member.name.removeprefix("./")
            if not member.isreg() or member.issparse() or not matches(name):
                continue
            found[name] = member
            if kept is not None:
                total += member.size
                if total > MOST:
                    raise DataError(f"{self.root} holds more than fits into memory: unpack it and give the folder")
                file = tar.extractfile(member)
                assert file is not None
                kept[name] = file.read()
        return found


def open_files(root: str | Path, pattern: str) -> Files:
    """The files that match, of a folder or an archive, or of the only archive in a folder that has no such files."""
    files = Files(root, pattern)
    if not files.sizes and files.root.is_dir():
        archives = [p for p in sorted(files.root.iterdir()) if re.search(r"[.](tar([.]\w+)?|tgz|txz)$", p.name)]
        if len(archives) == 1:
            return Files(archives[0], pattern)
    return files
