"""Every number with decimals on a page is a value of the files of results that the page is tied to, or is listed here.

Code, formulas, links and generated tables, which have tests of their own, are left out. A number agrees with a value
that rounds to it, as it is or in percent. So a wrong number can agree with another value of a large file by chance; a
number on a page without files, or one that no value of its files rounds to, fails.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = "src/vitrail/bench/papers/numbers.csv"
SPEED = ("benchmarks/results/speed-h200.json", "benchmarks/results/relevance-h200.json")
STUDIES, GRIDS = "studies/results", "studies/results/grid_pointing/*.json"
#: Files of results by page; pages of methods have the papers' numbers and the costs as well.
FILES = {
    "README.md": (*SPEED, "benchmarks/results/latency-confirmed-h200.json", "benchmarks/results/dataset-h200.json"),
    "docs/methods/leadlight.md": (
        f"{STUDIES}/leadlight.csv", f"{STUDIES}/leadlight.json", f"{STUDIES}/pairs-scenes.json", GRIDS,
        f"{STUDIES}/leadlight_thorough/*.json",
    ),
    "docs/methods/gradtoken.md": (
        f"{STUDIES}/gradtoken-readings-h200.json", f"{STUDIES}/ablations-pets.json", f"{STUDIES}/pairs-scenes.json",
    ),
    "docs/methods/shapley.md": (f"{STUDIES}/shapley.json", f"{STUDIES}/shapley.csv"),
    "docs/methods/vit_cx.md": (f"{STUDIES}/vitcx-combinations-h200.json",),
    "docs/methods/vit_shapley.md": (f"{STUDIES}/vit_shapley-*.json",),
    "docs/papers/gradtoken.md": (PUBLISHED, f"{STUDIES}/gradtoken-readings-h200.json"),
    "docs/papers/vit_cx.md": (PUBLISHED, f"{STUDIES}/paper-tables.json"),
    "docs/papers/vtranm.md": (PUBLISHED, f"{STUDIES}/paper-tables.json"),
    "docs/cards/scenes.md": (f"{STUDIES}/pairs-scenes.json",),
    "docs/audit.md": (f"{STUDIES}/audit-shortcut.json", "benchmarks/results/map_store-cpu.json"),
    "docs/bench.md": (f"{STUDIES}/cluster-simulation.json", "benchmarks/results/source_rates-*.json"),
    "docs/scores/funnybirds.md": (f"{STUDIES}/funnybirds/funnybirds.json",),
    "docs/scores/grid_pointing.md": (GRIDS,),
    "docs/scores/overdetermination.md": (f"{STUDIES}/overdetermination.json",),
    "docs/scores/pointing.md": (f"{STUDIES}/wsol-h200.json", "results/imagenet1000.csv"),
    "docs/scores/wsol.md": (f"{STUDIES}/wsol-*h200.json",),
    "docs/compare.md": (f"{STUDIES}/compare.json",),
    "docs/language-model-truth.md": ("results/recall.csv", f"{STUDIES}/needles.csv", f"{STUDIES}/movies-decoder.json"),
    "docs/models.md": ("benchmarks/results/*.json",),
    "docs/results.md": ("results/imagenet1000.csv",),
    "docs/text.md": (f"{STUDIES}/movies*.json", "training/results/movies-*manifest.json"),
    "docs/three-models.md": ("results/three_models*.csv",),
    "docs/trust.md": (f"{STUDIES}/trust*.json",),
    "docs/web.md": ("benchmarks/results/serve*.json",),
    "docs/worlds.md": ("results/worlds.csv", "results/worlds-checks.json"),
}  # fmt: skip
#: Settings, versions, numbers of an example or of a paper, and differences of values of a file.
GIVEN = {
    "docs/scores/funnybirds.md": "54.6 60.2 73.5 80.6 99.8",
    "README.md": "3.13", "docs/api.md": "0.3 1.0 3.11 3.13", "docs/coming-from.md": "0.7 0.9 1.1 2.1 2.23",
    "docs/compare.md": "2.3 4.1", "docs/integrations.md": "0.9", "docs/quickstart.md": "0.15 0.9 1.1",
    "docs/scores/faithfulness.md": "0.01", "docs/scores/sanity.md": "0.02 0.2 1.5", "docs/trust.md": "0.05 2.4",
    "docs/scores/segmentation.md": "0.1 0.9", "docs/scores/statistics.md": "0.22 0.7",
    "docs/scores/wsol.md": "0.95 1.5",
    "docs/scores/overdetermination.md": "0.036 20.95", "docs/papers/vit_cx.md": "0.036 0.91 0.92 20.95",
    "docs/papers/gradtoken.md": "16.82 16.92", "docs/bench.md": "0.2 3.50",
    "docs/scores/agreement.md": "0.1 10.8 5.3",
}  # fmt: skip
#: Measured, and kept in no file: by a test, while a model was trained, or once by hand. Not to be added to.
WITHOUT_FILE = {
    "docs/cards/cifar10-distilled.md": "0.26 3.59 7.2 7.75 85.5 93.83",
    "docs/cards/cifar10.md": "0.25 0.75 3.58 7.2 7.75 90.0 92.63 92.81 94.09",
    "docs/cards/lm-recall.md": "0.34 0.67 99.8 99.95", "docs/language-model-truth.md": "99.95",
    "docs/cards/movements-tones.md": "0.11 0.18 0.23 0.37 62.5 98.4",
    "docs/cards/scenes-tasks.md": "0.21 0.32 0.36 0.42 0.5 0.66 0.72 38.8 43.1 60.7 91.6 92.9 93.3 98.0 98.2 99.1 99.6",
    "docs/cards/scenes-vlm.md": "0.02 0.5 0.60 1.2 89.6 99.1 99.3 99.9",
    "docs/cards/scenes.md": "1.32 2.6 72.8 82.5 83.9 9.5 99.15", "docs/methods/abslrp.md": "0.972",
    "docs/methods/attnlrp.md": "0.094 0.90", "docs/methods/grad_eclip.md": "22.5", "docs/worlds.md": "22.5",
    "docs/methods/gradtoken.md": "3.4 67.3 70.2 74.5 82.5", "docs/methods/lrp.md": "0.023 0.665",
    "docs/methods/partial_lrp.md": "0.670 0.882", "docs/methods/smoothgrad.md": "0.3859",
    "docs/methods/transformer_attribution.md": "0.782 0.840 0.928 0.962",
    "docs/methods/vit_cx.md": "0.023 0.89 0.894 0.895 0.902 0.905 14.6 2.5 24.8 25.5 27.2 27.3 4.1",
    "docs/methods/vit_shapley.md": "0.302 0.731 0.785 0.787", "docs/models.md": "44.1 44.3 49.3 50.4",
    "docs/text.md": "0.472 93.0", "docs/web.md": "57.3",
}  # fmt: skip
#: Pages that a script writes as a whole from files.
GENERATED = {"docs/leaderboard.md"}
LEFT_OUT = (
    r"```.*?```", r"<!-- ([^/\n][^\n]*?) -->.*?<!-- /\1 -->", r"\$\$.*?\$\$", r"\$[^$\n]+\$", r"`[^`\n]*`",
    r"\]\([^)]*\)", r"<[^>]+>",
)  # fmt: skip
NUMBER = re.compile(r"(?<![\w.,/])(\d{1,3}(?:,\d{3})*\.\d+)(?![\d.]*\w)")


def numbers(page: Path) -> set[str]:
    """Numbers with decimals in the text and the hand-written tables of a page."""
    text = page.read_text(encoding="utf-8")
    for pattern in LEFT_OUT:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return {number.replace(",", "") for number in NUMBER.findall(text)}


def values(content: Any) -> Iterator[float]:
    """All numbers of nested lists and dictionaries."""
    if isinstance(content, dict | list):
        for one in content.values() if isinstance(content, dict) else content:
            yield from values(one)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield float(content)


def cells(path: Path) -> Iterator[float]:
    """All numbers of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            for cell in row:
                try:
                    yield float(cell)
                except ValueError:
                    continue


