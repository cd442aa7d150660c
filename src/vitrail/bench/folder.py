"""Folders of images, explained with the same machinery: resumable, by any engine, maps in half precision.

Written into a folder of its own::

    manifest.json                what was asked for, with which versions
    parts/part-00000.parquet     rows of the first chunk of images
    parts/part-00000.safetensors its maps: for each method a tensor (rows, grid rows, grid columns), float16
    index.parquet                all rows in one table, once every part is there

Columns of the index: ``image`` (path below the explained folder), ``method``, ``class`` (index, −1 without a map),
``name`` (of the class, if known), ``probability``, ``flat`` (whether the map says nothing), ``part`` (file name),
``offset`` (row of the method's tensor in that file, −1 without a map), ``error`` (why there is no map, else null).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrail.bench.chunk import BenchTask
from vitrail.bench.context import BenchContext
from vitrail.bench.engines.local import Done, LocalEngine
from vitrail.bench.explainer import Explainer, within_memory
from vitrail.bench.parts import arrow, read_note, sweep, told, write_file, write_table
from vitrail.bench.plan import DatasetSpec, ModelSpec, Plan, libraries
from vitrail.capture.inputs import logits_of
from vitrail.errors import DataError, InputError, WeightsError, require
from vitrail.methods import find
from vitrail.models.preprocess import open_image
from vitrail.targets import resolve_target

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")


class Engine(Protocol):
    """Whatever can run pieces of work."""

    def run(self, tasks: Sequence[BenchTask], done: Done = ...) -> None:
        """Do all of them."""


@dataclass(frozen=True)
class FolderChunk:
    """Some images of a folder, all methods.

    Attributes:
        root: The folder of images.
        out: The folder of results.
        key: Hash of all that decides the maps.
        asked: Model, weights, methods, target and batch, as JSON.
        weights: SHA-256 of the model's weights.
        number: Which chunk.
        images: Paths below the root.
    """

    root: str
    out: str
    key: str
    asked: str = field(repr=False)
    weights: str
    number: int
    images: tuple[str, ...]

    @property
    def name(self) -> str:
        """Names its files."""
        return f"part-{self.number:05d}"

    @property
    def maps(self) -> int:
        """How many maps it makes, of one class each."""
        return len(self.images) * len(json.loads(self.asked)["methods"])

    @property
    def path(self) -> Path:
        """Where its rows go."""
        return Path(self.out) / "parts" / f"{self.name}.parquet"

    @property
    def note(self) -> dict[str, str]:
        """What the part's footer says."""
        return {"key": self.key, "part": self.name}

    def perform(self, device: str) -> Path:
        """Explain the images; write the maps, then the rows."""
        from safetensors.torch import save

        asked = json.loads(self.asked)
        stage = _stage(self.asked, device)
        model = stage.model(0)
        if model.weights != self.weights:
            raise WeightsError(f"{asked['model']} has other weights on this machine than where this was begun")
        rows: dict[str, list[Any]] = {name: [] for name in _schema().names}
        grids: dict[str, list[Tensor]] = {method: [] for method in asked["methods"]}
        for start in range(0, len(self.images), asked["batch"]):
            self._batch(stage, asked, self.images[start : start + asked["batch"]], rows, grids)
        tensors = {method: torch.cat(own).contiguous() for method, own in grids.items() if own}
        data = save(tensors, self.note)
        write_file(self.path.with_suffix(".safetensors"), lambda file: file.write(data))
        return write_table(self.path, rows, self.note, _schema())

    def _batch(
        self,
        stage: BenchContext,
        asked: dict[str, Any],
        images: Sequence[str],
        rows: dict[str, list[Any]],
        grids: dict[str, list[Tensor]],
    ) -> None:
        model, methods = stage.model(0), asked["methods"]

        def add(image: str, method: str, kind: int, offset: int, **rest: Any) -> None:
            names = model.about.classes
            known = names[kind] if names and 0 <= kind < len(names) else None
            row = {"image": image, "method": method, "class": kind, "name": known, "part": self.name, "offset": offset}
            for name, column in rows.items():
                column.append((row | rest).get(name))

        ids, prepared = [], []
        for image in images:
            try:
                prepared.append(model.view(open_image(Path(self.root) / image)))
                ids.append(image)
            except InputError as error:
                for method in methods:
                    add(image, method, -1, -1, error=str(error))
        if not ids:
            return
        pictures = torch.stack(prepared).to(stage.device)
        with torch.inference_mode():
            pieces = within_memory(
                stage, lambda n: [logits_of(model.about.module(pictures[i : i + n])) for i in range(0, len(ids), n)]
            )
        logits = torch.cat([p for p in pieces if p is not None]).float().cpu()
        classes = resolve_target(asked["target"], logits, len(ids), model.about.classes).classes
        assert classes is not None
        made, bad = Explainer(stage, model, self.key)(ids, pictures, classes, methods)
        probabilities = logits.softmax(1)
        for method in methods:
            half = made[method].half(model.structure.layout.grid) if method in made else torch.empty(0)
            held = sum(map(len, grids[method]))
            kept = [row for row in range(len(ids)) if (method, row) not in bad]
            if kept:
                grids[method].append(half[kept].flatten(0, 1))
            for row, image in enumerate(ids):
                if (method, row) in bad:
                    add(image, method, -1, -1, error=bad[method, row])
                    continue
                for k, kind in enumerate(classes[row].tolist()):
                    offset = held + kept.index(row) * classes.shape[1] + k
                    told = {"probability": float(probabilities[row, kind]), "flat": bool(made[method].flat[row, k])}
                    add(image, method, kind, offset, **told)


