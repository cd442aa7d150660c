"""One table from one or several runs: imagenet1000.csv, its manifest, and the tables and picture of docs/results.md.

    python results/collect.py runs/KEY [runs/KEY ...]

Runs must agree in models, pictures and settings, and may differ in methods: plans are split by what methods cost. A
method that is in several runs is taken from the last one. Values, intervals and tests are made from the values of the
single pictures of all runs together, by what `vitrail report` makes them with, so that methods of different runs are
compared on the same pictures and corrected for the number of all of them.

A run's folder needs its manifest.json and its results.parquet, or scores.parquet, which is the same without the columns
of curves and much smaller.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import show
from vitrail.report.measure import Measure, measures
from vitrail.report.standing import Standing, standings

from vitrail.bench.plan import CONTROLS, Plan
from vitrail.bench.protocols import protocol_targets
from vitrail.errors import DataError
from vitrail.report.values import Values, tallies, values
from vitrail.scores.statistics import difference, holm, p_value

HERE = Path(__file__).resolve().parent
NAME = show.NAME
NEEDED = ("dataset", "image", "method", "target", "protocol", "score", "value", "explained", "error")
#: What runs may differ in, of their plans.
FREE = {"name", "methods", "protocols", "targets", "batch", "chunk", "threads", "keep_maps", "controls", "paper"}
#: Columns of the table.
COLUMNS = (
    "dataset", "protocol", "target", "score", "better", "unit", "method", "control", "images", "value", "low", "high",
    "to_best", "p_to_best", "to_control", "p_to_control", "to_predicted", "p_to_predicted", "run",
)  # fmt: skip


class Run:
    """A run's manifest and the values of its pictures."""

    def __init__(self, folder: Path) -> None:
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.plan = Plan.model_validate(self.manifest["plan"])
        there = [folder / name for name in ("results.parquet", "scores.parquet") if (folder / name).is_file()]
        if not there:
            raise DataError(f"{folder} has neither results.parquet nor scores.parquet: finish the run, then collect")
        self.rows = pl.read_parquet(there[0], columns=list(NEEDED))
        self.key: str = self.manifest["key"]

    @property
    def settings(self) -> dict[str, Any]:
        """What another run must have in common with this one."""
        plan = self.plan.model_dump(mode="json", exclude=FREE | {"models", "dataset"})
        ids = {name: found["ids_sha256"] for name, found in self.pictures().items()}
        data = [{"name": d.name, "label": d.title, "options": d.options} for d in self.plan.dataset]
        return {**plan, "dataset": data, "weights": self.manifest["weights"], "pictures": ids}

    def pictures(self) -> dict[str, dict[str, Any]]:
        """For each data set the number of its pictures, how many the model is right on, a hash of their sorted ids."""
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


def merged(runs: Sequence[Run]) -> tuple[pl.DataFrame, dict[str, str]]:
    """All rows, and for each method the key of the run it is from: the last that has it."""
    first = runs[0].settings
    for run in runs[1:]:
        differ = [name for name, value in run.settings.items() if value != first[name]]
        if differ:
            raise DataError(f"runs {runs[0].key} and {run.key} differ in {', '.join(differ)}: collect them apart")
    source = {method: run.key for run in runs for method in run.plan.specs()}
    kept = {run.key: [method for method, key in source.items() if key == run.key] for run in runs}
    return pl.concat(run.rows.filter(pl.col("method").is_in(kept[run.key])) for run in runs), source


def table(runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Every score of every method, in the order of the plans' protocols."""
    rows, source = merged(runs)
    for data in runs[0].plan.dataset:
        own = [d for run in runs for d in run.plan.dataset if d.title == data.title]
        names = list(dict.fromkeys(p for run, d in zip(runs, own, strict=True) for p in run.plan.protocols_of(d)))
        predicted: dict[tuple[str, str], dict[str, Values]] = {}
        for protocol, target in protocol_targets(names, ("predicted", "label")):
            where = {"dataset": data.title, "protocol": protocol, "target": target}
            found = tallies(rows.filter(*(pl.col(name) == value for name, value in where.items())), protocol)
            for one in measures(protocol, target):
                given = {name: values(tally, one) for name, tally in found.items()}
                whole = {name: v for name, v in given.items() if v is not None}
                if target == "predicted":
                    predicted[protocol, one.score] = whole
                moved = {} if target == "predicted" else _moved(one, whole, predicted.get((protocol, one.score), {}))
                for standing in standings(whole, one.direction, CONTROLS).values():
                    own_cells = _cells(one, standing) | moved.get(standing.method, {})
                    yield {**where, **own_cells, "run": source[standing.method]}


def _moved(own: Measure, label: dict[str, Values], predicted: dict[str, Values]) -> dict[str, dict[str, str]]:
    """Maps of the label minus maps of the predicted class, by method, where the score asks the same of both."""
    if "explained class" in own.quantity:
        return {}
    found = {}
    for name in label.keys() & predicted.keys():
        one, two = label[name], predicted[name]
        if one.ids == two.ids and not np.array_equal(one.table, two.table):  # equal for methods blind to classes
            gap = difference(one.table, two.table, one.score)
            found[name] = gap.value, p_value(one.table, two.table, one.score)
    corrected = holm([p for _, p in found.values()])
    return {
        name: {"to_predicted": _told(own, gap), "p_to_predicted": f"{p:.4f}"}
        for (name, (gap, _)), p in zip(found.items(), corrected, strict=True)
    }


def _cells(own: Measure, one: Standing) -> dict[str, Any]:
    value, low, high = (_told(own, number) for number in one.value)
    return {
        "score": own.score, "better": own.direction, "unit": "percent" if _percent(own) else "", "method": one.method,
        "control": one.control, "images": one.images, "value": value, "low": low, "high": high,
        "to_best": _told(own, one.behind and one.behind.value), "p_to_best": "" if one.p is None else f"{one.p:.4f}",
        "to_control": _told(own, one.ahead and one.ahead.value),
        "p_to_control": "" if one.p_control is None else f"{one.p_control:.4f}",
    }  # fmt: skip


def _percent(own: Measure) -> bool:
    return own.factor == 100 or "×100" in own.rule


def _told(own: Measure, value: float | None) -> str:
    return "" if value is None else f"{value * own.factor:.{3 if _percent(own) else 5}f}"


def about(runs: Sequence[Run]) -> dict[str, Any]:
    """What the numbers depend on; files by name and hash, not by where they lie."""
    rows, source = merged(runs)
    plan = runs[-1].plan
    models = [{"name": m.name, "weights_sha256": runs[-1].manifest["weights"][m.title]} for m in plan.models]
    return {
        "models": models,
        "data": runs[-1].pictures(),
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


def _versions(found: dict[str, str]) -> dict[str, str]:
    return {name: "from source" if (name, text) == ("vitrail", "absent") else text for name, text in found.items()}


def main() -> None:
    """Collect runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs, the newest last")
    parser.add_argument("--out", type=Path, default=HERE, help="where the table and its manifest go")
    parser.add_argument("--page", type=Path, default=show.PAGE, help="the page whose tables are made anew")
    args = parser.parse_args()
    runs = [Run(folder) for folder in args.runs]
    rows = list(table(runs))  # takes minutes: nothing is overwritten before
    with (args.out / f"{NAME}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = json.dumps(about(runs), indent=2, ensure_ascii=False)
    (args.out / f"{NAME}-manifest.json").write_text(f"{text}\n", encoding="utf-8")
    show.show(args.out, args.page)


if __name__ == "__main__":
    main()
