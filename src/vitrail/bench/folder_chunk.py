"""A chunk of images that one task explains: reads them, writes their maps and rows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail import fast
from vitrail.bench.context import BenchContext
from vitrail.bench.image_contents import CONTENTS, FileVersions, explained_contents, replaced_images
from vitrail.bench.map_store import has_maps, index_schema, write_shard
from vitrail.bench.parts import (
    read_footer,
    write_error,
    write_table,
)
from vitrail.bench.plan import DatasetSpec, ModelSpec, Plan
from vitrail.bench.read_ahead import ReadAhead
from vitrail.data.decoding import ImageDecoder
from vitrail.data.source import Source, SourceItem
from vitrail.errors import InputError, UnreachableError, VitrailError, WeightsError, error_line
from vitrail.pipeline.map_rows import MapRow, explain_rows
from vitrail.targets import from_dict

#: Most processes that decode images for a GPU.
MAX_DECODERS = 8
#: Most images that a thread or process decodes at a time.
MAX_GROUP = 8
#: Versions of the files of chunks that are read ahead, from before they were read.
_VERSIONS: dict[str, FileVersions] = {}


@dataclass(frozen=True)
class FolderChunk:
    """Some images of a source, all methods.

    Attributes:
        source: The source, without its list.
        folder: Folder of the results.
        key: Hash of the source's address and of everything else that decides the maps, except the list of images.
        settings: Model, weights, methods, target and batch, as JSON.
        weights_hash: SHA-256 of the model's weights.
        name: Name of its files, without suffix.
        images: The images.
    """

    source: Source
    folder: str
    key: str
    settings: str = field(repr=False)
    weights_hash: str
    name: str
    images: tuple[SourceItem, ...]

    @property
    def maps(self) -> int:
        """Number of maps it computes, counting one class per image."""
        return len(self.images) * len(json.loads(self.settings)["methods"])

    @property
    def path(self) -> Path:
        """File of its rows."""
        return Path(self.folder) / "parts" / f"{self.name}.parquet"

    @property
    def footer(self) -> dict[str, str]:
        """Footer of its part."""
        listed = "\0".join(f"{item.id} {item.place} {item.error}" for item in self.images)
        images = hashlib.sha256(listed.encode()).hexdigest()
        return {"key": self.key, "part": self.name, "images": images}

    @property
    def is_done(self) -> bool:
        """Whether its files exist, and need not be computed again because a store did not answer."""
        found = read_footer(self.path) or {}
        return {**found, CONTENTS: None} == {**self.footer, CONTENTS: None} and has_maps(self.path, self.footer)

    def remove_replaced(self) -> list[str]:
        """Ids of images that were replaced since they were explained; if there are any, its files are removed."""
        contents, written = (read_footer(self.path) or {}).get(CONTENTS), self.path.stat().st_mtime_ns
        replaced = replaced_images(self.source, self.images, contents, written)
        if replaced:
            try:
                self.path.unlink()
                self.path.with_suffix(".safetensors").unlink()
            except OSError as error:
                raise write_error(error, self.path) from error
        return replaced

    @property
    def reason_missing(self) -> str | None:
        """Why its files cannot be used; None if they can."""
        footer = read_footer(self.path)
        if footer is None:
            return "it was not computed, because the parts before it failed"
        if not (self.footer.items() <= footer.items() and has_maps(self.path, self.footer)):
            return "another run with other settings wrote to the same folder meanwhile: use a folder for each"
        return None

    def prepare(self, device: str) -> None:
        """Begin to read the images, while another chunk is computed, where that does not take cores from the model."""
        if self._reads_ahead(device):
            _VERSIONS[self._reading] = FileVersions.of(self.images)
            size = json.loads(self.settings)["batch"]
            group = gcd(size, MAX_GROUP)
            _image_reader(device).start(self._reading, self._reader(device, group), self._starts(group), size // group)

    def perform(self, device: str) -> Path:
        """Explain the images; write the maps, then the rows."""
        return self.compute(device)()

    def compute(self, device: str) -> Callable[[], Path]:
        """Explain the images; return the function that writes the maps, then the rows."""
        settings = json.loads(self.settings)
        context = open_folder_context(self.settings, device)
        if context.model(0).weights_hash != self.weights_hash:
            raise WeightsError(
                f"{settings['model']} has other weights on this machine than on the one that started the run"
            )
        versions = _VERSIONS.pop(self._reading, None) or FileVersions.of(self.images)
        rows: dict[str, list[Any]] = {name: [] for name in index_schema().names}
        maps: dict[str, list[Tensor]] = {method: [] for method in settings["methods"]}
        unreachable = False
        for start, batch in zip(count(0, settings["batch"]), self._batches(device, settings["batch"]), strict=False):
            names = [item.id for item in self.images[start : start + len(batch.errors)]]
            failed = {n: error for n, error in zip(names, batch.errors, strict=True) if error is not None}
            unreachable |= any(isinstance(error, UnreachableError) for error in failed.values())
            found = [MapRow(n, m, error=error_line(error)) for n, error in failed.items() for m in settings["methods"]]
            model, target = context.model(0), target_from_json(settings["target"])
            if batch.images is not None:
                read, images = [n for n in names if n not in failed], batch.images.to(device, non_blocking=True)
                plane = model.structure.layout.plane
                with fast.unchanged(model.loaded.module):
                    found += explain_rows(model.loaded, read, images, settings["methods"], target, context, plane)
            for row in found:
                add_row(rows, row, self.name, len(maps[row.method]))
                if row.relevance is not None:
                    maps[row.method].append(row.relevance)
        tensors = {method: torch.stack(half).contiguous() for method, half in maps.items() if half}
        # Where a store did not answer, the part counts as missing in the next run, which tries again.
        footer = self.footer | ({"unreachable": "yes"} if unreachable else {})

        def write() -> Path:
            contents = explained_contents(self.source, self.images, versions)
            write_shard(self.path.with_suffix(".safetensors"), tensors, self.footer)
            own = footer if contents is None else footer | {CONTENTS: contents}
            return write_table(self.path, rows, own, index_schema())

        return write

    @property
    def _reading(self) -> str:
        """Name of what is read: the same settings may be used for other images in the same process."""
        return f"{self.key} {hash(self.images)}"

    def _reads_ahead(self, device: str) -> bool:
        return device != "cpu" or "://" in self.images[0].file

    def _batches(self, device: str, size: int) -> Iterator[_ReadImages]:
        if self._reads_ahead(device):
            group = gcd(size, MAX_GROUP)
            read, starts = self._reader(device, group), self._starts(group)
            yield from _image_reader(device).batches(self._reading, read, starts, size // group)
            return
        yield from (_join_images([self._reader(device, size)(start)]) for start in self._starts(size))

    def _starts(self, group: int) -> Sequence[int]:
        """Positions of the first image of each group."""
        return range(0, len(self.images), group)

    def _reader(self, device: str, group: int) -> Callable[[int], list[Tensor | VitrailError]]:
        """A function that reads a group of images of the chunk; one that cannot be read gives the error."""
        preprocess = open_folder_context(self.settings, device).model(0).preprocess
        decode = _decoder() if device != "cpu" else ImageDecoder(0)
        return lambda start: decode(self.source, self.images[start : start + group], preprocess)


class _ReadImages(NamedTuple):
    """Images of a batch that were read, shape (images, channels, height, width), and for each position its error."""

    images: Tensor | None
    errors: list[VitrailError | None]


def _join_images(groups: Sequence[Sequence[Tensor | VitrailError]], pin: bool = False) -> _ReadImages:
    """Join the images of a batch, if wanted in pinned memory, from which a GPU copies beside its computation."""
    items = [item for group in groups for item in group]
    read, joined = [item for item in items if isinstance(item, Tensor)], None
    if read:
        joined = torch.stack(read, out=torch.empty(len(read), *read[0].shape, dtype=read[0].dtype, pin_memory=pin))
    return _ReadImages(joined, [item if isinstance(item, VitrailError) else None for item in items])


@lru_cache(maxsize=2)
def _image_reader(device: str) -> ReadAhead[list[Tensor | VitrailError], _ReadImages]:
    threads = None if device == "cpu" else max(2, _decoder().processes)
    return ReadAhead(partial(_join_images, pin=device.startswith("cuda")), threads)


@lru_cache(maxsize=1)
def _decoder() -> ImageDecoder:
    """Processes that decode for a GPU: its share of the machine's cores."""
    share = (os.cpu_count() or 2) // max(1, torch.cuda.device_count())
    return ImageDecoder(min(MAX_DECODERS, max(1, share - 1)))


