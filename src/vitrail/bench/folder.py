"""Explain every image of a source, with the engines of the benchmark: resumable, maps in half precision.

The output folder is a store of maps; see `vitrail.bench.map_store`. Beside each file of maps,
``parts/part-00000.parquet`` has the rows of its chunk of images. The index is written once every part exists.
Parts of shards and tables are called after the first image of the file, ``part-1f3a09c2be17-001`` for its second chunk,
so that a file that is added, repaired or removed leaves the parts of the other files valid.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count, groupby, product
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail import fast
from vitrail.bench.context import BenchContext
from vitrail.bench.engines import BenchTask, Engine, LostTasksError, TaskCallback
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.map_store import has_maps, index_schema, open_maps, write_index, write_shard
from vitrail.bench.parts import (
    read_footer,
    remove_stale_files,
    require_pyarrow,
    write_error,
    write_file,
    write_table,
)
from vitrail.bench.plan import DatasetSpec, ModelSpec, Plan, library_versions
from vitrail.bench.read_ahead import ReadAhead
from vitrail.capture.output_tensors import OutputReading
from vitrail.data.addresses import full_address, open_source
from vitrail.data.decoding import ImageDecoder
from vitrail.data.source import Source, SourceItem
from vitrail.data.table_rows import TableSource
from vitrail.errors import DataError, InputError, UnreachableError, VitrailError, WeightsError, error_line, require
from vitrail.inputs.targets import resolve_target
from vitrail.methods import find
from vitrail.methods.plugins import import_modules
from vitrail.models.class_group import ClassGroup
from vitrail.pipeline.explain import DEFAULT
from vitrail.pipeline.map_rows import MapRow, explain_rows
from vitrail.targets import NamedTarget, from_dict
from vitrail.targets.bound_targets import has_named_target

#: Settings in the manifest that decide the maps, in the order of `FolderChunk.settings`.
_SETTINGS = ("model", "weights", "methods", "target", "batch")
#: Most processes that decode images for a GPU.
MAX_DECODERS = 8
#: Most images that a thread or process decodes at a time.
MAX_GROUP = 8


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
        return read_footer(self.path) == self.footer and has_maps(self.path, self.footer)

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
        rows: dict[str, list[Any]] = {name: [] for name in index_schema().names}
        maps: dict[str, list[Tensor]] = {method: [] for method in settings["methods"]}
        unreachable = False
        for start, batch in zip(count(0, settings["batch"]), self._batches(device, settings["batch"]), strict=False):
            names = [item.id for item in self.images[start : start + len(batch.errors)]]
            failed = {n: error for n, error in zip(names, batch.errors, strict=True) if error is not None}
            unreachable |= any(isinstance(error, UnreachableError) for error in failed.values())
            found = [MapRow(n, m, error=error_line(error)) for n, error in failed.items() for m in settings["methods"]]
            model, target = context.model(0), _from_json(settings["target"])
            if batch.images is not None:
                read, images = [n for n in names if n not in failed], batch.images.to(device, non_blocking=True)
                plane = model.structure.layout.plane
                with fast.unchanged(model.loaded.module):
                    found += explain_rows(model.loaded, read, images, settings["methods"], target, context, plane)
            for row in found:
                _add_row(rows, row, self.name, len(maps[row.method]))
                if row.relevance is not None:
                    maps[row.method].append(row.relevance)
        tensors = {method: torch.stack(half).contiguous() for method, half in maps.items() if half}
        # Where a store did not answer, the part counts as missing in the next run, which tries again.
        footer = self.footer | ({"unreachable": "yes"} if unreachable else {})

        def write() -> Path:
            write_shard(self.path.with_suffix(".safetensors"), tensors, self.footer)
            return write_table(self.path, rows, footer, index_schema())

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


def _add_row(rows: dict[str, list[Any]], row: MapRow, part: str, offset: int) -> None:
    columns = row._asdict() | {"class": row.label, "part": part, "offset": -1 if row.relevance is None else offset}
    for name, column in rows.items():
        column.append(columns.get(name))


def split_items(
    items: Sequence[SourceItem], chunk: int, whole_groups: bool = False
) -> Iterator[tuple[str, tuple[SourceItem, ...]]]:
    """Yield the name and images of each part: at most ``chunk`` images, or whole groups of rows of a table.

    Example:
        >>> rows = [SourceItem(f"t/{i}", "t", (i // 3, i % 3)) for i in range(6)] + [SourceItem("u/0", "u", (0, 0))]
        >>> [(name, len(images)) for name, images in split_items(rows, 2, whole_groups=True)]
        [('part-9735c3deaf6b-000', 3), ('part-9735c3deaf6b-001', 3), ('part-620b78dfef90-000', 1)]
        >>> [(name, len(images)) for name, images in split_items([SourceItem(x, x) for x in "abc"], 2)]
        [('part-00000', 2), ('part-00001', 1)]
    """
    if not any(item.place or item.error for item in items):  # whole files
        for number, start in enumerate(range(0, len(items), chunk)):
            yield f"part-{number:05d}", tuple(items[start : start + chunk])
        return
    for _, of_file in groupby(items, key=lambda item: item.file if item.place or item.error else ""):
        number, collected, name = 0, list[SourceItem](), ""
        for item in of_file:
            # A name that does not depend on the other files.
            name = name or f"part-{hashlib.sha256(item.id.encode()).hexdigest()[:12]}"
            same_group = whole_groups and bool(collected) and collected[-1].place[:1] == item.place[:1] != ()
            if len(collected) >= chunk and not same_group:
                yield f"{name}-{number:03d}", tuple(collected)
                number, collected = number + 1, []
            collected.append(item)
        yield f"{name}-{number:03d}", tuple(collected)


def explain_folder(
    directory: str | Path,
    out: str | Path,
    *,
    recursive: bool = False,
    column: str = "",
    split: str = "",
    model: str = "scenes",
    weights: str | None = None,
    methods: Sequence[str] = (DEFAULT,),
    target: Any = None,
    scores: str | None = None,
    chunk: int = 256,
    batch: int = 32,
    imports: Sequence[str] = (),
    device: str = "cpu",
    engine: Engine | None = None,
    begin: Callable[[Sequence[BenchTask], int], None] = lambda _, __: None,
    done: TaskCallback = lambda _: None,
) -> Path:
    """Explain every image of a folder or another source; images explained earlier are skipped and not read.

    Args:
        directory: Folder of the images, or any address that `vitrail.data.open_source` takes.
        out: Folder of the results.
        recursive: Whether to include images in subfolders.
        column: Column of the images in tables.
        split: Split of a Hugging Face data set.
        model: As `vitrail.load` takes it.
        weights: A weights file, or "random".
        methods: Method specs.
        target: As `vitrail.explain` takes it, the same for all images: None, "top3", a class, a group of classes such
            as "tabby|tiger cat", a prompt, a box of a query, or a row of these.
        scores: What turns the model's class scores into probabilities; by default what the model states.
        chunk: Images in one part; a part of a Parquet file holds whole row groups.
        batch: Images in one forward pass.
        imports: Modules that register further methods.
        device: Device of the model.
        engine: Engine that runs the parts. Default: one local worker.
        begin: Called once with the missing parts and the number of finished ones.
        done: Called with every part that is finished.

    Returns:
        Path of the index. Images of parts that could not be computed have the reason as error; the next call tries
        them again.

    Raises:
        DataError: There are no images.
    """
    out = Path(out).resolve()
    listed = {"folder": full_address(directory), "recursive": recursive, "column": column, "split": split}
    source = open_listed(listed, out)
    import_modules(imports)
    specs = [find(spec)[0] for spec in dict.fromkeys(methods)]
    named: dict[str, Any] = {"imports": list(imports)} if imports else {}
    named |= {} if scores is None else {"scores": OutputReading(scores=scores).scores}
    chosen = {
        "model": model, "weights": weights, "methods": specs, "target": _as_json(target), "batch": batch, **named,
    }  # fmt: skip
    settings = json.dumps(chosen)
    opened = open_folder_context(settings, device).model(0)
    if opened.classes and not has_named_target(target):  # reject an unknown class now, not in every worker
        resolve_target(target, torch.zeros(1, opened.classes), 1, opened.loaded.classes)
    source_of = {name: value for name, value in listed.items() if name != "recursive"}
    hashed = chosen | source_of | {"weights": opened.weights_hash, "chunk": chunk, "versions": library_versions()}
    key = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]
    tasks = [
        FolderChunk(source.emptied(), str(out), key, settings, opened.weights_hash, name, images)
        for name, images in split_items(source.items, chunk, isinstance(source, TableSource))
    ]
    recorded = {
        "key": key, **listed, **chosen, "weights_hash": opened.weights_hash, "grid": opened.structure.layout.plane,
        "images": len(source.items), "versions": library_versions(),
    }  # fmt: skip
    manifest = json.dumps(recorded, indent=2)
    write_file(out / "manifest.json", lambda file: file.write(f"{manifest}\n".encode()))
    try:
        (out / "parts").mkdir(exist_ok=True)
        remove_stale_files(out / "parts")
    except OSError as error:
        raise write_error(error, out) from error
    missing = [task for task in tasks if not task.is_done]
    begin(missing, len(tasks) - len(missing))
    lost: Mapping[str, str] = {}
    try:
        (engine or LocalEngine(1, device)).run(missing, done)
    except LostTasksError as error:
        lost = error.reasons
    pa, pq = require_pyarrow(), require("pyarrow.parquet", "bench", "read tables")
    tables = []
    for task in tasks:
        reason = lost.get(task.name) or task.reason_missing
        tables.append(pq.read_table(task.path) if reason is None else _lost_rows(task, reason))
    return write_index(out, pa.concat_tables(tables).replace_schema_metadata(None), recorded)


def _lost_rows(task: FolderChunk, reason: str) -> Any:
    """Rows of a part that could not be computed."""
    rows: dict[str, list[Any]] = {name: [] for name in index_schema().names}
    for item, method in product(task.images, json.loads(task.settings)["methods"]):
        _add_row(rows, MapRow(item.id, method, error=reason), task.name, -1)
    return require_pyarrow().table(rows, index_schema())


def open_listed(manifest: Mapping[str, Any], out: Path) -> Source:
    """Open the source that a manifest names."""
    options = {name: manifest.get(name, default) for name, default in (("column", ""), ("split", ""))}
    recursive = bool(manifest.get("recursive", True))
    return open_source(manifest["folder"], recursive=recursive, exclude=str(out), **options)


def read_map(out: str | Path, row: dict[str, Any]) -> Tensor:
    """Read the map of one row of the index, shape (rows, columns).

    Args:
        out: Folder of the results.
        row: As ``polars.read_parquet("index.parquet").row(0, named=True)`` returns it.
    """
    return open_maps(out).read({"target": None} | row)


def read_manifest(out: str | Path) -> dict[str, Any]:
    """Read the manifest of an explained folder: key, folder, model, weights, methods, target, number of images.

    Raises:
        DataError: There is none.
    """
    path = Path(out) / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): pass the --out folder of `vitrail explain DIR`") from error
    if not isinstance(manifest, dict) or not {"key", "folder", *_SETTINGS} <= set(manifest):
        raise DataError(f"{path} is not the manifest of a folder: pass the --out folder of `vitrail explain DIR`")
    return manifest


def folder_settings(manifest: Mapping[str, Any]) -> str:
    """Settings of a folder's chunks, from its manifest."""
    return json.dumps({name: manifest[name] for name in (*_SETTINGS, "imports") if name in manifest})


def _as_json(target: Any) -> Any:
    """A target with its groups as texts, such as "281|282", and prompts and boxes as dicts."""
    if isinstance(target, list | tuple):
        return [_as_json(entry) for entry in target]
    if isinstance(target, NamedTarget):
        return target.to_dict()
    return target.text if isinstance(target, ClassGroup) else target


def _from_json(target: Any) -> Any:
    """The inverse of `_as_json`; groups of classes stay texts, which `vitrail.explain` takes."""
    if isinstance(target, list):
        return [_from_json(entry) for entry in target]
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