@cache
def roundings(path: Path) -> frozenset[str]:
    """The numbers of a file as a page may have them: without sign, as they are or in percent, one to four decimals."""
    found = cells(path) if path.suffix == ".csv" else values(json.loads(path.read_text(encoding="utf-8")))
    return frozenset(f"{abs(v) * f:.{d}f}" for v in found for f in (1, 100) for d in range(1, 5))


PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if numbers(p)]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_numbers_are_those_of_files(page: Path):
    name = page.relative_to(ROOT).as_posix()
    if name in GENERATED:
        return
    globs = FILES.get(name, ()) + ((PUBLISHED, *SPEED) if name.startswith("docs/methods/") else ())
    files = [path for glob in globs for path in ROOT.glob(glob)]
    known = {number for text in (GIVEN, WITHOUT_FILE) for number in text.get(name, "").split()}
    missing = numbers(page) - known - {rounded for path in files for rounded in roundings(path)}
    shown = ", ".join(path.name for path in files) or "no file"
    assert not missing, f"{name} has {sorted(missing)}, which no value of {shown} rounds to"


def test_lists_have_no_number_that_left_its_page():
    left = {
        name: sorted(set(text.split()) - numbers(ROOT / name))
        for listed in (GIVEN, WITHOUT_FILE)
        for name, text in listed.items()
    }
    assert not {name: gone for name, gone in left.items() if gone}


def test_a_number_without_a_value_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A method has 12.3 % and 0.457 (`x=0.99`), [see](a-1.5.md).\n\n<!-- t -->\n| 7.7 |\n<!-- /t -->\n")
    (tmp_path / "a.json").write_text('{"rows": [{"mean": 0.1234}, {"mean": -0.9, "n": 3}]}')
    assert numbers(page) == {"12.3", "0.457"}
    assert numbers(page) - roundings(tmp_path / "a.json") == {"0.457"}
