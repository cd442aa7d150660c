"""Explain every image of a folder, with the engines of the benchmark: resumable, maps in half precision.

The output folder is a store of maps; see `vitrail.bench.map_store`. Beside each file of maps,
``parts/part-00000.parquet`` has the rows of its chunk of images. The index is written once every part exists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.bench.context import BenchContext
from vitrail.bench.engines import BenchTask, Engine, TaskCallback
from vitrail.bench.engines.local import LocalEngine
from vitrail.bench.explainer import error_line, to_half
from vitrail.bench.map_store import has_maps, index_schema, open_maps, write_index, write_shard
from vitrail.bench.memory import shrink_batch_to_fit
from vitrail.bench.parts import (
    read_footer,
    remove_stale_files,
    require_pyarrow,
    write_error,
    write_file,
    write_table,
)
from vitrail.bench.plan import DatasetSpec, ModelSpec, Plan, library_versions
from vitrail.capture.output_tensors import OutputReading
from vitrail.errors import DataError, InputError, WeightsError, require
from vitrail.inputs.targets import resolve_target
from vitrail.methods import find
from vitrail.methods.plugins import import_modules
from vitrail.models.class_group import ClassGroup
from vitrail.models.preprocess import open_image
from vitrail.pipeline.explain import DEFAULT, explain
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.targets import NamedTarget, from_dict
from vitrail.targets.bound_targets import has_named_target

#: Settings in the manifest that decide the maps, in the order of `FolderChunk.settings`.
_SETTINGS = ("model", "weights", "methods", "target", "batch")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")


@dataclass(frozen=True)
class FolderChunk:
    """Some images of a folder, all methods.

    Attributes:
        root: Folder of the images.
        out: Folder of the results.
        key: Hash of everything that decides the maps.
        settings: Model, weights, methods, target and batch, as JSON.
        weights_hash: SHA-256 of the model's weights.
        number: Number of the chunk.
        images: Paths below the root.
    """

    root: str
    out: str
    key: str
    settings: str = field(repr=False)
    weights_hash: str
    number: int
    images: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of its files, without suffix."""
        return f"part-{self.number:05d}"

    @property
    def maps(self) -> int:
        """Number of maps it computes, counting one class per image."""
        return len(self.images) * len(json.loads(self.settings)["methods"])

    @property
    def path(self) -> Path:
        """File of its rows."""
        return Path(self.out) / "parts" / f"{self.name}.parquet"

    @property
    def footer(self) -> dict[str, str]:
        """Footer of its part."""
        return {"key": self.key, "part": self.name}

    def prepare(self, device: str) -> None:
        """Nothing is read ahead: these images are read with their batch."""

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
        for start in range(0, len(self.images), settings["batch"]):
            self._explain_batch(context, settings, self.images[start : start + settings["batch"]], rows, maps)
        tensors = {method: torch.cat(half) for method, half in maps.items() if half}

        def write() -> Path:
            write_shard(self.path.with_suffix(".safetensors"), tensors, self.footer)
            return write_table(self.path, rows, self.footer, index_schema())

        return write

    def _explain_batch(
        self,
        context: BenchContext,
        settings: dict[str, Any],
        names: Sequence[str],
        rows: dict[str, list[Any]],
        maps: dict[str, list[Tensor]],
    ) -> None:
        model, methods = context.model(0), settings["methods"]

        def add_row(image: str, method: str, label: int = -1, offset: int = -1, **columns: Any) -> None:
            row = {"image": image, "method": method, "class": label, "part": self.name, "offset": offset, **columns}
            for name, column in rows.items():
                column.append(row.get(name))

        prepared: dict[str, Tensor] = {}
        for image in names:
            try:
                prepared[image] = model.preprocess(open_image(Path(self.root) / image))
            except InputError as error:
                for method in methods:
                    add_row(image, method, error=str(error))

        def explain_images(specs: Sequence[str], images: Sequence[str]) -> Explanations:
            inputs = torch.stack([prepared[image] for image in images]).to(context.device)
            target = _from_json(settings["target"])
            return shrink_batch_to_fit(
                context, lambda n: explain(model.loaded, inputs, methods=specs, target=target, batch_size=n)
            )

        for method, images, e in _explain_or_errors(explain_images, methods, tuple(prepared)):
            if isinstance(e, str):
                add_row(images[0], method, error=e)
                continue
            offset, count = sum(map(len, maps[method])), e.maps.shape[1]
            maps[method].append(to_half(e.grid, e.signed, model.structure.layout.plane).flatten(0, 1))
            for i, k in product(range(len(images)), range(count)):
                add_row(
                    images[i], method, -1 if e.targets is None else int(e.targets[i, k]), offset + i * count + k,
                    name=_class_name(e, i, k),
                    probability=None if e.probabilities is None else float(e.probabilities[i, k]),
                    flat=bool(e.constant[i, k]),
                )  # fmt: skip


