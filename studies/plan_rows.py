"""Collect finished runs of the plans in studies/plans into one JSON file, as the pages of docs/papers read it.

    vitrail bench studies/plans/vitcx.toml --data imagenet=DIR --weights vit-t=FILE --device cuda --out runs
    python studies/plan_rows.py runs/KEY --out studies/results/paper-tables.json
    python studies/plan_rows.py runs/KEY --by-method --out studies/results/ablations-pets.json
    python studies/plan_rows.py OUT --out studies/results/paper-tables.json   # of run_plan.py

The values of each image are kept in files beside it, ``paper-tables-PLAN-MODEL.parquet``, those of the appendices of
ViT-CX in the folder ``vitcx_appendices``. Values and intervals of the rows are computed from them, as in the run's
report. Rows of other plans, models and methods that are in the file already are kept, and their values as well. With
``--by-method`` the file has one row for each method, with shares instead of percent, of runs of a single plan and
model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plan_values
from study import options, read_json, save_json


def about_run(manifest: dict[str, Any]) -> dict[str, Any]:
    """What decides the numbers of a run."""
    known = {"device": manifest.get("accelerator") or manifest.get("device"), "versions": manifest.get("versions")}
    return {**{name: value for name, value in known.items() if value}, "run": manifest["key"]}


def with_earlier(about: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    """What decides the numbers of a run, and of the runs before it whose rows stay."""
    if not before or before.get("run") == about["run"]:
        return {**about, **({"earlier": before["earlier"]} if before and "earlier" in before else {})}
    own = {name: value for name, value in before.items() if name != "earlier"}
    return {**about, "earlier": [*before.get("earlier", []), own]}


def check_same_setting(before: dict[str, Any], about: dict[str, Any], out: Path) -> None:
    """Refuse to add rows to those of another model or number of images, which one manifest cannot describe."""
    names = ("model", "images") if "run" in before else ("images",)  # older files name the model otherwise
    for name in names if before else ():
        if before[name] != about[name]:
            raise SystemExit(f"{out} has rows with {name} {before[name]}, this run {about[name]}: pass another --out")


def collect(run: Path, out: Path, is_by_method: bool) -> None:
    """Add the rows of a run to a file, and its values to the files beside it."""
    content = read_json(out, {"manifest": {}, "rows": {}})
    manifest = read_json(run / "manifest.json", None)
    plan, about = manifest["plan"]["name"], about_run(manifest)
    tables = dict(plan_values.run_values(run))
    if is_by_method and len(tables) > 1:
        raise SystemExit(f"{run} has the models {', '.join(tables)}: --by-method takes a run of one model")
    rows = [row for model, table in tables.items() for row in plan_values.summarise(table, model)]
    if is_by_method:
        before, found = content["rows"], plan_values.by_method(rows)
        about = {"model": rows[0]["model"], **about, "images": rows[0]["images"]}
        stay = before.keys() - found.keys()
        check_same_setting(content["manifest"] if stay else {}, about, out)
        content = {"manifest": with_earlier(about, content["manifest"] if stay else None), "rows": before | found}
    else:
        joined = plan_values.joined_rows(content["rows"].get(plan, []), rows)
        stay = len(joined) > len(rows)
        content["manifest"][plan] = with_earlier(about, content["manifest"].get(plan) if stay else None)
        content["rows"][plan] = joined
    save_json(out, content)
    for model, table in tables.items():
        plan_values.store_values(plan_values.plan_values_path(out, "" if is_by_method else plan, model), table)


def main() -> None:
    """Read the runs, and write the rows."""
    parser = options(__doc__, out=...)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--by-method", action="store_true", help="one row for each method, of a single run")
    args = parser.parse_args()
    for run in args.runs:
        collect(run, args.out, args.by_method)


if __name__ == "__main__":
    main()