def explain_folder(
    directory: str | Path,
    out: str | Path,
    *,
    recursive: bool = False,
    model: str = "scenes",
    weights: str | None = None,
    methods: Sequence[str] = ("gradtoken",),
    target: Any = None,
    chunk: int = 256,
    batch: int = 32,
    device: str = "cpu",
    engine: Engine | None = None,
    begin: Callable[[Sequence[BenchTask], int], None] = lambda _, __: None,
    done: Done = lambda _: None,
) -> Path:
    """Explain every image of a folder; what is there already is not done again.

    Args:
        directory: The folder of images.
        out: Where the results go.
        recursive: Also the images of folders below.
        model: As `vitrail.load` takes it.
        weights: A weights file, or "random".
        methods: As users type them.
        target: What `vitrail.explain` takes for all images alike: None, "top3", a class.
        chunk: Images in one part.
        batch: Images at a time.
        device: Where to run.
        engine: What runs the parts; one worker by default.
        begin: Called once with the parts to be done and the number of those that are there.
        done: Called with every part that is finished.

    Returns:
        The index.

    Raises:
        DataError: There are no images.
    """
    root, into = Path(directory).resolve(), Path(out).resolve()
    images = _images(root, recursive, into)
    specs = [find(spec)[0] for spec in dict.fromkeys(methods)]
    about = {"model": model, "weights": weights, "methods": specs, "target": target, "batch": batch}
    asked = json.dumps(about)
    loaded = _stage(asked, device).model(0)
    fingerprint = loaded.weights
    if loaded.classes:  # a class that is not there is told now and not by every worker
        resolve_target(target, torch.zeros(1, loaded.classes), 1, loaded.about.classes)
    decides = about | {"weights": fingerprint, "images": images, "chunk": chunk, "versions": libraries()}
    key = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
    tasks = [
        FolderChunk(str(root), str(into), key, asked, fingerprint, i, tuple(images[start : start + chunk]))
        for i, start in enumerate(range(0, len(images), chunk))
    ]
    made_of = {"key": key, "folder": str(root), **about, "images": len(images), "versions": libraries()}
    manifest = json.dumps(made_of, indent=2)
    write_file(into / "manifest.json", lambda file: file.write(f"{manifest}\n".encode()))
    try:
        (into / "parts").mkdir(exist_ok=True)
        sweep(into / "parts")
    except OSError as error:
        raise told(error, into) from error
    missing = [task for task in tasks if not (task.path.is_file() and read_note(task.path) == task.note)]
    begin(missing, len(tasks) - len(missing))
    (engine or LocalEngine(1, device)).run(missing, done)
    pa, pq = arrow(), require("pyarrow.parquet", "bench", "read tables")
    table = pa.concat_tables([pq.read_table(task.path) for task in tasks]).replace_schema_metadata(None)
    return write_file(into / "index.parquet", lambda file: pq.write_table(table, file, compression="zstd"))


def _images(root: Path, recursive: bool, out: Path) -> list[str]:
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    paths = root.rglob("*") if recursive else root.iterdir()
    found = sorted(
        path.relative_to(root).as_posix() for path in paths
        if path.suffix.lower() in SUFFIXES and path.is_file() and not path.is_relative_to(out)
    )  # fmt: skip
    if not found:
        advice = "" if recursive else ": recursive=True (--recursive) looks into folders below"
        raise DataError(f"there are no images in {root}{advice}")
    return found


@lru_cache(maxsize=2)
def _stage(asked: str, device: str) -> BenchContext:
    """The model and methods of a folder as the stage of a plan without data."""
    about = json.loads(asked)
    network = ModelSpec(name=about["model"], weights=about["weights"])
    plan = Plan(
        name="folder", models=(network,), dataset=(DatasetSpec(name="scenes", limit=1),),
        methods=tuple(about["methods"]), protocols=("complexity",), controls=False, batch=about["batch"],
    )  # fmt: skip
    stage = BenchContext(plan, device)
    refused = stage.model(0).refused
    if refused:
        raise InputError(next(iter(refused.values())))
    return stage


def _schema() -> Any:
    pa = arrow()
    kinds = {"class": pa.int32(), "offset": pa.int32(), "probability": pa.float64(), "flat": pa.bool_()}
    names = ("image", "method", "class", "name", "probability", "flat", "part", "offset", "error")
    return pa.schema([(name, kinds.get(name, pa.string())) for name in names])


def read_map(out: str | Path, row: dict[str, Any]) -> Tensor:
    """The map of one row of the index, shape (rows, columns).

    Args:
        out: The folder of results.
        row: As ``polars.read_parquet("index.parquet").row(0, named=True)`` gives it.
    """
    from safetensors import safe_open

    if row["offset"] < 0:
        raise InputError(f"{row['image']} has no map by {row['method']}: {row['error']}")
    with safe_open(str(Path(out) / "parts" / f"{row['part']}.safetensors"), framework="pt") as file:
        found: Tensor = file.get_slice(row["method"])[row["offset"]]
    return found
