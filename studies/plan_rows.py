"""Collect finished runs of the plans in studies/plans into one JSON file, as the pages of docs/papers read it.

    vitrail bench studies/plans/vitcx.toml --data imagenet=DIR --weights vit-t=FILE --device cuda --out runs
    python studies/plan_rows.py runs/KEY --out studies/results/paper-tables.json
    python studies/plan_rows.py runs/KEY --by-method --out studies/results/ablations-pets.json

Values and intervals are those of the run's report. Rows of other plans that are in the file already are kept. With
``--by-method`` the file has one row for each method, with shares instead of percent, of a single run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study import options, read_csv, read_json, save_json

#: Columns of a row.
COLUMNS = ("dataset", "protocol", "target", "score", "method")


def plan_rows(run: Path) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """Name of a run's plan, what decides its numbers, and a row for each score of each method."""
    manifest = read_json(run / "manifest.json", None)
    rows = [
        {**{name: row[name] for name in COLUMNS}, "images": int(row["images"]),
         **{name: round(float(row[name]), 5) for name in ("value", "low", "high")}}
        for row in read_csv(run / "report.csv")
    ]  # fmt: skip
    about = {name: manifest[name] for name in ("device", "versions") if name in manifest}
    return manifest["plan"]["name"], {**about, "run": manifest["key"]}, rows


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
