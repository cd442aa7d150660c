"""Collect runs of the plans of the worlds into worlds.csv and its manifest, and update the tables of the documentation.

    python results/worlds.py runs/KEY [runs/KEY ...] [--checks FILE]

Folders are those of ``vitrail bench`` or of studies/worlds.py, which also writes the file of the checks. Rows of the
same model, task and method are replaced. Tables are in docs/worlds.md and on the pages of methods with a place for one.
Means and 95 % intervals (percentile bootstrap over examples, 2,000 resamples) are computed from the values of each
example, which worlds.parquet keeps; without runs, the CSV is computed from it again. Areas and shares of the checks are
in worlds-checks.json, and the values of each map they are computed from in worlds-checks-TASK.parquet, likewise.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from pathlib import Path
from typing import Any

from example_values import Values, add_values, mean_row, read_values, run_values

from vitrail.bench.plan import CONTROLS

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "worlds.md"
VALUES = HERE / "worlds.parquet"
#: Scores in the CSV by protocol, and their names in the tables.
SCORES = {
    "right_object": {"first": "right object first", "maximum": "maximum on it"},
    "discrimination": {
        "share": "discrimination",
        "both": "both right",
        "mass": "relevance mass",
        "hit": "pointing game",
    },
    "top_word": {"top": "top word right", "word_mass": "relevance on the word"},
    "event": {"less_before": "less before the movement", "event_share": "relevance during the movement"},
    "marked_removal": {"better": "better than random removal", "drop": ""},
}
#: Titles of the tasks.
TASKS = {
    "captions": "prompts", "contrasts": "prompts against each other", "words": "words of prompts", "boxes": "boxes",
    "regions": "regions", "movements": "movements", "tones": "tones",
}  # fmt: skip
COLUMNS = ("model", "task", "method", "control", "protocol", "score", "examples", "mean", "low", "high")


def rows_of(values: Values) -> list[dict[str, Any]]:
    """Rows of the CSV."""
    return [{**mean_row(key, own), "control": key[2] in CONTROLS} for key, own in values.items()]


def table_of(rows: list[dict[str, Any]], task: str) -> str:
    """One Markdown table: a row for each method, best first, controls last."""
    own = [row for row in rows if row["task"] == task]
    names = {score: name for scores in SCORES.values() for score, name in scores.items()}
    scores = [score for score, name in names.items() if name and any(row["score"] == score for row in own)]
    values = {(row["method"], row["score"]): row for row in own}
    methods = sorted({row["method"] for row in own}, key=lambda m: (m in CONTROLS, -values[m, scores[0]]["mean"], m))
    lines = [f"| method | {' | '.join(f'{names[s]} ↑' for s in scores)} |", f"|---|{'---:|' * len(scores)}"]
    counts = {method: max(row["examples"] for row in own if row["method"] == method) for method in methods}
    most = max(counts.values())
    for method in methods:
        cells = []
        for score in scores:
            row = values.get((method, score))
            shown = "–" if row is None else f"{row['mean']:.1%} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
            cells.append(shown.replace("%", " %"))
        what = " (control)" if method in CONTROLS else f" ({counts[method]} examples)" if counts[method] < most else ""
        lines.append(f"| `{method}`{what} | {' | '.join(cells)} |")
    return f"{most} examples of the `test` split, two maps each.\n\n" + "\n".join(lines)


def check_table(checks: dict[str, Any]) -> str:
    """One Markdown table: the area under the ROC curve of the check's statistic on each world."""
    lines = [
        "| task | examples | removal | area, right against wrong maps ↑ | inverted | shuffled | other thing | noise |",
        "|---|---:|---|---|---:|---:|---:|---:|",
    ]
    for task, row in checks.items():
        low, high = row["interval"]
        kinds = " | ".join(f"{value:.3f}" for value in row["roc_auc_against"].values())
        area = f"{row['roc_auc']:.3f} [{low:.3f}, {high:.3f}]"
        lines.append(f"| {TASKS[task]} | {row['examples']} | {row['removal']} | {area} | {kinds} |")
    return "\n".join(lines)


