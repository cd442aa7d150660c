"""Compare `shapley` with the methods of imagenet1000.csv on the images it was measured on; updates docs/results.md.

    python results/shapley_part.py runs/KEY  # a run of the plan imagenet1000_many with `shapley`, complete or not
    python results/shapley_part.py           # the same from the values of each image that an earlier call wrote

All methods are compared on exactly the images that have a map of `shapley`, by SRG and mIoU of maps of the predicted
class, with p-values corrected for all of them. Writes imagenet1000_shapley.parquet (values of each image),
imagenet1000_shapley-manifest.json and imagenet1000_shapley.csv, which has the columns of imagenet1000.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import polars as pl
import show
from collect import CSV_COLUMNS, HERE, RUN_COLUMNS, csv_rows
from image_values import read_values, store_values

from vitrail.errors import DataError

METHOD = "shapley"
NAME = f"{show.NAME}_{METHOD}"
VALUES, ABOUT, TABLE = (HERE / f"{NAME}{end}" for end in (".parquet", "-manifest.json", ".csv"))
MARK = METHOD
COLUMNS = (show.SRG_TOKENS, show.SRG_BLACK, show.MIOU)
PROTOCOLS = tuple(column.protocol for column in COLUMNS)
#: Methods beside it on the page: the best three others of each column, and the strongest control.
BESIDE = ("atman", "tis", "occlusion", "grad_rollout", "leadlight", "leadlight:object", "leadlight:attention", "centre")


def store_run(folder: Path) -> None:
    """Write values and manifest of a run from the parts that are complete."""
    parts = [pl.read_parquet(path, columns=list(RUN_COLUMNS)) for path in sorted(folder.glob("parts/*.parquet"))]
    if not parts:
        raise DataError(f"{folder} has no parts: pass the folder of a run")
    rows = pl.concat(parts).filter(pl.col("method") == METHOD, pl.col("protocol").is_in(PROTOCOLS))
    store_values(rows, VALUES)
    found = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    images = dict(rows.group_by("dataset").agg(pl.col("image").n_unique()).sort("dataset").iter_rows())
    plan = {name: found["plan"][name] for name in ("name", "precision", "matmul", "view", "seed")}
    about = {"run": found["key"], "plan": plan, "images": images, "device": found["accelerator"]}
    ABOUT.write_text(f"{json.dumps(about, indent=2)}\n", encoding="utf-8")


def compared_rows() -> list[dict[str, Any]]:
    """Rows of the CSV: all methods on the images of this one."""
    own = read_values(VALUES)
    others = read_values(HERE / f"{show.NAME}.parquet").filter(pl.col("protocol").is_in(PROTOCOLS))
    others = others.join(own.select("dataset", "image").unique(), on=("dataset", "image"), how="semi")
    rows = pl.concat([own, others]).filter(pl.col("target") == "predicted")
    found = json.loads((HERE / f"{show.NAME}-manifest.json").read_text(encoding="utf-8"))
    source = {method: run["key"] for run in found["runs"] for method in run["methods"]}
    source[METHOD] = json.loads(ABOUT.read_text(encoding="utf-8"))["run"]
    wanted = {(column.dataset, column.score) for column in COLUMNS}
    found_rows = csv_rows(rows, source, found["data"], PROTOCOLS)
    return [row for row in found_rows if (row["dataset"], row["score"]) in wanted]


def updated(page: str) -> str:
    """The page with this table replaced."""
    table = show.ResultsTable(TABLE)
    head, line, *rows = show.main_table(table, COLUMNS, show.SRG_TOKENS).splitlines()
    kept = [row for row in rows if row.split("|")[1].strip().split(" ")[0].strip("*`") in (METHOD, *BESIDE)]
    return show.replace_tables(page, {MARK: "\n".join([head, line, *kept])})


def main() -> None:
    """Write the table from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of a run")
    args = parser.parse_args()
    if args.run:
        store_run(args.run)
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, CSV_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(compared_rows())
    show.PAGE.write_text(updated(show.PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
