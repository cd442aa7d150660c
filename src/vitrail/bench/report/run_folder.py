"""Read a run's folder: manifest, plan, scores and costs, without loading a model."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import DataError, require
from vitrail.methods.plugins import import_modules

if TYPE_CHECKING:
    import polars as pl

    from vitrail.bench.plan import Plan

#: Tables of a finished run, which are read where the files of its chunks were removed.
EXPORTED = ("results.parquet", "costs.parquet")


class Run:
    """A run's folder, finished or not.

    Raises:
        DataError: It is not such a folder, or none of its chunks is done.
    """

    def __init__(self, folder: str | Path) -> None:
        for module in ("polars", "pyarrow", "pydantic"):
            require(module, "bench", "report on a run")
        from vitrail.bench.plan import Plan

        self.folder = Path(folder)
        try:
            self.manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
            self.plan: Plan = Plan.model_validate(self.manifest["plan"])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} is not a run's folder: pass one that `vitrail bench` made") from error
        import_modules(self.plan.imports)
        if not self.chunk_files and not self._exported:
            raise DataError(f"no chunk of {folder} is done: run the plan first")

    @cached_property
    def chunk_files(self) -> list[Path]:
        """Files of the chunks that are done and belong to this run."""
        from vitrail.bench.parts import read_footer

        paths = sorted((self.folder / "parts").glob("part-*.parquet"))
        footers = ((path, read_footer(path)) for path in paths)
        return [path for path, footer in footers if footer is not None and footer.get("key") == self.manifest["key"]]

    @property
    def _exported(self) -> bool:
        return all((self.folder / name).is_file() for name in EXPORTED)

    @property
    def missing_chunks(self) -> int:
        """Number of chunks that are not done."""
        missing = self.manifest["parts"] - len(self.chunk_files)
        return 0 if self._exported and not self.chunk_files else max(0, missing)

    def scores(self) -> pl.LazyFrame:
        """All rows with a value or an error; the columns are those of `vitrail.bench.results_store`."""
        import polars as pl

        if self.chunk_files:
            return pl.scan_parquet(self.chunk_files)
        return pl.scan_parquet(self.folder / EXPORTED[0]).filter(pl.col("image") != "")

    def costs(self) -> pl.LazyFrame:
        """Seconds, forward passes and memory: one row for each image, method, target and protocol."""
        import polars as pl

        from vitrail.bench.parts import COSTS, KEYS

        if self.chunk_files:
            frame = pl.scan_parquet(self.chunk_files).filter(pl.col("error").is_null())
            return frame.select(*KEYS[:6], *COSTS).unique(maintain_order=True)
        return pl.scan_parquet(self.folder / EXPORTED[1]).filter(pl.col("image") != "")

    @property
    def paper(self) -> str | None:
        """Key of the paper's table that the plan reproduces."""
        return getattr(self.plan, "paper", None)

    @cached_property
    def controls(self) -> frozenset[str]:
        """Specs of the methods that are controls."""
        from vitrail.methods import find

        return frozenset(spec for spec in self.plan.specs() if find(spec)[1].family == "control" or _inverted(spec))

    def methods(self, model: str) -> list[str]:
        """Specs of the methods that apply to a model, given by its title, in the plan's order."""
        return [spec for spec in self.plan.specs() if spec not in self.manifest["refused"].get(model, {})]


def find_run(given: str | Path | None, runs: Path) -> Path:
    """Find a run's folder by path or key; None for the newest in ``runs``.

    Raises:
        DataError: There is none.
    """
    if given is None:
        manifests = sorted(runs.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
        if not manifests:
            raise DataError(f"no runs in {runs}: pass a run's folder, or run `vitrail bench` first")
        return manifests[-1].parent
    for path in (Path(given), runs / given):
        if (path / "manifest.json").is_file():
            return path
    raise DataError(f"{given} is neither a run's folder nor the key of a run in {runs}")


def _inverted(spec: str) -> bool:
    """Whether a spec inverts another method's map, which makes it a control whatever its family."""
    return spec.partition(":")[0] == "inverted"
