"""A run as its folder has it: what is there, what is missing; no model is loaded."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import DataError, require

if TYPE_CHECKING:
    import polars as pl

    from vitrail.bench.plan import Plan

#: Files of a finished run, which stand for its parts where those were removed.
EXPORTED = ("results.parquet", "costs.parquet")


class Run:
    """A run's folder, finished or not.

    Args:
        folder: As `vitrail bench` made it.

    Raises:
        DataError: It is not such a folder, or nothing in it is done.
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
            raise DataError(f"{folder} is not the folder of a run: give one that `vitrail bench` made") from error
        if not self.parts and not self._exported:
            raise DataError(f"no part of {folder} is done yet: run the plan, then report")

    @cached_property
    def parts(self) -> list[Path]:
        """The parts that are there, whole and of this run."""
        from vitrail.bench.parts import read_footer

        paths = sorted((self.folder / "parts").glob("part-*.parquet"))
        notes = ((path, read_footer(path)) for path in paths)
        return [path for path, note in notes if note is not None and note.get("key") == self.manifest["key"]]

    @property
    def _exported(self) -> bool:
        return all((self.folder / name).is_file() for name in EXPORTED)

    @property
    def missing(self) -> int:
        """How many parts are still to be done."""
        gone = self.manifest["parts"] - len(self.parts)
        return 0 if self._exported and not self.parts else max(0, gone)

    def scores(self) -> pl.LazyFrame:
        """Every row with a value or a reason; the columns of `vitrail.bench.results_store`."""
        import polars as pl

        if self.parts:
            return pl.scan_parquet(self.parts)
        return pl.scan_parquet(self.folder / EXPORTED[0]).filter(pl.col("image") != "")

    def costs(self) -> pl.LazyFrame:
        """Seconds and forwards, one row for each image, method, target and protocol."""
        import polars as pl

        from vitrail.bench.parts import COSTS, KEYS

        if self.parts:
            frame = pl.scan_parquet(self.parts).filter(pl.col("error").is_null())
            return frame.select(*KEYS[:6], *COSTS).unique(maintain_order=True)
        return pl.scan_parquet(self.folder / EXPORTED[1]).filter(pl.col("image") != "")

    @property
    def paper(self) -> str | None:
        """The table of a paper that the plan reproduces."""
        return getattr(self.plan, "paper", None)

    @cached_property
    def controls(self) -> frozenset[str]:
        """Methods that know nothing of the model."""
        from vitrail.methods import find

        return frozenset(spec for spec in self.plan.specs() if find(spec)[1].family == "control" or _inverted(spec))

    def methods(self, model: str) -> list[str]:
        """The methods that apply to a model, by its title, in the plan's order."""
        return [spec for spec in self.plan.specs() if spec not in self.manifest["refused"].get(model, {})]


def find_run(given: str | Path | None, runs: Path) -> Path:
    """A run's folder from what a user gave: the folder, its key, or nothing for the newest.

    Raises:
        DataError: There is none.
    """
    if given is None:
        found = sorted(runs.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise DataError(f"there are no runs in {runs}: say which folder, or run `vitrail bench` first")
        return found[-1].parent
    for path in (Path(given), runs / given):
        if (path / "manifest.json").is_file():
            return path
    raise DataError(f"{given} is neither the folder of a run nor a run in {runs}")


def _inverted(spec: str) -> bool:
    """What is inverted keeps the family of what it was made of, but is a control all the same."""
    return spec.partition(":")[0] == "inverted"