def add_row(rows: dict[str, list[Any]], row: MapRow, part: str, offset: int) -> None:
    """Add one row to the columns of a part; without a map its offset is −1."""
    columns = row._asdict() | {"class": row.label, "part": part, "offset": -1 if row.relevance is None else offset}
    for name, column in rows.items():
        column.append(columns.get(name))


def target_from_json(target: Any) -> Any:
    """The target that a manifest states; groups of classes stay texts, which `vitrail.explain` takes."""
    if isinstance(target, list):
        return [target_from_json(entry) for entry in target]
    return from_dict(target) if isinstance(target, dict) else target


@lru_cache(maxsize=2)
def open_folder_context(settings: str, device: str) -> BenchContext:
    """Open the model and methods of a folder as a plan whose data set is not used."""
    chosen = json.loads(settings)
    model = ModelSpec(name=chosen["model"], weights=chosen["weights"], scores=chosen.get("scores"))
    plan = Plan(
        name="folder", models=(model,),
        dataset=(DatasetSpec(name="scenes", limit=1),), methods=tuple(chosen["methods"]), protocols=("complexity",),
        controls=False, batch=chosen["batch"], imports=tuple(chosen.get("imports", ())),
    )  # fmt: skip
    rows = chosen["target"] if isinstance(chosen["target"], list) else []
    flat = [one for row in rows for one in (row if isinstance(row, list) else [row])]
    has_prompts = any(isinstance(one, dict) and one.get("kind") == "prompt" for one in flat)
    context = BenchContext(plan, device, prompts=has_prompts)
    not_applicable = context.model(0).not_applicable
    if not_applicable:
        raise InputError(next(iter(not_applicable.values())))
    return context
