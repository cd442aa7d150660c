"""The documentation runs: every ``python`` block of a page, top to bottom, in a folder of its own."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

from vitrail.methods import METHODS
from vitrail.methods.applicability import renewed

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


RUNNABLE = [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda p: p.stem)
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, page.name, "exec"), {"__name__": "__main__"})  # noqa: S102
    assert all(p.name == "out" for p in tmp_path.iterdir()), "examples write below out/ only"


def test_every_method_has_its_page_and_is_cited():
    bibliography = (ROOT / "docs" / "bibliography.bib").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    for method in METHODS.values():
        page = (ROOT / "docs" / "methods" / f"{method.name}.md").read_text(encoding="utf-8")
        if method.cite or method.family != "control":  # controls need no reference
            assert f"{{{method.cite}," in bibliography, f"{method.name}: {method.cite or 'nothing to cite'}"
        assert f"{method.name}.md" in index
        for option in method.options:
            assert f"`{option}" in page, f"{method.name}: option {option} is not documented"


REFRESH = (
    'python -c "from pathlib import Path; from vitrail.methods.applicability import renewed; '
    "p = Path('docs/methods/index.md'); p.write_text(renewed(p.read_text('utf-8')), 'utf-8')\""
)


def test_the_applicability_table_says_what_the_registry_says():
    page = (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")
    assert page == renewed(page), f"the table in docs/methods/index.md is out of date; to refresh it: {REFRESH}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
