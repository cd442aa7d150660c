"""Update the table and the figure of movie reviews on docs/text.md from studies/results/movies.json.

python results/movie_table.py
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

from method_pages import replaced

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "studies" / "results" / "movies.json"
PAGE = ROOT / "docs" / "text.md"
FIGURE = ROOT / "docs" / "images" / "movies.png"
CONTROLS = ("random", "inverted", "start first", "end first")
SCORES = {"f1": "token-F1 ↑", "auprc": "AUPRC ↑", "comprehensiveness": "comprehensiveness ↑",
          "sufficiency": "sufficiency ↓"}  # fmt: skip
#: Methods that are drawn in colour, and controls that are drawn.
DRAWN, DRAWN_CONTROLS = ("gradtoken", "leadlight", "agcam", "attnlrp", "conservative_lrp"), ("random", "end first")


def read_rows() -> list[dict[str, Any]]:
    """Rows of the results, methods by token-F1, then controls."""
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    return sorted(rows, key=lambda row: (row["method"] in CONTROLS, -row["f1"]["mean"]))


def cell(score: dict[str, float]) -> str:
    """A mean with half of the width of its interval."""
    return f"{score['mean']:.3f} ± {(score['high'] - score['low']) / 2:.3f}".replace("-", "−")


def table() -> str:
    """All methods and controls in Markdown."""
    lines = [f"| method | {' | '.join(SCORES.values())} |", "|---" + "|---:" * len(SCORES) + "|"]
    for row in read_rows():
        name = row["method"]
        shown = f"*{name}* (control)" if name in CONTROLS else f"`{name}`"
        lines.append(f"| {shown} | {' | '.join(cell(row[score]) for score in SCORES)} |")
    return "\n".join(lines)


def draw(path: Path) -> None:
    """Draw token-F1 against the number of words."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for row in read_rows():
        name, at = row["method"], row["macro_f1_at"]
        values = [at[k]["value"] for k in at]
        if name in DRAWN_CONTROLS:
            axis.plot([int(k) for k in at], values, "--", color="0.3", label=f"{name} (control)")
        elif name in DRAWN:
            axis.plot([int(k) for k in at], values, linewidth=2, label=name)
        elif name not in CONTROLS:
            axis.plot([int(k) for k in at], values, color="0.85", linewidth=1, zorder=0)
    axis.set_xlabel("words picked")
    axis.set_ylabel("token-F1, mean over reviews")
    axis.legend(fontsize=8, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    buffer = BytesIO()
    figure.savefig(buffer, dpi=110, facecolor="white")
    plt.close(figure)
    Image.open(buffer).convert("RGB").quantize(64).save(path, optimize=True)


def main() -> None:
    """Write table and figure."""
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "movie reviews", table()), encoding="utf-8")
    draw(FIGURE)


if __name__ == "__main__":
    main()
