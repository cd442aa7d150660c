"""Images in tar archives, as WebDataset writes them, read in place."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from vitrail.data.source import (
    IMAGE_SUFFIXES,
    FileSource,
    SourceItem,
    file_system,
    keep_list,
    name_store_errors,
    read_bytes,
)
from vitrail.errors import DataError

__all__ = ["TarSource", "list_shard"]


@dataclass(frozen=True)
class TarSource(FileSource):
    """Images in tar archives. Each is read by its position; nothing is unpacked."""

    def _read(self, item: SourceItem) -> bytes:
        start, size = item.place
        content = read_bytes(item.file, start, size)
        if len(content) != size:
            raise DataError(f"{item.id} is truncated in {item.file}: write or download the archive again")
        return content


def list_shard(address: str, name: str) -> list[SourceItem]:
    """List the images of an archive; a file ``.cls`` with the same key holds the label.

    A key is the name up to the first dot of its last component, as in WebDataset.

    Args:
        address: Address of the archive.
        name: What ids of its images begin with.
    """
    return keep_list(address, name, "", lambda: _list_members(address, name))


def _list_members(address: str, name: str) -> Iterator[SourceItem]:
    if not address.lower().endswith(".tar"):
        raise DataError(f"{address} is compressed, and its images cannot be read by position: write it as .tar")
    items: list[SourceItem] = []
    labels: dict[str, int] = {}
    failure: DataError | None = None
    try:
        system, path = file_system(address)
        with name_store_errors(address), system.open(path, "rb") as stream, tarfile.open(None, "r:", stream) as tar:
            for member in tar:
                member_name = member.name.removeprefix("./")
                if member.isreg() and member_name.lower().endswith(IMAGE_SUFFIXES):
                    items.append(SourceItem(member_name, address, (member.offset_data, member.size)))
                elif member_name.endswith(".cls") and (file := tar.extractfile(member)) is not None:
                    with suppress(ValueError):  # the name of a class is no index
                        labels[_key(member_name)] = int(file.read())
            # An invalid header beyond the first one ends the iteration without an error.
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise DataError(f"{address} is damaged at byte {tar.offset:,}: write or download it again")
    except DataError as error:
        failure = error
    for item in items:  # the label may follow its image
        yield item._replace(id=f"{name}/{item.id}", label=labels.get(_key(item.id)))
    if failure is not None:
        raise failure


def _key(member: str) -> str:
    """Name of a member up to the first dot of its last component."""
    folder, slash, file = member.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"
