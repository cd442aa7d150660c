"""Numbers on pages are values of the files of results that their own section names or is tied to.

Only values of the methods, scores and models count that a paragraph, or the row and the column of a table, names
(`page_subjects.py`). Whole numbers count where a unit makes them a claim ("300 images", "31 of 39", "96 %") and the
section has files. Counted claims are computed again (`counted_claims.py`). Settings, numbers of a paper or an example,
numbers that are computed from values, and those that are kept in no file are listed in `number_lists.py`. Code,
formulas and generated tables are left out; the latter have tests of their own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.repository.counted_claims import CLAIMS, Claim
from tests.repository.number_lists import FILES, GENERATED, GIVEN, METHOD_FILES, UNNAMED, WITHOUT_FILE
from tests.repository.page_numbers import ROOT, Block, counts, is_rounded, named_files, read_blocks
from tests.repository.page_subjects import Subjects

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / n / "README.md" for n in ("benchmarks", "studies")),
]
PAGES = [page for page in PAGES if page.relative_to(ROOT).as_posix() not in GENERATED]


def resolve(globs: tuple[str, ...]) -> set[Path]:
    """The files of some patterns; each must have one."""
    found = [set(ROOT.glob(glob)) for glob in globs]
    assert all(found), f"no file for one of {globs}"
    return set().union(*found)


def files_by_section(name: str, blocks: list[Block], folder: Path) -> dict[tuple[str, ...], frozenset[Path]]:
    """Files of each section: those that it names and those that are tied to it, or those of the section above it."""
    tied: dict[tuple[str, ...], set[Path]] = {}
    for block in blocks:
        section = f"{name}#{block.headings[-1]}" if block.headings else name
        tied.setdefault(block.headings, resolve(FILES.get(section, ()))).update(named_files(block.text, folder))
    page = resolve(FILES.get(name, ()))
    found = {}
    for headings in tied:
        above = [headings[:depth] for depth in range(len(headings), 0, -1)]
        found[headings] = frozenset(next((tied[one] for one in above if tied.get(one)), page))
    return found


def missing(name: str, text: str, folder: Path) -> list[str]:
    """Numbers of a page that no value of their section's files rounds to, each with its section."""
    blocks = list(read_blocks(text, [claim.shown() for claim in CLAIMS if claim.page == name]))
    files = files_by_section(name, blocks, folder)
    everywhere = resolve(METHOD_FILES) if name.startswith("docs/methods/") else set()
    known = {number for lists in (GIVEN, WITHOUT_FILE) for number in lists.get(name, "").split()}
    unnamed = UNNAMED.get(name, "").split()
    wrong = []
    for block in blocks:
        own = files[block.headings]
        subjects = block.subjects
        if subjects.methods and everywhere:  # "this form", "the paper's scheme"
            subjects = replace(subjects, methods=subjects.methods | {Path(name).stem})
        numbers = block.decimals() | (block.measured() if own else set())
        claims = {
            n
            for n in numbers
            if not any(is_rounded(n, path, Subjects() if n in unnamed else subjects) for path in own | everywhere)
        }
        if own:
            claims |= {n for n in block.counts() if not any(n in counts(path) for path in own)}
        section = block.headings[-1] if block.headings else "beginning"
        shown = ", ".join(sorted(path.name for path in own)) or "no file"
        wrong += [f"{name}#{section}: {n} is not in {shown}: {block.shown[:80]}" for n in sorted(claims - known)]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_numbers_are_those_of_files(page: Path):
    wrong = missing(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"), page.parent)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}: {claim.text[:40]}")
def test_counted_claims_hold(claim: Claim):
    text = re.sub(r"\s+", " ", (ROOT / claim.page).read_text(encoding="utf-8"))
    assert claim.shown() in text, f"{claim.page} must say: {claim.shown()}"


def test_lists_have_no_number_that_left_its_page():
    def numbers(name: str) -> set[str]:
        blocks = read_blocks((ROOT / name).read_text(encoding="utf-8"))
        return set().union(*(block.decimals() | block.measured() | block.counts() for block in blocks))

    left = {
        name: sorted(set(text.split()) - numbers(name))
        for listed in (GIVEN, WITHOUT_FILE, UNNAMED)
        for name, text in listed.items()
    }
    assert not {name: gone for name, gone in left.items() if gone}


