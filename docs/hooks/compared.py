"""MkDocs hook: tables of `vitrail.compare` on docs/compare.md.

``<!-- compare: MODEL -->`` becomes the table of a model in studies/results/compare.json.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

MARK = re.compile(r"<!-- compare: (\S+) -->")
RESULTS = Path("studies") / "results" / "compare.json"
HEADER = (
    "method",
    "faithfulness, points ↑",
    "difference to the first",
    "class similarity ↓",
    "localisation ↑",
    "forward passes ↓",
)


def table(result: dict[str, Any]) -> str:
    """The rows of one model in Markdown: methods by faithfulness, then controls; the recommended method is bold."""
    lines = [f"| {' | '.join(HEADER)} |", "|---|---:|---:|---:|---:|---:|"]
    for place, row in enumerate(result["rows"]):
        value, low, high = (f"{100 * number:.1f}".replace("-", "−") for number in row["faithfulness"][:3])
        apart = "=" if place and row["tied_with_best"] else "–"  # older results have no intervals of differences
        if row.get("to_best"):
            gap, least, most = (f"{100 * number:+.1f}".replace("-", "−") for number in row["to_best"])
            apart = f"{gap} [{least}, {most}]{'=' if row['tied_with_best'] else ''}"
        name = f"*{row['method']}* (control)" if row["control"] else f"`{row['method']}`"
        name = f"**{name}**" if row["method"] == result["recommended"] else name
        cells = [
            name, f"{value} [{low}, {high}]", apart, _number(row["class_similarity"]), _number(row["localisation"]),
            f"{row['forwards']:.0f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".replace("-", "−")


def on_page_markdown(markdown: str, *, config: MkDocsConfig, **_: object) -> str:
    """Put the tables into the page."""
    if not MARK.search(markdown):
        return markdown
    results = json.loads((Path(config.config_file_path).parent / RESULTS).read_text(encoding="utf-8"))
    return MARK.sub(lambda found: table(results[found[1]]), markdown)
