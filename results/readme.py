"""Update the tables of results in README.md, on Leadlight's page (two) and on the page of FunnyBirds.

    python results/readme.py

README: faithfulness and localisation from imagenet1000.csv, class-specificity from the grid pointing game and
pairs of objects in studies/results, passes from the pages of the methods. Leadlight's page: studies/results'
grid_pointing and leadlight_thorough. The text between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` is replaced.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import funnybirds_table
import show
from method_pages import replaced

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "methods" / "leadlight.md"
THOROUGH = ROOT / "studies" / "results" / "leadlight_thorough"
MODEL = "vit-t"
MODELS = {"vit-t": "ViT-Tiny", "deit-t": "DeiT-Tiny", "dinov2-s": "DINOv2-S"}
FORMS = ("leadlight", "leadlight:object", "transformer_mm")
#: Columns of the second halves: title, and key in the file.
HALVES = (
    ("grid, raw ↑", "cell_share"), ("grid, maps ↑", "cell_share (maps)"), ("maximum in the cell ↑", "cell_peak"),
    ("mIoU ↑", "mIoU"), ("SRG, black ↑", "SRG, chefer21"), ("SRG, mean colour ↑", "SRG, chefer21-mean"),
    ("SRG, tokens ↑", "SRG, agcam-tokens"), ("corners ↓", "corners (pets)"),
)  # fmt: skip
ROWS = (
    "leadlight", "leadlight:object", "grad_rollout", "grad_eclip", "transformer_mm", "vtranm", "attnlrp",
    "transformer_attribution", "gradtoken", "raw_attention", "centre", "edges", "random",
)  # fmt: skip
CONTROLS = ("centre", "edges", "random")
#: Title, score and decimals of the columns from the table of a thousand images, maps of the predicted class.
FAITHFUL = (
    ("SRG, tokens removed ↑", show.SRG_TOKENS, 3),
    ("SRG, pixels black ↑", show.SRG_BLACK, 3),
)
OUTLINES = ("mIoU, % ↑", show.MIOU, 1)
GRID, PAIRS, PASSES = "grid, % ↑", "class discrimination, % ↑", "passes"
MISSING = "–"


def scored(column: show.ScoreColumn, digits: int) -> dict[str, tuple[float, str]]:
    """By method, a value and its text; ○ marks methods not significantly better than the strongest control."""
    cells = show.ResultsTable(ROOT / "results" / f"{show.NAME}.csv").column(column)
    return {
        name: (
            cell.value,
            f"{cell.value:.{digits}f}".replace("-", "−") + ("" if cell.control or cell.beats_controls else " ○"),
        )
        for name, cell in cells.items()
    }


def halves(model: str) -> dict[str, Any]:
    """What `studies/grid_pointing.py` measured on the second halves."""
    path = ROOT / "studies" / "results" / "grid_pointing" / f"{model}-1.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def halves_table() -> str:
    """The default beside its former form and its baseline on three models, in percent, in Markdown."""
    head = ["", *(title for title, _ in HALVES), "check passed ↑"]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for model, title in MODELS.items():
        found = halves(model)
        scores, checks = {**found["scores"], "mIoU": found["mIoU"]}, found.get("checks", {})
        own = [scores.get(key, {}).get(FORMS[0]) for _, key in HALVES]
        counts = [MISSING if row is None else f"*{row['images']}*" for row in own]
        lines.append(f"| **{title}** | {' | '.join(counts)} | |")
        for form in FORMS:
            rows = [scores.get(key, {}).get(form) for _, key in HALVES]
            cells = [MISSING if row is None else f"{_factor(key) * row['mean'][0]:.1f}"
                     for row, (_, key) in zip(rows, HALVES, strict=True)]  # fmt: skip
            verdicts = checks.get(form, {})
            passed = f"{verdicts.get('faithful', 0)} of {sum(verdicts.values())}" if verdicts else MISSING
            lines.append(f"| `{form}` | {' | '.join(cells)} | {passed} |")
        apart = [MISSING if row is None else _apart(*(_factor(key) * v for v in row["to_object"]))
                 for row, (_, key) in zip(own, HALVES, strict=True)]  # fmt: skip
        lines.append(f"| difference to `{FORMS[1]}` | {' | '.join(apart)} | |")
    return "\n".join(lines)


def _apart(value: float, low: float, high: float) -> str:
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")


def _factor(key: str) -> int:
    """Areas of the accuracy are in points already."""
    return 1 if key.startswith("SRG, chefer21") else 100


def thorough_table() -> str:
    """IIA and DIX as sources of leadlight beside its forms, first halves, in Markdown."""
    forms = {"leadlight:single": "`leadlight:single`", "leadlight:object": "`leadlight:object`", "dix": "`dix`",
             "dix+keys": "DIX spread by keys", "dix+ratio+keys": "DIX with the ratio, spread by keys", "iia": "`iia`",
             "iia+keys": "IIA spread by keys", "iia+ratio+keys": "IIA with the ratio, spread by keys"}  # fmt: skip
    columns = (("grid, raw ↑", "cell_share", 100), ("mIoU ↑", "mIoU", 100), ("SRG, black ↑", "SRG, chefer21", 1),
               ("SRG, mean colour ↑", "SRG, chefer21-mean", 1), ("corners ↓", "corners (pets)", 100))  # fmt: skip
    lines = [f"| source | {' | '.join(title for title, *_ in columns)} |", "|---" + "|---:" * len(columns) + "|"]
    found = {model: json.loads((THOROUGH / f"{model}-0.json").read_text(encoding="utf-8")) for model in MODELS}
    scores = {model: {**one["scores"], "mIoU": one["mIoU"]} for model, one in found.items()}
    for form, title in forms.items():
        cells = [" / ".join(f"{factor * scores[m][key][form]['mean'][0]:.1f}" for m in MODELS)
                 for _, key, factor in columns]  # fmt: skip
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def columns() -> dict[str, dict[str, tuple[float, str]]]:
    """Values by title and method."""
    grids = halves(MODEL)["scores"]["cell_share (maps)"]
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


def pairs_table() -> str:
    """Class discrimination on scenes with two objects, in Markdown: the most accurate first, controls last."""
    scenes = json.loads((ROOT / "studies" / "results" / "pairs-scenes.json").read_text(encoding="utf-8"))
    (found,) = (result["methods"] for result in scenes["results"] if result["model"] == "scenes")

    def cell(row: list[float]) -> str:
        mean, low, high = (100 * value for value in row)
        return f"{mean:.1f} % [{low:.1f}, {high:.1f}]"

    controls = (*CONTROLS, "inverted")
    lines = ["| method, on `scenes` | class-discrimination accuracy ↑ | relevance mass ↑ |", "|---|---:|---:|"]
    for name in sorted(found, key=lambda m: (m in controls, -found[m]["wins"][0], m)):
        title = f"*{name}* (control)" if name in controls else f"`{name}`"
        lines.append(f"| {title} | {cell(found[name]['wins'])} | {cell(found[name]['mass'])} |")
    return "\n".join(lines)


#: Pages, marks on them, and what stands there.
TABLES = (
    (README, "results", table),
    (ROOT / "studies" / "README.md", "pairs", pairs_table),
    (PAGE, "second halves", halves_table),
    (PAGE, "thorough", thorough_table),
    (funnybirds_table.PAGE, "funnybirds", funnybirds_table.birds_table),
    (funnybirds_table.PAGE, "second training", funnybirds_table.second_table),
)


def main() -> None:
    """Write the tables."""
    for path, mark, content in TABLES:
        path.write_text(replaced(path.read_text(encoding="utf-8"), mark, content()), encoding="utf-8")


if __name__ == "__main__":
    main()
