"""The papers the page shows are those of the bibliography; ``python tests/web/test_references.py`` writes them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from vitrail.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
REFERENCES = ROOT / "src" / "vitrail" / "web" / "references.json"


def papers():
    """Authors, year, title and URL of each paper that a method cites."""
    spec = importlib.util.spec_from_file_location("docs_hook_bibliography", ROOT / "docs" / "hooks" / "bibliography.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    entries = module.load(ROOT / "docs" / "bibliography.bib")
    cited = sorted({method.cite for method in METHODS.values()} & set(entries))
    return {key: _paper(entries[key]) for key in cited if "year" in entries[key].fields}


def _paper(entry):
    fields = entry.fields
    url = fields.get("url") or (f"https://doi.org/{fields['doi']}" if "doi" in fields else None)
    return {"authors": entry.label.rpartition(",")[0], "year": fields["year"], "title": fields["title"], "url": url}


def test_papers_are_those_of_the_bibliography():
    pytest.importorskip("mkdocs")
    stored = json.loads(REFERENCES.read_text(encoding="utf-8"))
    assert stored == papers(), "run `python tests/web/test_references.py` and commit references.json"


if __name__ == "__main__":
    REFERENCES.write_text(json.dumps(papers(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
