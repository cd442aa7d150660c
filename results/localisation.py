"""Collect runs of the plan studies/plans/wsol.toml, and update the tables of localisation on ImageNet.

    python results/localisation.py --collect RUN [RUN ...]  # values of each image, the manifest, and the CSV file
    python results/localisation.py --collect                # the CSV file from the committed values
    python results/localisation.py                          # the tables from the CSV file

RUN is a folder with ``manifest.json`` and ``scores-vit-t.parquet``, as ``studies/run_plan.py`` writes them. Of the IoU
of each image's box at each threshold the values keep what the scores use: the largest of 0.3, 0.5 and 0.7 that it
reaches, or 0.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import show

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs" / "scores"
MODEL = "vit-t"
#: Protocols of the plan; of the pointing game that without tolerance.
PROTOCOLS = ("wsol", "box_pointing", "pointing")
POINTING = "hit@0"
COLUMNS = ("protocol", "score", "method", "control", "images", "value", "low", "high")
#: Columns of the table of boxes: protocol, score and title.
BOXES = (
    ("wsol", "max_box_acc", "MaxBoxAcc ↑"), ("wsol", "two_fold_box_acc", "two-fold ↑"),
    ("wsol", "max_box_acc_v2", "MaxBoxAccV2 ↑"), ("wsol", "top1_loc", "Top-1 Loc ↑"),
    ("pointing", POINTING, "pointing, any box ↑"), ("box_pointing", "accuracy", "pointing, per box ↑"),
)  # fmt: skip
POINTED = (
    ("box_pointing", "accuracy", "per box, `accuracy` ↑"),
    ("box_pointing", "hit_share", "mean over images, `hit_share` ↑"),
    ("pointing", POINTING, "any box, `pointing` ↑"),
)  # fmt: skip
#: Methods of the second table.
POINTED_METHODS = (
    "vtranm", "transformer_mm", "attcat", "gradtoken", "rollout", "gradcam", "raw_attention", "centre", "random",
)  # fmt: skip
Cells = dict[str, dict[tuple[str, str], dict[str, str]]]


def kept_values(runs: Sequence[Path]) -> Any:
    """Values that the scores use, of all runs."""
    import polars as pl

    from vitrail.scores.wsol import BOX_IOUS

    rows = pl.concat(pl.read_parquet(run / f"scores-{MODEL}.parquet") for run in runs)
    used = (pl.col("protocol") == "wsol") & (pl.col("score") != "flat")
    used |= pl.col("score").is_in(["hits", "boxes", "hit_share", POINTING])
    rows = rows.filter(used & pl.col("protocol").is_in(PROTOCOLS)).with_columns(value=pl.col("value").round(6))
    reached = pl.lit(0.0)
    for least in sorted(BOX_IOUS):
        reached = pl.when(pl.col("value") >= least).then(least).otherwise(reached)
    levels = pl.when(pl.col("score").str.starts_with("iou/")).then(reached).otherwise(pl.col("value"))
    return rows.select("protocol", "score", "method", "image", levels.alias("value")).sort(pl.all().exclude("value"))


def box_counts(run: Path) -> dict[str, float]:
    """Number of boxes, and the share in percent that the maxima of the best maps would be in."""
    import polars as pl

    rows = pl.read_parquet(run / f"scores-{MODEL}.parquet").filter(protocol="box_pointing")
    rows = rows.filter(method=rows["method"][0])
    boxes, reachable = (float(rows.filter(score=name)["value"].sum()) for name in ("boxes", "reachable"))
    return {"boxes": int(boxes), "reachable_percent": round(100 * reachable / boxes, 1)}


def csv_rows(values: Any) -> Iterator[dict[str, Any]]:
    """Rows of the CSV: every score of every method."""
    import polars as pl

    from vitrail.bench.plan import CONTROLS
    from vitrail.bench.report.metric import protocol_metrics
    from vitrail.bench.report.values import method_scores, metric_values
    from vitrail.scores.comparison import rank_methods

    rows = values.with_columns(error=pl.lit(None, pl.String))
    flat = rows.filter(score=POINTING).with_columns(score=pl.lit("flat"), value=pl.lit(0.0))
    rows = pl.concat([rows, *(flat.with_columns(protocol=pl.lit(name)) for name in PROTOCOLS)])
    for protocol in PROTOCOLS:
        scores = method_scores(rows.filter(protocol=protocol), protocol)
        for metric in protocol_metrics(protocol, "label"):
            given = {name: metric_values(own, metric) for name, own in scores.items()}
            known = {name: own for name, own in given.items() if own is not None}
            for one in rank_methods(known, metric.direction, CONTROLS).values() if known else ():
                numbers = (f"{value * metric.factor:.3f}" for value in one.value)
                cells = (protocol, metric.score, one.method, one.control, one.images, *numbers)
                yield dict(zip(COLUMNS, cells, strict=True))


def read_cells(path: Path) -> Cells:
    """Rows of the CSV by method, then protocol and score; methods in the order of MaxBoxAcc."""
    found: Cells = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["method"], {})[row["protocol"], row["score"]] = row
    first = BOXES[0][:2]
    return dict(sorted(found.items(), key=lambda item: -float(item[1][first]["value"])))


def table(cells: Cells, columns: Sequence[tuple[str, str, str]], intervals: bool) -> str:
    """Scores of methods in percent, the first with its interval if wanted."""
    rows = []
    for name, own in cells.items():
        texts = []
        for k, (protocol, score, _) in enumerate(columns):
            one = {key: f"{float(own[protocol, score][key]):.1f}" for key in ("value", "low", "high")}
            texts.append(f"{one['value']} %" + (f" [{one['low']}, {one['high']}]" if intervals and not k else ""))
        control = own[columns[0][:2]]["control"] == "True"
        rows.append([f"*{name}* (control)" if control else f"`{name}`", *texts])
    return show._markdown(["method", *(title for *_, title in columns)], rows)  # noqa: SLF001 - shared tables


def collect(runs: Sequence[Path]) -> None:
    """Write values and manifest if runs are given, and the CSV from the values."""
    import polars as pl

    values = HERE / "wsol.parquet"
    if runs:
        kept_values(runs).with_columns(pl.col("value").cast(pl.Float32)).write_parquet(
            values, compression="zstd", compression_level=19
        )
        found = [json.loads((run / "manifest.json").read_text(encoding="utf-8")) for run in runs]
        about = {
            "weights_sha256": found[0]["weights"][MODEL], "images": found[0]["images"], **box_counts(runs[0]),
            "settings": {key: found[0]["plan"][key] for key in ("view", "seed", "targets")},
            "device": found[0]["accelerator"],
            "versions": {name: text for name, text in found[0]["versions"].items() if text != "absent"},
            "runs": [{"key": one["key"], "methods": one["plan"]["methods"]} for one in found],
        }  # fmt: skip
        (HERE / "wsol-manifest.json").write_text(f"{json.dumps(about, indent=2)}\n", encoding="utf-8")
    rows = list(csv_rows(pl.read_parquet(values).with_columns(pl.col("value").cast(pl.Float64).round(6))))
    with (HERE / "wsol.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def pages() -> dict[Path, str]:
    """The two pages with their tables."""
    cells = read_cells(HERE / "wsol.csv")
    pointed = sorted(POINTED_METHODS, key=lambda name: -float(cells[name]["pointing", POINTING]["value"]))
    shown = {
        "wsol.md": {"boxes": table(cells, BOXES, intervals=True)},
        "pointing.md": {"pointing per box": table({name: cells[name] for name in pointed}, POINTED, intervals=False)},
    }
    return {
        DOCS / page: show.replace_tables((DOCS / page).read_text(encoding="utf-8"), own) for page, own in shown.items()
    }


def main() -> None:
    """Collect runs if some are given, then update the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", nargs="*", type=Path, metavar="RUN", help="folders of runs")
    args = parser.parse_args()
    if args.collect is not None:
        collect(args.collect)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
