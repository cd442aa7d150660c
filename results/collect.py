"""Collect benchmark runs into imagenet1000.csv and its manifest, and update the tables and figure of docs/results.md.

    python results/collect.py runs/KEY [runs/KEY ...]
    python results/collect.py  # the same CSV from the values of each image that an earlier call wrote

Runs must have the same models, images and settings, and may have different methods. A method that is in several runs is
taken from the last one. Values, intervals and tests are computed from the per-image values of all runs together, with
the functions of `vitrail report`. So methods of different runs are compared on the same images, with p-values corrected
for all of them.

The folder of a run must have manifest.json and either results.parquet or scores.parquet, which is the same without the
columns of curves and much smaller; ``studies/run_plan.py`` writes it as scores-MODEL.parquet. The values of each image
of all runs are written to imagenet1000.parquet.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import show
from image_values import read_values, store_values

from vitrail.bench.plan import CONTROLS, Plan
from vitrail.bench.protocols import protocol_targets
from vitrail.bench.report.metric import MetricInfo, protocol_metrics
from vitrail.bench.report.values import method_scores, metric_values
from vitrail.errors import DataError
from vitrail.methods import METHODS
from vitrail.scores.comparison import MethodValues, RankedMethod, paired_tests, rank_methods

HERE = Path(__file__).resolve().parent
NAME = show.NAME
#: Columns read from a run.
RUN_COLUMNS = ("dataset", "image", "method", "target", "protocol", "score", "value", "explained", "error")
#: Settings of a plan in which collected runs may differ.
MAY_DIFFER = {"name", "methods", "protocols", "targets", "batch", "chunk", "threads", "keep_maps", "controls", "paper"}
#: Columns of the CSV.
CSV_COLUMNS = (
    "dataset", "protocol", "target", "score", "better", "unit", "method", "control", "images", "value", "low", "high",
    "to_best", "p_to_best", "to_best_low", "to_best_high", "to_control", "p_to_control", "to_predicted",
    "p_to_predicted", "run",
)  # fmt: skip


class CollectedRun:
    """Manifest and per-image values of a run."""

    def __init__(self, folder: Path) -> None:
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.plan = Plan.model_validate(self.manifest["plan"])
        names = ("results.parquet", "scores.parquet", "scores-*.parquet")
        tables = [path for name in names for path in sorted(folder.glob(name))]
        if not tables:
            raise DataError(f"{folder} has neither results.parquet nor scores.parquet: finish the run first")
        self.rows = pl.read_parquet(tables[0], columns=list(RUN_COLUMNS))
        self.key: str = self.manifest["key"]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that all collected runs must have in common."""
        plan = self.plan.model_dump(mode="json", exclude=MAY_DIFFER | {"models", "dataset"})
        ids = {name: found["ids_sha256"] for name, found in self.images().items()}
        data = [{"name": d.name, "label": d.title, "options": d.options} for d in self.plan.dataset]
        return {**plan, "dataset": data, "weights": self.manifest["weights"], "images": ids}

    def images(self) -> dict[str, dict[str, Any]]:
        """For each data set: number of images, number of correct predictions, SHA-256 of the sorted ids."""
        found = {}
        for data in self.plan.dataset:
            own = self.rows.filter(pl.col("dataset") == data.title, pl.col("image") != "")
            ids = own["image"].unique().sort().to_list()
            classes = own.filter(pl.col("explained") >= 0).group_by("image").agg(pl.col("explained").n_unique())
            found[data.title] = {
                "images": len(ids),
                "right": classes.filter(pl.col("explained") == 1).height if len(self.plan.targets) > 1 else None,
                "ids_sha256": hashlib.sha256("\n".join(ids).encode()).hexdigest(),
            }
        return found


def merge(runs: Sequence[CollectedRun]) -> tuple[pl.DataFrame, dict[str, str]]:
    """All rows, and for each method the key of the run it is taken from, the last one that has it."""
    first = runs[0].settings
    for run in runs[1:]:
        differ = [name for name, value in run.settings.items() if value != first[name]]
        if differ:
            raise DataError(f"runs {runs[0].key} and {run.key} differ in {', '.join(differ)}: collect them separately")
    source = {method: run.key for run in runs for method in run.plan.specs()}
    methods_of = {run.key: [method for method, key in source.items() if key == run.key] for run in runs}
    return pl.concat(run.rows.filter(pl.col("method").is_in(methods_of[run.key])) for run in runs), source


