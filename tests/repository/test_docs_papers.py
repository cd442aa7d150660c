"""Pages of the papers: every table and figure is there, commands exist, numbers come from committed results."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.repository.test_docs_methods import DOCS, ROOT, hook
from vitrail.bench.papers import find_table, paper_tables
from vitrail.bench.plan_file import PlanOverrides, parse_plan, plans
from vitrail.scores import PRESETS
from vitrail.tools.figures.registry import FIGURES

PAGES = {"vtranm": "vtranm", "gradtoken": "gradtoken", "vitcx": "vit_cx"}
#: Number of tables and figures of each paper.
ITEMS = {"vtranm": (4, 5), "gradtoken": (4, 11), "vitcx": (2, 6)}


def page(paper):
    return (DOCS / "papers" / f"{PAGES[paper]}.md").read_text(encoding="utf-8")


def numbers(text, word):
    """Numbers after a word: "Figures 2, 4 and 5" has 2, 4 and 5."""
    found = re.findall(rf"^\| {word}s? ((?:\d+(?:, | and )?)+)", text, re.MULTILINE)
    return sorted(int(number) for group in found for number in re.findall(r"\d+", group))


@pytest.mark.parametrize("paper", PAGES)
def test_every_table_and_figure_is_listed_once(paper):
    tables, figures = ITEMS[paper]
    assert numbers(page(paper), "Table") == list(range(1, tables + 1))
    assert numbers(page(paper), "Figure") == list(range(1, figures + 1))


@pytest.mark.parametrize("paper", [*PAGES, "index"])
def test_commands_name_plans_and_figures(paper):
    text = page(paper) if paper in PAGES else (DOCS / "papers" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"vitrail bench (\w+)", text)) <= set(plans())
    assert set(re.findall(r"vitrail figure ([\w-]+)", text)) <= set(FIGURES)
    if paper in PAGES:
        drawn = {name for name in FIGURES if name.startswith(f"{paper}-")}
        assert drawn == set(re.findall(r"vitrail figure ([\w-]+)", text))
        assert all(f"{name}`" in text for name in plans() if name.startswith(f"{paper}_"))


def test_published_numbers_stand_beside_measured_ones():
    papers = hook("papers")
    values = papers.load(ROOT)
    lines = papers.table(find_table("vtranm_table2"), values).splitlines()
    row = next(line for line in lines if line.startswith("| VTranM | 80.53"))
    with (ROOT / "results" / "imagenet1000.csv").open(encoding="utf-8", newline="") as file:
        key = ("pets", "segmentation", "predicted", "miou", "vtranm")
        names = ("dataset", "protocol", "target", "score", "method")
        (found,) = (line for line in csv.DictReader(file) if tuple(line[name] for name in names) == key)
    assert f"| 63.45 | {float(found['value']):.1f} ± " in row
    with (ROOT / "results" / "imagenet1000.csv").open(encoding="utf-8", newline="") as file:
        key = ("imagenet", "vtranm", "predicted", "negative(black)", "vtranm")
        (found,) = (line for line in csv.DictReader(file) if tuple(line[name] for name in names) == key)
    row = next(line for line in lines if line.startswith("| VTranM | 58.12"))
    assert f"| 58.12 | {float(found['value']):.1f} ± " in row, "from the run of the other rows, not that of Table 4"
    ablations = json.loads((ROOT / papers.ABLATIONS).read_text(encoding="utf-8"))["rows"]
    text = papers.table(find_table("gradtoken_table3"), values)
    assert f"| 68.24 | {100 * ablations['gradtoken:4']['best_miou']:.1f} ± " in text
    assert f"| {100 * ablations['gradtoken:depth=8']['best_miou']:.1f} |" in papers.depths(ROOT)
    assert papers.table(find_table("vitcx_fig1"), values) == "", "single images cannot be measured"


def test_other_plans_of_the_same_scores_do_not_stand_beside_a_table():
    """δ and σ were measured on fewer images and two models, with the same protocol and method as Table 1."""
    papers = hook("papers")
    rows = json.loads((ROOT / "studies" / "results" / "paper-tables.json").read_text(encoding="utf-8"))["rows"]
    key = papers.OurScore("imagenet", "vitcx", "predicted", "deletion(mean)")
    wanted = (*key, "vit_cx")
    names = ("dataset", "protocol", "target", "score", "method")
    others = [row for row in rows["vitcx_delta_sigma"] if tuple(row[name] for name in names) == wanted]
    (own,) = (row for row in rows["vitcx"] if tuple(row[name] for name in names) == wanted)
    assert own["value"] not in {row["value"] for row in others}
    assert papers.load(ROOT)[key, "vit_cx"].value == own["value"]


def test_appendices_of_vitcx_are_those_of_the_measurements(monkeypatch):
    pytest.importorskip("polars")
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    import appendices

    assert page("vitcx") == appendices.updated(page("vitcx")), "run python results/appendices.py"


def test_a_planted_difference_has_a_dagger(monkeypatch):
    """A shift of every image by the same amount is significant, none is not."""
    pl = pytest.importorskip("polars")
    monkeypatch.syspath_prepend(str(ROOT / "results"))
    import appendices

    score = appendices.IMAGENET[0]
    shifts = {"vit_cx": 0.0, "shifted": 0.1, "same": 0.0}
    planted = pl.DataFrame(
        [
            {"model": "m", "dataset": score.dataset, "image": f"{i:03d}", "method": method, "target": score.target,
             "protocol": score.protocol, "score": score.score, "value": i / 50 + shift, "explained": 0, "error": None}
            for method, shift in shifts.items()
            for i in range(40)
        ]
    )  # fmt: skip
    monkeypatch.setattr(appendices, "image_values", lambda name: planted)
    assert appendices.different("planted", score, tuple(shifts)) == {"shifted"}


def test_tables_of_the_pages_have_numbers():
    papers = hook("papers")
    for paper in PAGES:
        for key, model, optional in papers.MARK.findall(page(paper)):
            assert key in paper_tables()
            assert optional or "| ours |" in papers.table(find_table(key), papers.load(ROOT), model), key
    for name in papers.MOVIES:
        assert papers.movies(ROOT, name).count("\n") == 1 + len(papers.TEXT_METHODS) + 1


def test_measured_tables_are_those_of_the_papers():
    """The plans run every method of the tables that their results stand beside."""
    papers = hook("papers")
    jobs = {
        "cifar10": ["vtranm_table1"],
        "cifar10-distilled": ["vtranm_table1"],
        "vtranm": ["vtranm_table4"],
        "vitcx": ["vitcx_table1", "vitcx_table2"],
    }
    for name, keys in jobs.items():
        text = (ROOT / "studies" / "plans" / f"{name}.toml").read_text(encoding="utf-8")
        plan = parse_plan(text, ROOT, PlanOverrides(home=None))[0]
        assert set(plan.protocols) <= PRESETS.keys()
        assert [data.title for data in plan.dataset] == [name if "cifar" in name else "imagenet"]
        for key in keys:
            for specs in find_table(key).methods.values():
                assert {papers.METHODS.get(spec, spec) for spec in specs} & set(plan.specs()), (name, specs)


def test_a_measured_value_is_shown_with_its_number_of_images():
    papers = hook("papers")
    value = papers.Value(71.6, 1.2, 2000)
    found = {
        (papers.OurScore("cifar10", "vtranm", "predicted", "negative(black)"), method): value
        for method in ("vtranm", "transformer_mm")
    }
    text = papers.table(find_table("vtranm_table1"), found)
    assert "| VTranM | 74.90 | 71.6 ± 1.2 |" in text
    assert text.endswith("Ours: 2,000 images.")
    assert "CIFAR-100" not in text


DIAGRAMS = sorted((DOCS / "images" / "diagrams").glob("*.svg"))


def test_diagrams_share_one_style_and_load_nothing():
    styles = set()
    for path in DIAGRAMS:
        text = path.read_text(encoding="utf-8")
        root = ET.fromstring(text)  # noqa: S314 - our own files
        assert root.get("class") == "vd"
        assert root.find("{*}title").text
        assert root.find("{*}desc").text
        styles.add(root.find("{*}style").text)
        assert not re.search(r"href|url\(|<script|https?:(?!//www\.w3\.org/2000/svg)", text), path.name
        colours = re.findall(r"#[0-9a-f]{3,6}\b", text.partition("</style>")[2])
        assert not colours, f"{path.name}: colours are in the style only"
    assert len(DIAGRAMS) == 7
    assert len(styles) == 1


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda p: p.stem)
def test_diagrams_are_shown_with_alternative_text(path):
    pages = "\n".join(p.read_text(encoding="utf-8") for p in (DOCS / "methods").glob("*.md"))
    (alternative,) = re.findall(rf"!\[([^\]]+)\]\(\.\./images/diagrams/{path.name}\)", pages)
    assert len(alternative) > 40
    html = f'<p><img alt="{alternative}" src="../images/diagrams/{path.name}" /></p>'
    shown = hook("diagrams").inline(html, Path(path).parent)
    assert "<img" not in shown
    assert f'aria-label="{alternative}"' in shown
    assert "<title" not in shown
