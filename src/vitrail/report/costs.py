"""What each method cost, what does not apply, and what failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vitrail.report.run import Run


@dataclass(frozen=True)
class Cost:
    """What a method's maps cost on one model, and what scoring them cost; means over pictures of all data sets.

    Attributes:
        model: Its title.
        method: As it was typed.
        maps: How many were made.
        seconds: For one picture.
        forwards: Pictures the model was shown for one picture.
        test_seconds: Of all perturbation tests of one picture; None where there are none.
        test_forwards: The same in forwards.
        flat: Maps that say nothing.
        memory: Bytes held at the most by any of its batches, beyond the model; None if nobody knows.
    """

    model: str
    method: str
    maps: int
    seconds: float
    forwards: float
    test_seconds: float | None
    test_forwards: float | None
    flat: int
    memory: float | None

    @property
    def held(self) -> str:
        """The memory in words."""
        return "–" if self.memory is None else f"{self.memory / 2**20:,.0f} MiB"


class NotApplicableRow(NamedTuple):
    """A method that does not apply to a model."""

    model: str
    method: str
    reason: str


class Failure(NamedTuple):
    """A reason that stands in place of scores, and how often."""

    model: str
    dataset: str
    method: str
    protocol: str
    reason: str
    pictures: int


def costs(run: Run) -> list[Cost]:
    """Costs by model and method, in the plan's order."""
    import polars as pl

    from vitrail.bench.parts import EXPLAIN
    from vitrail.bench.protocols import PROTOCOLS

    frame, each, pair = run.costs(), ["model", "dataset", "image", "method"], ["model", "method"]

    def means(rows: pl.LazyFrame) -> dict[tuple[str, str], dict[str, float]]:
        # Targets of a picture are explained, and presets tested, in one go, whose cost stands in each of their rows.
        once = rows.group_by(each).agg(pl.col("seconds", "forwards", "memory").max())
        mean = pl.col("seconds", "forwards").mean()
        table = once.group_by(pair).agg(mean, pl.col("memory").max(), pl.len().alias("maps"))
        return {(row["model"], row["method"]): row for row in table.collect().iter_rows(named=True)}

    made = means(frame.filter(pl.col("protocol") == EXPLAIN))
    tested = means(frame.filter(~pl.col("protocol").is_in([EXPLAIN, *PROTOCOLS])))
    dull = run.scores().filter(pl.col("protocol") == EXPLAIN, pl.col("score") == "flat").group_by("model", "method")
    flats = {(m, s): int(n) for m, s, n in dull.agg(pl.col("value").sum()).collect().iter_rows()}
    found = []
    for network in run.plan.models:
        for spec in run.plan.specs():
            key = network.title, spec
            if key in made:
                own, test = made[key], tested.get(key, {})
                found.append(Cost(*key, int(own["maps"]), own["seconds"], own["forwards"], test.get("seconds"),
                                  test.get("forwards"), flats.get(key, 0), own["memory"]))  # fmt: skip
    return found


def refusals(run: Run) -> list[NotApplicableRow]:
    """Methods that do not apply, as the manifest has them."""
    refused: dict[str, dict[str, str]] = run.manifest["refused"]
    return [NotApplicableRow(model, method, why) for model, own in refused.items() for method, why in own.items()]


def failures(run: Run) -> list[Failure]:
    """Reasons in place of scores, the most frequent first."""
    import polars as pl

    keys = ["model", "dataset", "method", "protocol", "error"]
    found = run.scores().filter(pl.col("error").is_not_null()).group_by(keys).agg(pl.col("image").n_unique().alias("n"))
    table = found.sort("n", *keys, descending=[True, *[False] * len(keys)]).collect()
    return [Failure(*row) for row in table.iter_rows()]
