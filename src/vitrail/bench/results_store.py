"""The folder of a run: its files, its missing parts, and one table of all results.

A run is the folder ``runs/<key>/``. The key is a hash of everything that decides the numbers::

    plan.toml                         the plan as it was given
    manifest.json                     versions, device, weights, methods that do not apply and why, number of parts
    parts/part-m0-d0-c00000-g00.parquet       model 0, data set 0, chunk 0, group 0
    parts/part-m0-d0-c00000-g00.safetensors   maps, if the plan sets ``keep_maps``
    results.parquet, results.csv, costs.parquet   written by `ResultsStore.export` once all parts exist
    index.parquet                             index of the maps, if the plan sets ``keep_maps``; written with them

A part is done when its file exists under its final name and its footer (metadata key ``vitrail``, JSON) has the run's
key. To resume a run, list the folder; there is no other record of finished work.

**Columns of parts and of `ResultsStore.merge`.** A row is one score of one map.

=================  ============  =================================================================================
model              string        name of the model, or its label in the plan
dataset            string        name of the data set, or its label in the plan
image              string        id of the image or text; "" in rows of methods that do not apply to a model
method             string        spec as in the plan, without blanks
target             string        explained class: ``predicted``, ``label``; ``things`` for protocols that explain each
                                 object of an image
protocol           string        name of a preset or protocol; ``explain`` for rows about the map itself
score              string        for presets a name of ``Preset.scores``; for others a column of their accumulator
                                 (``true/0`` … for several values); for ``explain``: ``probability`` of the explained
                                 class and ``flat`` (whether the map is constant); "" in rows with an error
value              float64       NaN where the score is undefined; null in rows with an error
explained          int32         index of the explained class, −1 for ``things`` or where there is none
error              string        reason why there is no score, else null
seconds            float64       in rows of ``explain`` the time of the map, in others the time of scoring it: the
                                 image's share, equal in all rows of one image, method, target and protocol
forwards           float64       images the model evaluated for that, shared in the same way
memory             float64       in rows of ``explain``: peak memory in bytes while the image's batch was explained, see
                                 `vitrail.pipeline.memory`; methods that share a pass share it; else null
removed            list<int32>   perturbation curves: pixels (or patches) removed at each level, else null
logp_predicted     list<float>   log-probability of the predicted class at each level
logp_label         list<float>   log-probability of the label, NaN where there is none
winner             list<int32>   class with the largest probability
logp_first         list<float>   largest log-probability
logp_second        list<float>   second largest log-probability
=================  ============  =================================================================================

The first seven columns identify a row, and tables are sorted by them. ``results.parquet`` has every column except
``seconds``, ``forwards`` and ``memory``, so that two runs of one plan give the same bytes, whatever the engine, the
number of workers and the number of interruptions. (Exception: a batch that was halved for lack of memory may change the
last bits.) ``results.csv`` also leaves out the curves. ``costs.parquet`` has the identifying columns without ``score``,
and the three cost columns.

**Maps.** A run with ``keep_maps`` is a store of maps, which `vitrail.open_maps` opens once the run is finished: see
`vitrail.bench.map_store`. A safetensors file holds, for each ``method/target``, a tensor of shape (images, rows,
columns) in half precision, each map scaled to [0, 1] or [-1, 1]. Its metadata holds the ids of the images, as JSON
under ``images``. Unreadable images are not among them; a map that could not be computed is NaN.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitrail.bench.chunk import Chunk, make_chunks
from vitrail.bench.context import BenchContext
from vitrail.bench.map_store import has_maps, open_shard, write_index
from vitrail.bench.parts import (
    COSTS,
    CURVES,
    EXPLAIN,
    KEYS,
    read_footer,
    remove_stale_files,
    write_error,
    write_file,
)
from vitrail.bench.plan import library_versions
from vitrail.bench.protocols import protocol_targets
from vitrail.errors import DataError, require
from vitrail.pipeline.provenance import versions

if TYPE_CHECKING:
    import polars as pl

#: Files of the table of a run whose other parts were lost; the whole table replaces them.
PARTIAL = ("partial_results.parquet", "partial_results.csv")


class ResultsStore:
    """A run on disk.

    Args:
        folder: Folder of the run.
        context: The opened plan.
        device: Device of the workers, if it is not the context's.
    """

    def __init__(self, folder: Path, context: BenchContext, device: str | None = None) -> None:
        self.folder, self.context, self.device = folder, context, device or context.device
        self.chunks: list[Chunk] = make_chunks(context, folder.resolve())

    @classmethod
    def create(
        cls, context: BenchContext, out: Path, text: str, fresh: bool = False, device: str | None = None
    ) -> ResultsStore:
        """Create the folder of a plan's run below ``out``, or open it if it exists.

        Args:
            context: The opened plan.
            out: Folder of all runs.
            text: The plan as it was given.
            fresh: Delete the parts that exist.
            device: Device of the workers, if it is not the context's.
        """
        store = cls(out / context.key, context, device)
        write_file(store.folder / "plan.toml", lambda file: file.write(text.encode()))
        manifest = json.dumps(store.manifest(), indent=2, ensure_ascii=False)
        write_file(store.folder / "manifest.json", lambda file: file.write(f"{manifest}\n".encode()))
        parts = store.folder / "parts"
        try:
            parts.mkdir(exist_ok=True)
            remove_stale_files(parts)
            for path in parts.iterdir() if fresh else ():
                path.unlink()
        except OSError as error:
            raise write_error(error, parts) from error
        return store

    def manifest(self) -> dict[str, Any]:
        """Return what the numbers depend on, and which methods do not apply to which model."""
        plan, context = self.context.plan, self.context
        models = [(spec.title, context.any_model(i)) for i, spec in enumerate(plan.models)]
        return {
            "key": context.key,
            "plan": plan.model_dump(mode="json"),
            "methods": list(plan.specs()),
            "versions": library_versions() | versions(),
            "device": self.device,
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "machine": platform.machine(),
            "weights": {title: model.weights_hash for title, model in models},
            "images": {spec.title: len(context.images(i).ids) for i, spec in enumerate(plan.dataset)},
            "refused": {title: model.not_applicable for title, model in models},
            "parts": len(self.chunks),
        }

    def done(self, chunk: Chunk) -> bool:
        """Whether a chunk's part exists and belongs to this run, with its maps if the plan keeps them."""
        footer = read_footer(chunk.path)
        complete = footer is not None and chunk.footer.items() <= footer.items()
        return complete and (not self.context.plan.keep_maps or has_maps(chunk.path, chunk.footer))

    def missing(self) -> list[Chunk]:
        """Return the chunks that are not done."""
        return [chunk for chunk in self.chunks if not self.done(chunk)]

    def to_compute(self) -> list[Chunk]:
        """Return the chunks that are not done, and those with images of a store that did not answer."""
        return [
            chunk for chunk in self.chunks
            if not self.done(chunk) or (read_footer(chunk.path) or {}).get("unreachable")
        ]  # fmt: skip

    def merge(self, *, partial: bool = False) -> pl.DataFrame:
        """Return all parts as one table, sorted by the columns that identify a row.

        Args:
            partial: Leave out missing parts instead of raising an error; one at least must be done.

        Raises:
            DataError: A part is missing, or a row exists twice.
        """
        require("polars", "bench", "read tables")
        import polars as pl

        chunks = [chunk for chunk in self.chunks if self.done(chunk)]
        missing = len(self.chunks) - len(chunks)
        if missing and not (partial and chunks):
            raise DataError(f"{missing} of {len(self.chunks)} parts of {self.folder} are missing: run the plan again")
        paths = [chunk.path for chunk in chunks]
        schema = pl.read_parquet(paths[0]).schema
        table = pl.concat([pl.read_parquet(path) for path in paths] + self._not_applicable_rows(schema))
        table = table.sort(KEYS)
        duplicates = table.filter(table.select(KEYS).is_duplicated())
        if len(duplicates):
            first = duplicates.row(0)[: len(KEYS)]
            raise DataError(f"{len(duplicates)} rows of {self.folder} are duplicates, for example {first}")
        self._check_complete(table, chunks)
        return table

    def _check_complete(self, table: pl.DataFrame, chunks: Sequence[Chunk]) -> None:
        """Raise an error unless every model, data set, image, method, target and protocol of some chunks has a row."""
        import polars as pl

        plan = self.context.plan
        each = [
            len(plan.targets) + len(protocol_targets(plan.protocols_of(data), plan.targets)) for data in plan.dataset
        ]
        count = table.filter(pl.col("image") != "").select(*KEYS[:6]).n_unique()
        expected = sum(chunk.maps * each[chunk.dataset] for chunk in chunks)
        if count != expected:
            raise DataError(f"{self.folder} has {count} results, expected {expected}: run the plan again with --fresh")

    def _not_applicable_rows(self, schema: Any) -> list[pl.DataFrame]:
        """Return one row for each method that does not apply to a model."""
        import polars as pl

        rows = []
        for i, spec in enumerate(self.context.plan.models):
            for method, reason in self.context.any_model(i).not_applicable.items():
                keys = (spec.title, "", "", method, "", EXPLAIN, "")
                rows.append(dict(zip(KEYS, keys, strict=True)) | {"explained": -1, "error": reason})
        return [pl.DataFrame(rows, schema=schema)] if rows else []

    def export(self) -> tuple[Path, Path, Path]:
        """Write the merged table: results.parquet, results.csv and costs.parquet.

        The first two have the same bytes for every run of a plan with the same libraries on the same kind of machine.
        """
        table = self.merge()
        results = table.drop(COSTS)
        costs = table.select(*(name for name in KEYS if name != "score"), *COSTS).unique(maintain_order=True)
        paths = tuple(self.folder / name for name in ("results.parquet", "results.csv", "costs.parquet"))
        write_file(paths[0], lambda file: results.write_parquet(file, compression="zstd"))
        write_file(paths[1], lambda file: results.drop(CURVES).write_csv(file))
        write_file(paths[2], lambda file: costs.write_parquet(file, compression="zstd"))
        if self.context.plan.keep_maps:
            write_index(self.folder, self._map_rows(table).to_arrow(), self.manifest())
        for name in PARTIAL:
            (self.folder / name).unlink(missing_ok=True)
        return paths[0], paths[1], paths[2]

    def export_partial(self) -> list[Path]:
        """Write the table of the parts that are done, under names of its own; nothing where no part is done."""
        if len(self.missing()) == len(self.chunks):
            return []
        results = self.merge(partial=True).drop(COSTS)
        paths = [self.folder / name for name in PARTIAL]
        write_file(paths[0], lambda file: results.write_parquet(file, compression="zstd"))
        write_file(paths[1], lambda file: results.drop(CURVES).write_csv(file))
        return paths

    def _map_rows(self, table: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of the index of maps: class, probability and errors of the table, and where each map is."""
        import polars as pl

        plan, keys = self.context.plan, list(KEYS[:5])
        score = {name: pl.col("value").filter(pl.col("score") == name).first() for name in ("probability", "flat")}
        rows = table.filter(pl.col("protocol") == EXPLAIN, pl.col("image") != "").group_by(keys).agg(
            pl.col("explained").first().alias("class"), pl.col("error").first(),
            score["probability"].alias("probability"), (score["flat"] > 0).alias("flat"),
        )  # fmt: skip
        places = []
        for chunk in self.chunks:
            ids = json.loads(open_shard(chunk.path.with_suffix(".safetensors")).metadata()["images"])
            owner = {"model": plan.models[chunk.model].title, "dataset": plan.dataset[chunk.dataset].title}
            places += [
                owner | {"image": image, "method": method, "part": chunk.name, "offset": offset}
                for method in chunk.methods for offset, image in enumerate(ids)
            ]  # fmt: skip
        classes = {spec.title: self.context.any_model(k).loaded.classes or () for k, spec in enumerate(plan.models)}
        names = [{"model": m, "class": i, "name": name} for m, own in classes.items() for i, name in enumerate(own)]
        joined = rows.join(pl.DataFrame(places), on=keys[:4], how="left")
        named = pl.DataFrame(names, schema={"model": pl.String, "class": pl.Int32, "name": pl.String})
        offset = pl.when(pl.col("error").is_null()).then(pl.col("offset")).otherwise(None).fill_null(-1)
        return joined.join(named, on=["model", "class"], how="left").with_columns(offset.alias("offset"))
