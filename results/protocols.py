"""Update the tables of the grid pointing game, of DiFull and DiPart, and of ROAD, SaCo, monotonicity and infidelity.

    python results/protocols.py

Reads studies/results/grid_pointing, which `studies/grid_pointing.py` wrote: second halves of the images, three models.
The text between the marks ``<!-- NAME -->`` and ``<!-- /NAME -->`` of the pages is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from method_pages import replaced
from readme import CONTROLS, MODELS, ROOT, halves


@dataclass(frozen=True)
class Score:
    """A column.

    Attributes:
        title: Its heading, with the direction that is better.
        key: Its key in the files.
        percent: Whether its values are shown in percent.
        lower: Whether less is better.
    """

    title: str
    key: str
    percent: bool = True
    lower: bool = False

    def text(self, value: float) -> str:
        """A value as it is shown."""
        return (f"{100 * value:.1f}" if self.percent else f"{value:.3f}").replace("-", "−")


GRIDS = (Score("grid ↑", "cell_share (maps)"), Score("grid, before scaling ↑", "cell_share"),
         Score("maximum in the cell ↑", "cell_peak"))  # fmt: skip
DISCONNECTED = (Score("DiFull ↑", "difull"), Score("DiPart ↑", "dipart"))
FAITHFUL = (
    Score("ROAD ↑", "road"),
    Score("SaCo ↑", "saco", percent=False),
    Score("rising steps ↑", "rising"),
    Score("infidelity, scaled ↓", "infidelity_scaled", percent=False, lower=True),
)


def table(scores: Sequence[Score]) -> str:
    """Means of all methods by score, on the three models, sorted by the mean rank; controls last; best in bold."""
    found = {(model, s): halves(model)["scores"].get(s.key, {}) for model in MODELS for s in scores}
    names = [n for n in next(iter(found.values())) if all(n in rows for rows in found.values())]
    methods = [n for n in names if n not in CONTROLS]

    def order(model: str, score: Score) -> list[str]:
        return sorted(methods, key=lambda n: found[model, score][n]["mean"][0], reverse=not score.lower)

    ranks = {n: sum(order(*key).index(n) for key in found) for n in methods}
    head = ["method", *(s.title for s in scores)]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * len(scores) + "|"]
    for name in [*sorted(methods, key=ranks.__getitem__), *(n for n in names if n in CONTROLS)]:
        cells = []
        for s in scores:
            texts = [s.text(found[model, s][name]["mean"][0]) for model in MODELS]
            best = [name == order(model, s)[0] for model in MODELS]
            cells.append(" / ".join(f"**{t}**" if b else t for t, b in zip(texts, best, strict=True)))
        shown = f"*{name}* (control)" if name in CONTROLS else f"`{name}`"
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def images(score: Score) -> str:
    """Number of images or grids that a score is the mean of, on each model."""
    counts = [str(next(iter(halves(model)["scores"][score.key].values()))["images"]) for model in MODELS]
    return counts[0] if len(set(counts)) == 1 else " / ".join(counts)


PAGES = ROOT / "docs" / "scores"
#: Pages, marks on them, and what stands there.
TABLES = (
    (PAGES / "grid_pointing.md", "grids", lambda: table(GRIDS)),
    (PAGES / "grid_pointing.md", "disconnected", lambda: table(DISCONNECTED)),
    (PAGES / "faithfulness.md", "faithful", lambda: table(FAITHFUL)),
)


def main() -> None:
    """Write the tables."""
    for path, mark, content in TABLES:
        path.write_text(replaced(path.read_text(encoding="utf-8"), mark, content()), encoding="utf-8")


if __name__ == "__main__":
    main()