def csv_rows(
    rows: pl.DataFrame, source: Mapping[str, str], datasets: Iterable[str], protocols: Iterable[str]
) -> Iterator[dict[str, Any]]:
    """Rows of the CSV: every score of every method, in the order of data sets and protocols.

    Args:
        rows: Values of each image.
        source: Key of the run by method.
        datasets: Titles of the data sets.
        protocols: Names of the protocols of all data sets.
    """
    for dataset in datasets:
        own = set(rows.filter(pl.col("dataset") == dataset)["protocol"].unique())
        names = [name for name in dict.fromkeys(protocols) if name in own]
        predicted: dict[tuple[str, str], dict[str, MethodValues]] = {}
        for protocol, target in protocol_targets(names, ("predicted", "label")):
            where = {"dataset": dataset, "protocol": protocol, "target": target}
            scores = method_scores(rows.filter(*(pl.col(name) == value for name, value in where.items())), protocol)
            for metric in protocol_metrics(protocol, target):
                given = {name: metric_values(own_scores, metric) for name, own_scores in scores.items()}
                by_method = {name: v for name, v in given.items() if v is not None}
                differences = {}
                if target == "predicted":
                    predicted[protocol, metric.score] = by_method
                else:
                    differences = _label_minus_predicted(metric, by_method, predicted.get((protocol, metric.score), {}))
                for ranked in rank_methods(by_method, metric.direction, CONTROLS).values():
                    cells = _cells(metric, ranked) | differences.get(ranked.method, {})
                    yield {**where, **cells, "run": source[ranked.method]}


def _label_minus_predicted(
    metric: MetricInfo, label: dict[str, MethodValues], predicted: dict[str, MethodValues]
) -> dict[str, dict[str, str]]:
    """Difference between maps of the label and of the predicted class, by method, for scores of the same quantity."""
    if "explained class" in metric.quantity:
        return {}
    both = {name: (label[name], predicted[name]) for name in label.keys() & predicted.keys()}
    differing = {
        name: (one.table, two.table)
        for name, (one, two) in both.items()
        # Batches of another size round differently, so the maps of a class-agnostic method may differ in the last bits.
        if METHODS[name.partition(":")[0]].class_specific
        and one.ids == two.ids
        and not np.array_equal(one.table, two.table)
    }
    tests = paired_tests(differing, label[next(iter(differing))].score) if differing else {}
    return {
        name: {"to_predicted": _format(metric, test.difference.value), "p_to_predicted": f"{test.p_holm:.4f}"}
        for name, test in tests.items()
    }


def _cells(metric: MetricInfo, ranked: RankedMethod) -> dict[str, Any]:
    value, low, high = (_format(metric, number) for number in ranked.value)
    gap = ranked.to_best and ranked.to_best.difference
    return {
        "score": metric.score, "better": metric.direction, "unit": "percent" if metric.percent else "",
        "method": ranked.method, "control": ranked.control, "images": ranked.images, "value": value, "low": low,
        "high": high, "to_best": _format(metric, gap and gap.value),
        "p_to_best": f"{ranked.to_best.p_holm:.4f}" if ranked.to_best else "",
        "to_best_low": _format(metric, gap and gap.low), "to_best_high": _format(metric, gap and gap.high),
        "to_control": _format(metric, ranked.to_control and ranked.to_control.difference.value),
        "p_to_control": f"{ranked.to_control.p_holm:.4f}" if ranked.to_control else "",
    }  # fmt: skip


def _format(metric: MetricInfo, value: float | None) -> str:
    return "" if value is None else f"{value * metric.factor:.{3 if metric.percent else 5}f}"


def manifest(runs: Sequence[CollectedRun]) -> dict[str, Any]:
    """Everything the numbers depend on; files by name and hash, without paths."""
    rows, source = merge(runs)
    plan = runs[-1].plan
    models = [{"name": m.name, "weights_sha256": runs[-1].manifest["weights"][m.title]} for m in plan.models]
    return {
        "models": models,
        "data": runs[-1].images(),
        "settings": {key: getattr(plan, key) for key in ("view", "precision", "seed")},
        "rows": len(rows),
        "rows_without_a_score": int(rows["error"].is_not_null().sum()),
        "runs": [
            {
                "key": run.key, "plan": run.plan.name, "targets": run.plan.targets, "protocols": run.plan.protocols,
                "methods": [name for name, key in source.items() if key == run.key],
                "versions": _versions(run.manifest["versions"]), "device": run.manifest["accelerator"],
                "machine": run.manifest["machine"],
            }
            for run in runs
        ],
    }  # fmt: skip


def _versions(versions: dict[str, str]) -> dict[str, str]:
    return {name: "from source" if (name, text) == ("vitrail", "absent") else text for name, text in versions.items()}


def main() -> None:
    """Collect runs from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of runs, the newest last")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the CSV and its manifest")
    parser.add_argument("--page", type=Path, default=show.PAGE, help="page whose tables are updated")
    args = parser.parse_args()
    runs = [CollectedRun(folder) for folder in args.runs]
    values, about = args.out / f"{NAME}.parquet", args.out / f"{NAME}-manifest.json"
    if runs:
        store_values(merge(runs)[0], values)
        text = json.dumps(manifest(runs), indent=2, ensure_ascii=False)
        about.write_text(f"{text}\n", encoding="utf-8")
    elif not values.exists():
        raise DataError(f"{values} does not exist: pass the folders of runs, from which it is written")
    found = json.loads(about.read_text(encoding="utf-8"))
    source = {method: run["key"] for run in found["runs"] for method in run["methods"]}
    protocols = [name for run in found["runs"] for name in run["protocols"]]
    rows = list(csv_rows(read_values(values), source, found["data"], protocols))  # takes minutes
    with (args.out / f"{NAME}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    show.update(args.out, args.page)


if __name__ == "__main__":
    main()
