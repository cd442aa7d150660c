"""Collect finished runs of the plans in studies/plans into one JSON file, as the pages of docs/papers read it.

    vitrail bench studies/plans/vitcx.toml --data imagenet=DIR --weights vit-t=FILE --device cuda --out runs
    python studies/plan_rows.py runs/KEY --out studies/results/paper-tables.json
    python studies/plan_rows.py runs/KEY --by-method --out studies/results/ablations-pets.json
    python studies/plan_rows.py OUT --out studies/results/paper-tables.json   # of run_plan.py, without a report

Values and intervals are those of the run's report. Rows of other plans that are in the file already are kept. With
``--by-method`` the file has one row for each method, with shares instead of percent, of a single run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from study import options, read_csv, read_json, save_json

#: Columns of a row.
COLUMNS = ("dataset", "protocol", "target", "score", "method")


def plan_rows(run: Path) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """Name of a run's plan, what decides its numbers, and a row for each score of each method."""
    manifest = read_json(run / "manifest.json", None)
    if not (run / "report.csv").is_file():
        return manifest["plan"]["name"], about_run(manifest), [row for one in score_files(run) for row in one]
    rows = [
        {**{name: row[name] for name in COLUMNS}, "images": int(row["images"]),
         **{name: round(float(row[name]), 5) for name in ("value", "low", "high")}}
        for row in read_csv(run / "report.csv")
    ]  # fmt: skip
    return manifest["plan"]["name"], about_run(manifest), rows


def about_run(manifest: dict[str, Any]) -> dict[str, Any]:
    """What decides the numbers of a run."""
    known = {"device": manifest.get("accelerator", manifest.get("device")), "versions": manifest.get("versions")}
    return {**{name: value for name, value in known.items() if value}, "run": manifest["key"]}


def score_files(run: Path) -> Iterator[list[dict[str, Any]]]:
    """Rows of each model of a run by run_plan.py, with the label of the model."""
    import polars as pl

    from vitrail.bench.plan import CONTROLS
    from vitrail.bench.report.metric import protocol_metrics
    from vitrail.bench.report.values import method_scores, metric_values
    from vitrail.scores.comparison import rank_methods

    for path in sorted(run.glob("scores-*.parquet")):
        table, found = pl.read_parquet(path), []
        kinds = table.select("dataset", "protocol", "target").unique(maintain_order=True).rows()
        for dataset, protocol, target in kinds:
            own = table.filter(dataset=dataset, protocol=protocol, target=target)
            scores = method_scores(own, protocol)
            columns = {name for by in scores.values() for name in by.columns}
            for metric in protocol_metrics(protocol, target, columns):
                given = {name: metric_values(by, metric) for name, by in scores.items()}
                ranked = rank_methods({n: v for n, v in given.items() if v is not None}, metric.direction, CONTROLS)
                found += [
                    {"model": path.stem.removeprefix("scores-"), "dataset": dataset, "protocol": protocol,
                     "target": target, "score": metric.score, "method": one.method, "images": one.images,
                     **{name: round(v * metric.factor, 5) for name, v in one.value._asdict().items()}}
                    for one in ranked.values()
                ]  # fmt: skip
        yield found


def by_method(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """One row for each method: scores as shares, each with its interval."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        own = found.setdefault(row["method"], {})
        own[row["score"]] = row["value"] / 100
        own[f"{row['score']}_interval"] = [row["low"] / 100, row["high"] / 100]
    return found


def main() -> None:
    """Read the runs, and write the rows."""
    parser = options(__doc__, out=...)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--by-method", action="store_true", help="one row for each method, of a single run")
    args = parser.parse_args()
    content = {"manifest": {}, "rows": {}} if args.by_method else read_json(args.out, {"manifest": {}, "rows": {}})
    for run in args.runs:
        name, about, rows = plan_rows(run)
        if args.by_method:
            content = {"manifest": {**about, "images": rows[0]["images"]}, "rows": by_method(rows)}
        else:
            content["manifest"][name], content["rows"][name] = about, rows
    save_json(args.out, content)


if __name__ == "__main__":
    main()
