"""Costs of methods, methods that do not apply, and failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vitrail.bench.report.run_folder import Run


@dataclass(frozen=True)
class MethodCost:
    """Cost of a method's maps on one model and of scoring them; means over the images of all data sets.

    Attributes:
        model: Title of the model.
        method: Method spec.
        maps: Number of maps.
        seconds: Per image.
        forwards: Images that the model evaluated per explained image, beyond the shared forward pass.
        test_seconds: Of all perturbation tests per image; None without such tests.
        test_forwards: Images that the model evaluated in perturbation tests, per image; None without such tests.
        constant_maps: Number of maps without relevance.
        memory: Largest memory of a batch beyond the model, in bytes; None if unknown.
    """

    model: str
    method: str
    maps: int
    seconds: float
    forwards: float
    test_seconds: float | None
    test_forwards: float | None
    constant_maps: int
    memory: float | None

    @property
    def memory_text(self) -> str:
        """Memory in MiB, "–" if unknown."""
        return "–" if self.memory is None else f"{self.memory / 2**20:,.0f} MiB"


class NotApplicableRow(NamedTuple):
    """A method that does not apply to a model."""

    model: str
    method: str
    reason: str


class FailureCount(NamedTuple):
    """A reason for missing scores, and the number of images it concerns."""

    model: str
    dataset: str
    method: str
    protocol: str
    reason: str
    images: int


def method_costs(run: Run) -> list[MethodCost]:
    """Mean costs by model and method, in the plan's order."""
    import polars as pl

    from vitrail.bench.parts import EXPLAIN
    from vitrail.bench.protocols import PROTOCOLS

    frame, image_keys, pair = run.costs(), ["model", "dataset", "image", "method"], ["model", "method"]

    def means(rows: pl.LazyFrame) -> dict[tuple[str, str], dict[str, float]]:
        # All targets of an image are explained together, and all presets tested together: the rows repeat one cost.
        per_image = rows.group_by(image_keys).agg(pl.col("seconds", "forwards", "memory").max())
        mean = pl.col("seconds", "forwards").mean()
        table = per_image.group_by(pair).agg(mean, pl.col("memory").max(), pl.len().alias("maps"))
        return {(row["model"], row["method"]): row for row in table.collect().iter_rows(named=True)}

    explain_costs = means(frame.filter(pl.col("protocol") == EXPLAIN))
    test_costs = means(frame.filter(~pl.col("protocol").is_in([EXPLAIN, *PROTOCOLS])))
    constant = run.scores().filter(pl.col("protocol") == EXPLAIN, pl.col("score") == "flat").group_by("model", "method")
    constant_counts = {(m, s): int(n) for m, s, n in constant.agg(pl.col("value").sum()).collect().iter_rows()}
    costs = []
    for network in run.plan.models:
        for spec in run.plan.specs():
            key = network.title, spec
            if key in explain_costs:
                cost, test = explain_costs[key], test_costs.get(key, {})
                costs.append(
                    MethodCost(
                        *key, int(cost["maps"]), cost["seconds"], cost["forwards"], test.get("seconds"),
                        test.get("forwards"), constant_counts.get(key, 0), cost["memory"],
                    )
                )  # fmt: skip
    return costs


def not_applicable_methods(run: Run) -> list[NotApplicableRow]:
    """Methods that do not apply to a model, from the manifest."""
    refused: dict[str, dict[str, str]] = run.manifest["refused"]
    return [
        NotApplicableRow(model, method, why) for model, reasons in refused.items() for method, why in reasons.items()
    ]


def failure_counts(run: Run) -> list[FailureCount]:
    """Reasons for missing scores, the most frequent first."""
    import polars as pl

    keys = ["model", "dataset", "method", "protocol", "error"]
    failed = run.scores().filter(pl.col("error").is_not_null())
    counts = failed.group_by(keys).agg(pl.col("image").n_unique().alias("n"))
    table = counts.sort("n", *keys, descending=[True, *[False] * len(keys)]).collect()
    return [FailureCount(*row) for row in table.iter_rows()]
