"""Update the table of results in README.md from committed measurements.

    python results/readme.py

Faithfulness and localisation: three_models_single.csv. Class-specificity: the grid pointing game and pairs of objects
in studies/results. Passes: the pages of the methods. The text between ``<!-- results -->`` and ``<!-- /results -->`` is
replaced.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from method_pages import replaced

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
MODEL = "vit-t"
GRIDS = f"studies/results/grid_pointing/{MODEL}-1.json"
ROWS = (
    "leadlight", "leadlight:object", "grad_rollout", "transformer_mm", "vtranm", "attnlrp",
    "transformer_attribution", "gradtoken", "raw_attention", "centre", "edges", "random",
)  # fmt: skip
CONTROLS = ("centre", "edges", "random")
#: Title, data set and score of the columns from the table of three models, and their decimals.
FAITHFUL = (("SRG, tokens removed ↑", "imagenet", "srg(tokens)", 3), ("SRG, pixels black ↑", "imagenet", "srg(black)", 3))
OUTLINES = ("mIoU, % ↑", "pets", "miou", 1)
GRID, PAIRS, PASSES = "grid, % ↑", "class discrimination, % ↑", "passes"
MISSING = "–"
ALPHA = 0.05  # significance level of the Holm-corrected p-values, as in reports


def scored(dataset: str, score: str, digits: int) -> dict[str, tuple[float, str]]:
    """By method, a value and its text; ○ marks methods not significantly better than the strongest control."""
    found = {}
    with (ROOT / "results" / "three_models_single.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["model"], row["dataset"], row["score"]) == (MODEL, dataset, score):
                value = float(row["value"])
                better = row["control"] == "True" or (float(row["to_control"]) > 0 and float(row["p_to_control"]) < ALPHA)
                found[row["method"]] = value, f"{value:.{digits}f}" + ("" if better else " ○")
    return found


def columns() -> dict[str, dict[str, tuple[float, str]]]:
    """Values by title and method."""
    grids = json.loads((ROOT / GRIDS).read_text(encoding="utf-8"))["scores"]["cell_share (maps)"]
    scenes = json.loads((ROOT / "studies" / "results" / "pairs-scenes.json").read_text(encoding="utf-8"))
    (pairs,) = (result["methods"] for result in scenes["results"] if result["model"] == "scenes")
    found = {title: scored(*rest) for title, *rest in FAITHFUL}
    found[GRID] = {name: (row["mean"][0], f"{100 * row['mean'][0]:.1f}") for name, row in grids.items()}
    found[PAIRS] = {name: (row["wins"][0], f"{100 * row['wins'][0]:.1f}") for name, row in pairs.items()}
    return found | {OUTLINES[0]: scored(*OUTLINES[1:])}


def passes(method: str) -> str:
    """Passes of a method's default, as its page has them."""
    name = method.partition(":")[0]
    lines = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8").splitlines()
    words = next(line for line in lines if line.startswith(f"`{name}` · ")).split(" · ")
    return next(word for word in words if "forward" in word)


def table() -> str:
    """The table in Markdown; bold: best of the rows that are shown."""
    found = columns()
    lines = [f"| method | {' | '.join(found)} | {PASSES} |", "|---" + "|---:" * len(found) + "|---|"]
    for method in ROWS:
        cells = []
        for by_method in found.values():
            value, text = by_method.get(method, (float("-inf"), MISSING))
            best = value == max(by_method[name][0] for name in ROWS if name in by_method)
            cells.append(f"**{text}**" if best else text)
        name = f"*{method}* (control)" if method in CONTROLS else f"`{method}`"
        lines.append(f"| {name} | {' | '.join(cells)} | {passes(method) if method not in CONTROLS else MISSING} |")
    return "\n".join(lines)


def main() -> None:
    """Write the table."""
    README.write_text(replaced(README.read_text(encoding="utf-8"), "results", table()), encoding="utf-8")


if __name__ == "__main__":
    main()
