"""The documentation runs: every ``python`` block of a page, top to bottom, in a folder of its own.

Tutorials are run as notebooks (test_tutorials.py), other snippets in test_docs_snippets.py and test_coming_from.py.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

from tests.repository.page_numbers import anchor
from vitrail.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES = [*GUIDES, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: Pages whose examples take seconds.
SLOW = (
    "README", "coming-from", "figures", "models", "perturbation", "quickstart", "sanity", "trust", "vision-language",
)  # fmt: skip
RUNNABLE = [
    pytest.param(p, marks=pytest.mark.slow if p.stem in SLOW else ())
    for p in PAGES
    if p.parent.name != "tutorials" and BLOCK.search(p.read_text(encoding="utf-8"))
]


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


def test_links_lead_to_headings():
    """Also between README, guides and pages; a strict build of the site finds only its own, after minutes of tests."""
    pages = [*PAGES, *ROOT.glob("[a-z]*/README.md")]
    headings: dict[Path, set[str]] = {}
    for page in pages:
        shown = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        headings[page] = {anchor(heading) for heading in re.findall(r"^#+ (.+)$", shown, re.MULTILINE)}
    broken = [
        f"{page.relative_to(ROOT)}: {link}#{heading}"
        for page in pages
        for link, heading in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", page.read_text(encoding="utf-8"))
        if heading not in headings.get((page.parent / link).resolve() if link else page, set())
    ]
    assert not broken


def test_examples_import_public_modules():
    """Only ``vitrail`` and its first level; the page of the server is about its modules."""
    for page in PAGES:
        if page.name == "web.md":
            continue
        for module in re.findall(r"^(?:from|import) (vitrail[\w.]*)", page.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.fullmatch(r"vitrail(\.[a-z]\w*)?", module), f"{page.name}: {module}"


def test_links_between_pages_resolve():
    for page in PAGES:
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_tables_of_the_readme_and_of_the_default_are_those_of_the_measurements(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    import protocols
    import readme

    for path, mark, content in (*readme.TABLES, *protocols.TABLES):
        text = path.read_text(encoding="utf-8")
        assert text == readme.replaced(text, mark, content()), "run python results/readme.py and results/protocols.py"


def test_class_discrimination_counts_agree_with_the_measurements():
    scenes = json.loads((ROOT / "studies" / "results" / "pairs-scenes.json").read_text(encoding="utf-8"))
    (pairs,) = (result["methods"] for result in scenes["results"] if result["model"] == "scenes")
    specific = {name for name in pairs if METHODS[name.partition(":")[0]].class_specific} - {"inverted"}
    above = [name for name in specific if pairs[name]["wins"][1] > 0.5]
    text = (ROOT / "studies" / "README.md").read_text(encoding="utf-8")
    assert text.count(f"{len(above)} of {len(specific)} class-specific rows") == 2


def test_readme_speed_agrees_with_the_measurements():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks" / "results" / "speed-h200.json").read_text(encoding="utf-8"))["results"]
    rows = {one["batch"]: one["rows"] for one in found if one["dtype"] == "torch.float32"}
    six = [f"{rows[batch]['six together']['over_forward_backward']:.2f}" for batch in (8, 64)]
    gradtoken = [f"{rows[batch]['gradtoken']['over_forward']:.2f}" for batch in (8, 64)]
    assert f"relative to one F + B | {six[0]} | {six[1]} |" in text
    assert f"relative to one F | {gradtoken[0]} | {gradtoken[1]} |" in text
    confirmed = json.loads((ROOT / "benchmarks" / "results" / "latency-h200.json").read_text("utf-8"))
    (rows,) = (one["rows"] for one in confirmed["results"])
    fast = [m.name for m in METHODS.values() if m.family in ("attention", "gradient") and m.takes == "trace"]
    relevance = [m.name for m in METHODS.values() if m.family == "relevance" and m.takes == "trace"]
    for names, suffix, words in (
        (fast, "", "0.62 to 0.78 × F + B"),
        (fast, ", unchanged", "0.32 to 0.57 ×"),
        (relevance, "", "0.77 to 1.32 ×"),
        (relevance, ", unchanged", "0.48 to 1.11 ×"),
    ):
        ratios = [rows[name + suffix]["over_forward_backward"] for name in names if name + suffix in rows]
        assert words.startswith(f"{min(ratios):.2f} to {max(ratios):.2f} ×")
        assert words in text
    assert f"GradToken {rows['gradtoken']['over_forward']:.2f} × F " in text
    assert f"and {rows['gradtoken, unchanged']['over_forward']:.2f} × F." in text


def test_costs_of_method_pages_agree_with_the_measurements():
    """Ratios to bare passes at batch 64 in float32."""
    folder = ROOT / "benchmarks" / "results"

    def rows(name: str) -> dict[str, dict[str, float]]:
        found = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["results"]
        return next(one["rows"] for one in found if (one["batch"], one["dtype"]) == (64, "torch.float32"))

    speed, relevance = rows("speed-h200"), rows("relevance-h200")
    ratios = [(n, speed[n]["over_forward"]) for n in ("raw_attention", "rollout", "gradcam", "gradtoken")]
    names = ("transformer_mm", "vtranm", "lrp", "attnlrp", "transformer_attribution", "conservative_lrp")
    ratios += [(name, relevance[name]["over_forward_backward"]) for name in names]
    for name, ratio in ratios:
        text = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
        assert f"Cost: {ratio:.2f} × a bare forward" in text, name
        if name in speed and name in relevance:
            assert f", {speed[name]['over_forward_backward']:.2f} × in another run" in text, name
