"""The run folder: what is written where, what is still missing, and one table of it all.

A run is the folder ``runs/<key>/``, the key being a hash of all that decides the numbers::

    plan.toml                         the plan as it was given
    manifest.json                     versions, device, weights, methods that do not apply and why, number of parts
    parts/part-m0-d0-c00000-g00.parquet       model 0, data set 0, chunk 0, group 0
    parts/part-m0-d0-c00000-g00.safetensors   maps, where ``keep_maps`` is set
    results.parquet, results.csv, costs.parquet   made by `Store.export` once all parts are there

A part is done when its file is there under its final name and its footer (metadata key ``vitrail``, JSON) has the run's
key. Resuming is listing the folder. Nothing else is kept about what was done.

**Columns of parts and of `Store.merge`.** A row is one score of one map.

=================  ============  =================================================================================
model              string        name of the model, or its label in the plan
dataset            string        name of the data set, or its label in the plan
image              string        id of the picture; "" in rows of methods that do not apply to a model
method             string        as it was typed, blanks left out
target             string        whose class the map explains: ``predicted``, ``label``; ``things`` for selectivity,
                                 which takes a map of each of two classes
protocol           string        a preset's or protocol's name; ``explain`` for what is known of the map itself
score              string        of presets as ``Preset.scores`` names them; of others the columns of their
                                 `SampleScores` (``true/0`` … for rows of values); of ``explain``: ``probability`` of
                                 the explained class and ``flat``; "" in rows that say why there is no score
value              float64       NaN where the score is undefined; null in rows with an error
explained          int32         the explained class, −1 for ``things`` or where there is none
error              string        why there is no score, else null
seconds            float64       in rows of ``explain`` the time of the map, in others that of scoring it; a picture's
                                 share, the same in all rows of one image, method, target and protocol
forwards           float64       pictures the model was shown for that, shares as above
memory             float64       in rows of ``explain``: bytes held at the most while the picture's batch was explained,
                                 see `vitrail.bench.peak`; methods of one pass have it in common; else null
removed            list<int32>   perturbation curves: pixels (or patches) removed at each level, else null
logp_predicted     list<float>   log-probability of the predicted class at each level
logp_label         list<float>   of the label, NaN where there is none
winner             list<int32>   the class that won
logp_first         list<float>   the largest log-probability
logp_second        list<float>   the second largest
=================  ============  =================================================================================

The first seven columns name a row: no two agree in all of them, and tables are sorted by them. ``results.parquet`` has
every column but ``seconds``, ``forwards`` and ``memory``, so that two runs of one plan give the same bytes, whatever
the engine, the number of workers, and how often they were killed (but a batch halved for want of memory may change the
last bits); ``results.csv`` leaves out the curves as well. ``costs.parquet`` has the naming columns without ``score``,
and the three left out.

**Maps.** A safetensors file holds, for each ``method/target``, a tensor of shape (images, rows, columns) in half
precision, each map scaled to [0, 1] or [-1, 1]; the ids of the images are in its metadata, as JSON under ``images``. A
picture that could not be read is not among them; a map that could not be made is NaN.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from vitrail.bench.chunk import Chunk, chunks
from vitrail.bench.context import BenchContext
from vitrail.bench.parts import COSTS, CURVES, KEYS, read_note, sweep, told, write_file
from vitrail.bench.plan import Plan, libraries
from vitrail.bench.protocols import pairs
from vitrail.errors import DataError, require
from vitrail.explanation import versions
from vitrail.scores.statistics import SampleScores

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T", bound=SampleScores)


class ResultsStore:
    """A run on disk.

    Args:
        folder: The run's folder.
        stage: The opened plan.
        device: Where workers run, if that is not where the stage is.
    """

    def __init__(self, folder: Path, stage: BenchContext, device: str | None = None) -> None:
        self.folder, self.stage, self.device = folder, stage, device or stage.device
        self.chunks: list[Chunk] = chunks(stage, folder.resolve())

    @classmethod
    def create(
        cls, stage: BenchContext, out: Path, text: str, fresh: bool = False, device: str | None = None
    ) -> ResultsStore:
        """The folder of a plan below ``out``: made if it is not there, gone on with if it is.

        Args:
            stage: The opened plan.
            out: The folder of all runs.
            text: The plan as it was given.
            fresh: Forget the parts that are there.
            device: Where workers run, if that is not where the stage is.
        """
        store = cls(out / stage.key, stage, device)
        write_file(store.folder / "plan.toml", lambda file: file.write(text.encode()))
        manifest = json.dumps(store.manifest(), indent=2, ensure_ascii=False)
        write_file(store.folder / "manifest.json", lambda file: file.write(f"{manifest}\n".encode()))
        parts = store.folder / "parts"
        try:
            parts.mkdir(exist_ok=True)
            sweep(parts)
            for path in parts.iterdir() if fresh else ():
                path.unlink()
        except OSError as error:
            raise told(error, parts) from error
        return store

    def manifest(self) -> dict[str, Any]:
        """What the numbers depend on, and which methods do not apply to which model."""
        plan, stage = self.stage.plan, self.stage
        models = [(network.title, stage.model(i)) for i, network in enumerate(plan.models)]
        return {
            "key": stage.key,
            "plan": plan.model_dump(mode="json"),
            "methods": list(plan.specs()),
            "versions": libraries() | versions(),
            "device": self.device,
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
            "machine": platform.machine(),
            "weights": {title: model.weights for title, model in models},
            "images": {data.title: len(stage.pictures(i).ids) for i, data in enumerate(plan.dataset)},
            "refused": {title: model.refused for title, model in models},
            "parts": len(self.chunks),
        }

    # -- what is there ---------------------------------------------------------------------------------------------

    def done(self, chunk: Chunk) -> bool:
        """Whether a chunk's part is there and belongs to this run."""
        return chunk.path.is_file() and read_note(chunk.path) == chunk.note

    def missing(self) -> list[Chunk]:
        """The chunks that are still to be done."""
        return [chunk for chunk in self.chunks if not self.done(chunk)]

    # -- tables ----------------------------------------------------------------------------------------------------

    def merge(self) -> pl.DataFrame:
        """All parts as one table, sorted by the columns that name a row.

        Raises:
            DataError: A part is missing, or a row is there twice.
        """
        require("polars", "bench", "read tables")
        import polars as pl

        missing = self.missing()
        if missing:
            lost = f"{len(missing)} of {len(self.chunks)} parts"
            raise DataError(f"{lost} of {self.folder} are missing: run the plan again")
        paths = [chunk.path for chunk in self.chunks]
        table = pl.concat([pl.read_parquet(path) for path in paths] + self._refused(pl.read_parquet(paths[0]).schema))
        table = table.sort(KEYS)
        twice = table.filter(table.select(KEYS).is_duplicated())
        if len(twice):
            first = twice.row(0)[: len(KEYS)]
            raise DataError(f"{len(twice)} rows of {self.folder} are there more than once, as {first}")
        self._whole(table)
        return table

    def _whole(self, table: pl.DataFrame) -> None:
        """Every model, data set, image, method, target and protocol must be there."""
        import polars as pl

        plan = self.stage.plan
        each = [len(plan.targets) + len(pairs(plan.protocols_of(data), plan.targets)) for data in plan.dataset]
        found = table.filter(pl.col("image") != "").select(*KEYS[:6]).n_unique()
        wanted = sum(c.maps * each[c.data] for c in self.chunks)
        if found != wanted:
            raise DataError(f"{self.folder} has {found} results of {wanted}: run the plan again with --fresh")

    def _refused(self, schema: Any) -> list[pl.DataFrame]:
        """A row for each method that does not apply to a model."""
        import polars as pl

        plan, rows = self.stage.plan, []
        for i, network in enumerate(plan.models):
            for method, why in self.stage.model(i).refused.items():
                keys = (network.title, "", "", method, "", "explain", "")
                rows.append(dict(zip(KEYS, keys, strict=True)) | {"explained": -1, "error": why})
        return [pl.DataFrame(rows, schema=schema)] if rows else []

    def export(self) -> tuple[Path, Path, Path]:
        """Write the merged table: results.parquet, results.csv and costs.parquet.

        The first two are the same bytes for every run of a plan with the same libraries on the same kind of machine.
        """
        table = self.merge()
        results = table.drop(COSTS)
        costs = table.select(*(name for name in KEYS if name != "score"), *COSTS).unique(maintain_order=True)
        paths = tuple(self.folder / name for name in ("results.parquet", "results.csv", "costs.parquet"))
        write_file(paths[0], lambda file: results.write_parquet(file, compression="zstd"))
        write_file(paths[1], lambda file: results.drop(CURVES).write_csv(file))
        write_file(paths[2], lambda file: costs.write_parquet(file, compression="zstd"))
        return paths[0], paths[1], paths[2]


