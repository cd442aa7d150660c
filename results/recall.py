"""Collect runs of the plans lm_recall and lm_recall_many into recall.csv, and update the tables of the documentation.

    python results/recall.py [runs/KEY ...]

Means and 95 % intervals (percentile bootstrap over pairs of prompts) are computed from the values of each pair, which
recall.parquet keeps; without runs, the CSV is computed from it again. Two controls depend on positions alone and are
computed from the prompts. The tables of real models are made from ``studies/results/needles.csv``, which
studies/needles.py writes.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from example_values import Values, add_values, mean_row, read_values, run_values

from vitrail.bench.plan import CONTROLS
from vitrail.data.recall import RECALL_TASKS, RecallPrompt, draw_recall
from vitrail.data.world_pairs import CONTRAST

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "language-model-truth.md"
NEEDLES = HERE.parent / "studies" / "results" / "needles.csv"
STUDIES = HERE.parent / "studies" / "README.md"
VALUES = HERE / "recall.parquet"
MODEL = "lm-recall"
#: Scores of the CSV by protocol.
SCORES = {
    "source": ("source", "source_mass", "sentence"), "discrimination": ("share",),
    "continuation": ("comprehensiveness", "sufficiency"),
}  # fmt: skip
COLUMNS = ("model", "task", "method", "control", "protocol", "score", "examples", "mean", "low", "high")
#: Tables of the page: score, what follows the name of a task, and the name of the marker.
TABLES = {
    "source-found": ("source", ""), "sentence-found": ("sentence", ""), "discrimination": ("share", ""),
    "contrast-source": ("source", CONTRAST), "contrast-discrimination": ("share", CONTRAST),
    "comprehensiveness": ("comprehensiveness", ""), "sufficiency": ("sufficiency", ""),
}  # fmt: skip
POSITIONS = ("last words first", "first words first")
#: Scores of real models, and their names in the table.
NEEDLE_SCORES = (
    ("odds", "word", "top word"), ("odds", "sentence", "top sentence"), ("odds", "source", "discrimination"),
    ("others", "word", "top word, next candidates"), ("contrast", "word", "top word, contrast"),
    ("answer", "word", "top word, logit"),
)  # fmt: skip
#: Real models by their name in the file of results, and the methods that are named in the finding, the default first.
NEEDLE_MODELS = {"smollm2": "SmolLM2-135M", "qwen-coder": "Qwen2.5-Coder-0.5B"}
FOUND_BY = ("attnlrp:released", "conservative_lrp", "agcam", "gradsam:readout")
Row = dict[str, Any]


def rows_of(values: Values) -> list[Row]:
    """Rows of the CSV."""
    controls = (*CONTROLS, *POSITIONS)
    return [{**mean_row(key, own), "control": key[2] in controls} for key, own in values.items()]


def position_scores(prompt: RecallPrompt, last: bool) -> dict[str, float]:
    """Scores of relevance that grows towards the end of the prompt, or towards its start."""
    values = np.arange(1.0, len(prompt.words) + 1)
    values = values if last else values[::-1]
    sentence = np.array(prompt.sentence)
    totals = [values[sentence == s].sum() for s in range(sentence.max())]  # without the question
    own, other = (values[list(places)].mean() for places in (prompt.source, prompt.other_source))
    return {
        "source": float(int(values.argmax()) in prompt.source),
        "source_mass": float(values[list(prompt.source)].sum() / values.sum()),
        "sentence": float(int(np.argmax(totals)) in sentence[list(prompt.source)]),
        "share": 0.5 * float(np.sign(own - other) + 1),
    }


def position_rows(count: int) -> list[Row]:
    """Rows of the controls that depend on positions alone; a contrast changes nothing in them."""
    rows = []
    for method in POSITIONS:
        for task in RECALL_TASKS:
            pairs = [draw_recall(0, index, task=task, split="test") for index in range(count)]
            found = [[position_scores(one, method == POSITIONS[0]) for one in pair] for pair in pairs]
            for protocol in ("source", "discrimination"):
                for score in SCORES[protocol]:
                    values = np.array([np.mean([one[score] for one in pair]) for pair in found])
                    keys = [(MODEL, f"{task}{kind}", method, protocol, score) for kind in ("", CONTRAST)]
                    rows += rows_of(dict.fromkeys(keys, values))
    return rows


def cell(row: Mapping[str, Any] | None) -> str:
    """A mean with its interval."""
    if row is None:
        return "–"
    if row["score"] in SCORES["continuation"]:
        return f"{float(row['mean']):.2f} [{float(row['low']):.2f}, {float(row['high']):.2f}]"
    shown = f"{float(row['mean']):.1%} [{100 * float(row['low']):.1f}, {100 * float(row['high']):.1f}]"
    return shown.replace("%", " %")


def markdown(
    heads: Sequence[str],
    rows: Mapping[str, Sequence[Row | None]],
    controls: set[str],
    lower: bool = False,
    counts: Mapping[str, int] | None = None,
) -> str:
    """A table with one row for each method, best mean first, controls last.

    Args:
        heads: Names of the columns.
        rows: Cells of each method.
        controls: Methods that are controls.
        lower: Whether lower values are better.
        counts: Number of prompts of each method, for a column of its own.
    """

    def mean(method: str) -> float:
        known = [float(row["mean"]) for row in rows[method] if row is not None]
        return (-1 if lower else 1) * sum(known) / max(1, len(known))

    arrow = "↓" if lower else "↑"
    more, rule = ("prompts | ", "---:|") if counts else ("", "")
    lines = [
        f"| method | {more}{' | '.join(f'{head} {arrow}' for head in heads)} |",
        f"|---|{rule}{'---:|' * len(heads)}",
    ]
    for method in sorted(rows, key=lambda m: (m in controls, -mean(m), m)):
        name = f"{method} (control)" if method in controls else f"`{method}`"
        shown = f"{counts[method]} | " if counts else ""
        lines.append(f"| {name} | {shown}{' | '.join(map(cell, rows[method]))} |")
    return "\n".join(lines)


def recall_table(rows: Sequence[Row], score: str, kind: str) -> str:
    """The table of one score: a column for each task."""
    values = {(row["method"], row["task"]): row for row in rows if row["score"] == score}
    methods = sorted({method for method, task in values if task.endswith(CONTRAST) == bool(kind)})
    found = {m: [values.get((m, f"{task}{kind}")) for task in RECALL_TASKS] for m in methods}
    return markdown(
        list(RECALL_TASKS), found, {m for m in methods if m in (*CONTROLS, *POSITIONS)}, score == "sufficiency"
    )


def needle_table(rows: Sequence[Row], model: str) -> str:
    """The table of one real model."""
    own = [row for row in rows if row["model"] == model]
    values = {(row["method"], row["target"], row["score"]): row for row in own}
    methods = list(dict.fromkeys(row["method"] for row in own))
    shown = [one for one in NEEDLE_SCORES if any((m, *one[:2]) in values for m in methods)]
    found = {m: [values.get((m, target, score)) for target, score, _ in shown] for m in methods}
    controls = {row["method"] for row in own if str(row["control"]) == "True"}
    counts = {row["method"]: int(row["prompts"]) for row in own}
    return markdown([name for _, _, name in shown], found, controls, counts=counts)


def needle_finding(rows: Sequence[Row]) -> str:
    """How often the chosen methods find the source in each model, and how often they do for the logit."""
    shares = {(row["model"], row["method"], row["target"]): row for row in rows if row["score"] == "word"}
    models = []
    for model, name in NEEDLE_MODELS.items():
        texts = [
            f"`{method}` in {float(shares[model, method, 'odds']['mean']):.1%} "
            f"(logit: {float(shares[model, method, 'answer']['mean']):.1%}; {shares[model, method, 'odds']['prompts']})"
            for method in FOUND_BY
            if (model, method, "odds") in shares
        ]
        models.append(f"in {name} with {', '.join(texts)}")
    return "; ".join(models).replace("%", " %")


def tables(rows: Sequence[Row], needles: Sequence[Row]) -> dict[str, str]:
    """All tables of the page by marker."""
    found = {name: recall_table(rows, score, kind) for name, (score, kind) in TABLES.items()}
    return found | {f"needles-{model}": needle_table(needles, model) for model in {row["model"] for row in needles}}


def read_rows(path: Path) -> list[Row]:
    """Rows of a CSV; none where it does not exist."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def replaced(text: str, marker: str, content: str) -> str:
    """A text with other content between two markers."""
    start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    if start not in text:
        raise SystemExit(f"there is no place for {marker}: add {start} and {end}")
    before, _, rest = text.partition(start)
    return f"{before}{start}{content}{end}{rest.partition(end)[2]}"