def test_sections_with_files_exist():
    anchors = {
        f"{page.relative_to(ROOT).as_posix()}#{heading}"
        for page in PAGES
        for block in read_blocks(page.read_text(encoding="utf-8"))
        for heading in block.headings
    }
    pages = {page.relative_to(ROOT).as_posix() for page in PAGES}
    assert set(FILES) <= anchors | pages, sorted(set(FILES) - anchors - pages)


PAGE = """# Page
## First
By `a` 12.3 % and 0.457 (`x=0.99`), [see](a-1.5.md), on 40 images in 7 s; 3 of 5 rows. From `{folder}/a.json`.

| method | score |
|---|---|
| `left` | 0.25 |
| `right` | 0.25 |

<!-- t -->
| 7.7 |
<!-- /t -->
## Second
The same 12.3 %, without a file.
"""


def test_a_planted_number_is_found(tmp_path, monkeypatch):
    """Values of another section, of another method or of a code span do not count, nor do lists of another page."""
    (tmp_path / "results").mkdir()
    rows = '[{"method": "left", "mean": 0.2501}, {"method": "right", "mean": 0.75}]'
    (tmp_path / "results" / "a.json").write_text(f'{{"rows": {rows}, "mean": 0.1234, "images": 40, "seconds": 6.6}}')
    text = PAGE.format(folder="results")
    found = [one.partition(": ")[2].split(" is not in ")[0] for one in missing("page.md", text, tmp_path)]
    assert found == ["0.457", "3", "5", "0.25", "12.3"]
    assert "12.3" in missing("page.md", text.replace("7 s", "8 s"), tmp_path)[-1]
    assert any(": 8 is not in" in one for one in missing("page.md", text.replace("7 s", "8 s"), tmp_path))
    assert any(": 41 is not in" in one for one in missing("page.md", text.replace("40 images", "41 images"), tmp_path))
    assert any("`left`" in one for one in missing("page.md", text.replace("`left` | 0.25", "`left` | 0.26"), tmp_path))


def test_a_wrong_count_is_found(monkeypatch):
    claim = Claim("README.md", "{} methods by twelve scores", lambda: (31,))
    with pytest.raises(AssertionError, match="must say: 31 methods"):
        test_counted_claims_hold(claim)


SUBJECTS = """# Page
On ViT-Tiny the mIoU of `rollout` is 40.1 and its SRG 0.123; VTranM has 60.2 (`results/a.csv`).

| method | mIoU, ViT-Tiny | mIoU, DeiT-Tiny | SRG, ViT-Tiny |
|---|---:|---:|---:|
| `rollout` | 40.1 | 45.6 | 0.123 |
| `vtranm` | 60.2 | 65.8 | 0.234 |
"""
VALUES = """model,method,score,value
vit-t,rollout,miou,40.1
vit-t,rollout,srg,0.123
deit-t,rollout,miou,45.6
deit-t,rollout,srg,0.345
vit-t,vtranm,miou,60.2
vit-t,vtranm,srg,0.234
deit-t,vtranm,miou,65.8
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("is 40.1 and", "is 45.6 and"),  # another model
        ("0.123 |", "0.234 |"),  # another method
        ("| 45.6 |", "| 40.1 |"),  # another model
        ("mIoU of `rollout` is 40.1", "mAP of `rollout` is 40.1"),  # another score, of two that are named
        ("| mIoU, DeiT-Tiny |", "| SRG, DeiT-Tiny |"),  # another score
    ],
)
def test_values_of_other_subjects_do_not_count(tmp_path, old, new):
    """Where a paragraph names several methods, a value of each of them counts for all of its numbers."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.csv").write_text(VALUES)
    assert not missing("page.md", SUBJECTS, tmp_path)
    assert old in SUBJECTS
    assert missing("page.md", SUBJECTS.replace(old, new), tmp_path)
