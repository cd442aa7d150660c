"""Method pages: one order of sections, and names, options and variants as in the registry."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.resources import files
from itertools import groupby
from pathlib import Path

import pytest

from vitrail.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SECTIONS = ["When to use it", "Formula", "Options", "Measured behaviour", "Paper and code"]
SCORES = {"logit": "logit", "prob": "probability"}
RELEVANCE_FROM_LOGIT = ["lrp", "partial_lrp", "conservative_lrp", "attnlrp", "abslrp"]  # no option ``score``


def page(name):
    return (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")


def hook(name):
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location(f"docs_hook_{name}", DOCS / "hooks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def bibliography():
    return hook("bibliography").load(DOCS / "bibliography.bib")


def about(name):
    """The line below the example image: what kind of method it is."""
    return next(line for line in page(name).splitlines() if line.startswith(f"`{name}` · ")).split(" · ")


@pytest.mark.parametrize("name", METHODS)
def test_page_has_the_sections_in_order(name):
    text = page(name)
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert re.match(r"# [^\n]+\n\n[^\n#!|`]+\.\n\n!\[[^\]]+\]\(\.\./images/methods/", text), "title, sentence, image"
    assert text.count("$$") >= 2 or "| operation | rule" in text, "a formula"
    assert "```text" not in text, "formulas are typeset"


@pytest.mark.parametrize("name", METHODS)
def test_example_image_exists_and_is_small(name):
    assert f"(../images/methods/{name}.jpg)" in page(name)
    assert (DOCS / "images" / "methods" / f"{name}.jpg").stat().st_size <= 25_000


@pytest.mark.parametrize("name", METHODS)
def test_page_agrees_with_the_registry(name):
    method, words = METHODS[name], about(name)
    assert words[1] == method.family
    if name != "inverted":  # which takes after the method it inverts
        assert words[2] == ("class-specific" if method.class_specific else "class-agnostic")
        assert ("signed" in words) == method.is_signed(method.options)
    score = "logit" if name in RELEVANCE_FROM_LOGIT else SCORES.get(method.score)
    assert [word for word in words if word in SCORES.values()] == ([score] if score else [])


@pytest.mark.parametrize("name", METHODS)
def test_options_and_variants_are_those_of_the_registry(name):
    method, text = METHODS[name], page(name)
    documented = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", text, re.MULTILINE))
    assert documented == {k: str(v) if not isinstance(v, str) else f'"{v}"' for k, v in method.options.items()}
    for variant in method.variants:
        assert f"`{name}:{variant}`" in text, f"variant {variant} is not documented"


@pytest.mark.parametrize("name", METHODS)
def test_page_cites_its_paper(name):
    keys = re.findall(r"@([\w:-]+)", " ".join(re.findall(r"\[@[^\]]*\]", page(name))))
    assert set(keys) <= bibliography().keys()
    assert not METHODS[name].cite or METHODS[name].cite in keys


@pytest.mark.parametrize("name", METHODS)
def test_measured_scores_exist(name):
    measured = hook("measured")
    table = measured.table(name, measured.load(ROOT))
    assert f"`{name}`" in table
    assert measured.MARK in page(name)


def test_methods_are_listed_by_family():
    """A method that another one imports is still registered with its own family."""
    families = [m.family for m in METHODS.values() if m.compute.__module__.startswith("vitrail.")]
    listed = [family for family, _ in groupby(families)]
    page = files("vitrail.web").joinpath("static", "methods.js").read_text(encoding="utf-8")
    assert listed == re.findall(r"^  (\w+): \"", page.partition("FAMILIES = {")[2].partition("};")[0], re.MULTILINE)


def test_bibliography_entries_have_author_year_title_and_link():
    for key, entry in bibliography().items():
        assert entry.authors
        assert entry.fields["title"]
        if key != "vitrail":
            assert re.fullmatch(r"(19|20)\d\d", entry.fields["year"])
            assert entry.link.startswith("https://")


def test_citations_are_rendered_outside_code():
    cited, unknown = hook("bibliography").render("See [@bach2015lrp] and `[@no]`.\n\n```\n[@no]\n```\n", bibliography())
    assert "([Bach et al., 2015](#ref-bach2015lrp))" in cited
    assert "`[@no]`" in cited
    assert "Grégoire Montavon" in cited.partition("## References")[2]
    assert unknown == []


def test_two_citations_in_one_bracket():
    cited, _ = hook("bibliography").render("[@abnar2020quantifying; @hao2021self]", bibliography())
    assert "Abnar and Zuidema, 2020" in cited
    assert "; [Hao et al., 2021](#ref-hao2021self))" in cited


def test_unknown_citation_is_reported():
    assert hook("bibliography").render("[@nobody2020]", bibliography())[1] == ["nobody2020"]


def test_entry_without_a_title_is_refused():
    with pytest.raises(ValueError, match="entry key"):
        hook("bibliography").parse("@misc{key,\n  author = {A, B},\n}\n")


def test_site_loads_nothing_from_the_network():
    styles = [p.read_text(encoding="utf-8") for p in (DOCS / "assets").rglob("*.css")]
    assert styles
    assert not any(re.search(r"url\(\s*['\"]?https?:|@import", style) for style in styles)
    for script in ("math.js", "sort.js"):
        assert "http" not in (DOCS / "assets" / script).read_text(encoding="utf-8")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "assets/iframe-worker/shim.js" in config
    assert "https://" not in config


def test_fonts_of_the_formulas_are_shipped():
    katex = DOCS / "assets" / "katex"
    fonts = set(re.findall(r"url\((fonts/[^)]+)\)", (katex / "katex.min.css").read_text(encoding="utf-8")))
    assert fonts == {f"fonts/{p.name}" for p in (katex / "fonts").iterdir()}
    assert (katex / "LICENSE").exists()