def _explain_or_errors(
    explain_images: Callable[[Sequence[str], Sequence[str]], Explanations],
    methods: Sequence[str],
    images: Sequence[str],
) -> Iterator[tuple[str, Sequence[str], Explanation | str]]:
    """Explain images; if that fails, try methods and then images one by one, and give the error of one image."""
    if not images:
        return
    try:
        explanations = explain_images(methods, images)
    except Exception as error:  # noqa: BLE001 - a failure of one image becomes a row of the results
        if len(methods) == len(images) == 1:
            yield methods[0], images, error_line(error)
            return
        singles = [([m], images) for m in methods] if len(methods) > 1 else [(methods, [image]) for image in images]
        for some_methods, some_images in singles:
            yield from _explain_or_errors(explain_images, some_methods, some_images)
    else:
        yield from ((method, images, e) for method, e in explanations.items())


def _class_name(e: Explanation, image: int, k: int) -> str | None:
    """Name of a class with all its synonyms, of a group of classes, a prompt or a box; None if it is unknown."""
    if e.named_targets is not None:
        return e.target_name(image, k)
    index = -1 if e.targets is None else int(e.targets[image, k])
    if e.classes is None or not 0 <= index < len(e.classes):
        return e.target_name(image, k) if e.groups else None
    return e.classes[index]


def explain_folder(
    directory: str | Path,
    out: str | Path,
    *,
    recursive: bool = False,
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
    """Explain every image of a folder; images explained earlier are skipped.

    Args:
        directory: Folder of the images.
        out: Folder of the results.
        recursive: Whether to include images in subfolders.
        model: As `vitrail.load` takes it.
        weights: A weights file, or "random".
        methods: Method specs.
        target: As `vitrail.explain` takes it, the same for all images: None, "top3", a class, a group of classes such
            as "tabby|tiger cat", a prompt, a box of a query, or a row of these.
        scores: What turns the model's class scores into probabilities; by default what the model states.
        chunk: Images in one part.
        batch: Images in one forward pass.
        imports: Modules that register further methods.
        device: Device of the model.
        engine: Engine that runs the parts. Default: one local worker.
        begin: Called once with the missing parts and the number of finished ones.
        done: Called with every part that is finished.

    Returns:
        Path of the index.

    Raises:
        DataError: There are no images.
    """
    root, out = Path(directory).resolve(), Path(out).resolve()
    images = _list_images(root, recursive, out)
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
    hashed = chosen | {
        "weights": opened.weights_hash, "images": images, "chunk": chunk, "versions": library_versions(),
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]
    tasks = [
        FolderChunk(str(root), str(out), key, settings, opened.weights_hash, i, tuple(images[start : start + chunk]))
        for i, start in enumerate(range(0, len(images), chunk))
    ]
    recorded = {
        "key": key, "folder": str(root), **chosen, "weights_hash": opened.weights_hash,
        "grid": opened.structure.layout.plane, "images": len(images), "versions": library_versions(),
    }  # fmt: skip
    manifest = json.dumps(recorded, indent=2)
    write_file(out / "manifest.json", lambda file: file.write(f"{manifest}\n".encode()))
    try:
        (out / "parts").mkdir(exist_ok=True)
        remove_stale_files(out / "parts")
    except OSError as error:
        raise write_error(error, out) from error
    missing = [task for task in tasks if not (read_footer(task.path) == task.footer and has_maps(task.path))]
    begin(missing, len(tasks) - len(missing))
    (engine or LocalEngine(1, device)).run(missing, done)
    pa, pq = require_pyarrow(), require("pyarrow.parquet", "bench", "read tables")
    table = pa.concat_tables([pq.read_table(task.path) for task in tasks]).replace_schema_metadata(None)
    return write_index(out, table, recorded)


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


def _list_images(root: Path, recursive: bool, out: Path) -> list[str]:
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    paths = root.rglob("*") if recursive else root.iterdir()
    images = sorted(
        path.relative_to(root).as_posix() for path in paths
        if path.suffix.lower() in SUFFIXES and path.is_file() and not path.is_relative_to(out)
    )  # fmt: skip
    if not images:
        advice = "" if recursive else "; recursive=True (--recursive) includes subfolders"
        raise DataError(f"there are no images in {root}{advice}")
    return images


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