def update_pages(rows: Sequence[Row], needles: Sequence[Row]) -> None:
    """Replace tables and findings between their markers."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in tables(rows, needles).items():
        text = replaced(text, name, f"\n{table}\n")
    finding = needle_finding(needles)
    PAGE.write_text(replaced(text, "needles-finding", finding), encoding="utf-8")
    STUDIES.write_text(replaced(STUDIES.read_text(encoding="utf-8"), "needles-finding", finding), encoding="utf-8")


def main() -> None:
    """Collect runs and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs; without any, the CSV is computed again")
    args = parser.parse_args()
    file, about = HERE / "recall.csv", HERE / "recall-manifest.json"
    manifests = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    for folder in args.runs:
        add_values(VALUES, run_values(folder, SCORES, MODEL))
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        labels = [one["label"] for one in manifest["plan"]["dataset"]]
        name, methods = manifest["plan"]["name"] if len(labels) > 1 else labels[0], manifest["methods"]
        some = name in manifests and len(methods) < len(manifests[name]["methods"])  # a run of further methods
        manifests[f"{name}, {', '.join(methods)}" if some else name] = manifest
    rows = rows_of(read_values(VALUES))
    rows += position_rows(max(row["examples"] for row in rows))
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    about.write_text(json.dumps(manifests, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    update_pages(read_rows(file), read_rows(NEEDLES))


if __name__ == "__main__":
    main()