def failures(table: pl.DataFrame) -> pl.DataFrame:
    """How often each reason stands in a table, by model and method, the most frequent first."""
    import polars as pl

    found = table.filter(pl.col("error").is_not_null()).group_by("model", "method", "error").len("rows")
    return found.sort(["rows", "model", "method", "error"], descending=[True, False, False, False])


def tally(table: pl.DataFrame, kind: type[T] = SampleScores, **where: str) -> T:  # type: ignore[assignment]
    """Rows of one method, target and protocol as the tally its scores are summed up with.

    Args:
        table: What `Store.merge` returned.
        kind: The protocol's accumulator, as `SegmentationScores`.
        **where: What the columns must hold: model, dataset, method, target, protocol.
    """
    import polars as pl

    rows = table.filter(pl.col("error").is_null(), *(pl.col(name) == value for name, value in where.items()))
    order: Sequence[str] = rows["score"].unique(maintain_order=True).to_list()
    order = sorted(order, key=lambda name: (name.partition("/")[0], int(name.partition("/")[2] or 0)))
    wide = rows.pivot("score", index="image", values="value").sort("image")
    values = wide.select(order).to_numpy().astype(np.float64)
    return kind(tuple(order), dict(zip(wide["image"].to_list(), values, strict=True)))


def plan_of(folder: Path) -> Plan:
    """The plan of a run, with its paths as they were where it was begun."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return Plan.model_validate(manifest["plan"])
