"""Explain every image of a source, with the engines of the benchmark: resumable, maps in half precision.

The output folder is a store of maps; see `vitrail.bench.map_store`. Beside each file of maps,
``parts/part-00000.parquet`` has the rows of its chunk of images. The index is written once every part exists.
Parts of shards and tables are called after the first image of the file, ``part-1f3a09c2be17-001`` for its second chunk,
so that a file that is added, repaired or removed leaves the parts of the other files valid.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.bench.engines import BenchTask, Engine, LostTasksError, TaskCallback
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.folder_chunk import FolderChunk, add_row, open_folder_context
from vitrail.bench.map_store import index_schema, open_maps, write_index
from vitrail.bench.parts import (
    remove_stale_files,
    require_pyarrow,
    write_error,
    write_file,
)
from vitrail.bench.plan import library_versions
from vitrail.capture.output_tensors import OutputReading
from vitrail.data.addresses import full_address, open_source
from vitrail.data.source import Source, SourceItem
from vitrail.data.table_rows import TableSource
from vitrail.errors import DataError, require
from vitrail.inputs.targets import resolve_target
from vitrail.methods import find
from vitrail.methods.plugins import import_modules
from vitrail.models.class_group import ClassGroup
from vitrail.pipeline.explain import DEFAULT
from vitrail.pipeline.map_rows import MapRow
from vitrail.targets import NamedTarget
from vitrail.targets.bound_targets import has_named_target

#: Settings in the manifest that decide the maps, in the order of `FolderChunk.settings`.
_SETTINGS = ("model", "weights", "methods", "target", "batch")


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
    replaced: Callable[[Sequence[str]], None] = lambda _: None,
) -> Path:
    """Explain every image of a folder or another source; images explained earlier are skipped and not read.

    Images whose file was replaced since are explained again, with the other images of their part. Files with the size
    and time of the explained ones count as the same; others are compared by content. Files of stores are not compared.

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
        replaced: Called once with the ids of the images that were replaced, if there are any.

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
    missing, changed = [], list[str]()
    for task in tasks:
        found = task.remove_replaced() if task.is_done else None
        changed += found or []
        if found is None or found:
            missing.append(task)
    if changed:
        replaced(changed)
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
        add_row(rows, MapRow(item.id, method, error=reason), task.name, -1)
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