def method_table(rows: list[dict[str, Any]], method: str) -> str:
    """One Markdown table: scores of a method and its variants on all tasks."""
    shown = {"share": "discrimination", "top": "top word right", "better": "better than random removal"}
    methods = [m for m in dict.fromkeys(row["method"] for row in rows) if m.partition(":")[0] == method]
    lines = [f"| task | method | {' | '.join(f'{name} ↑' for name in shown.values())} |", "|---|---|---:|---:|---:|"]
    for task, title in TASKS.items():
        for name in methods:
            own = {row["score"]: row for row in rows if (row["task"], row["method"]) == (task, name)}
            if own:
                cells = [f"{own[s]['mean']:.1%}".replace("%", " %") if s in own else "–" for s in shown]
                lines.append(f"| {title} | `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def replaced(text: str, marker: str, table: str) -> str:
    """A text with a table between two markers, where it has them."""
    start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if start not in text:
        return text
    before, _, rest = text.partition(start)
    return f"{before}{start}\n{table}\n{end}{rest.partition(end)[2]}"


def update_pages(rows: list[dict[str, Any]], checks: dict[str, Any]) -> None:
    """Replace the tables between their markers."""
    text = PAGE.read_text(encoding="utf-8")
    for task in dict.fromkeys(row["task"] for row in rows):
        text = replaced(text, task, table_of(rows, task))
    PAGE.write_text(replaced(text, "checks", check_table(checks)), encoding="utf-8")
    for page in sorted((PAGE.parent / "methods").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = replaced(text, "worlds", method_table(rows, page.stem))
        if new != text:
            page.write_text(new, encoding="utf-8")


def add_checks(source: Path, target: Path) -> None:
    """Add a file of checks to another, task by task, with the values of each map that lie beside them.

    Args:
        source: File that studies/worlds.py wrote, NAME.json; values are in NAME-TASK.parquet.
        target: File of all tasks, which need not exist.
    """
    new = json.loads(source.read_text(encoding="utf-8"))
    kept = json.loads(target.read_text(encoding="utf-8")) if target.is_file() else {}
    target.write_text(json.dumps(kept | new, indent=1) + "\n", encoding="utf-8")
    for task in new:
        values, copy = (path.with_name(f"{path.stem}-{task}.parquet") for path in (source, target))
        copy.unlink(missing_ok=True)  # the values of the row that is replaced
        if values.is_file():
            shutil.copyfile(values, copy)


def main() -> None:
    """Collect runs and write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs; without any, the CSV is computed again")
    parser.add_argument("--checks", type=Path, help="areas under the ROC curve of checks, replaced task by task")
    args = parser.parse_args()
    file, about, checked = (HERE / f"worlds{end}" for end in (".csv", "-manifest.json", "-checks.json"))
    if args.checks is not None:
        add_checks(args.checks, checked)
    checks = json.loads(checked.read_text(encoding="utf-8")) if checked.is_file() else {}
    manifests = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    for folder in args.runs:
        known = read_values(VALUES)
        # The controls of a run of fewer examples do not replace those of a larger one.
        add_values(VALUES, {key: own for key, own in run_values(folder, SCORES).items()
                            if key[2] not in CONTROLS or len(own) >= len(known.get(key, ()))})  # fmt: skip
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        name, methods = manifest["plan"]["name"], manifest["methods"]
        some = name in manifests and len(methods) < len(manifests[name]["methods"])  # a run of further methods
        manifests[f"{name}, {', '.join(methods)}" if some else name] = manifest
    rows = rows_of(read_values(VALUES))
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    about.write_text(json.dumps(manifests, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    update_pages(rows, checks)


if __name__ == "__main__":
    main()
