"""The report: marks and differences by hand, tables filled from a real run, papers' numbers that lead somewhere."""

from __future__ import annotations

import csv
import re
import shutil
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch

pl = pytest.importorskip("polars")
pytest.importorskip("pydantic")
pytest.importorskip("pyarrow")

from typer.testing import CliRunner  # noqa: E402

from vitrail.bench.context import open_context  # noqa: E402
from vitrail.bench.engines.local import LocalEngine  # noqa: E402
from vitrail.bench.plan import Plan  # noqa: E402
from vitrail.bench.results_store import ResultsStore, collect_scores  # noqa: E402
from vitrail.bench.validate import read_plan  # noqa: E402
from vitrail.cli.app import app  # noqa: E402
from vitrail.errors import DataError  # noqa: E402
from vitrail.papers import find_table  # noqa: E402
from vitrail.report.curves import curves  # noqa: E402
from vitrail.report.differs import match_models  # noqa: E402
from vitrail.report.html_report import html  # noqa: E402
from vitrail.report.legend import TIED, WEAK, marks  # noqa: E402
from vitrail.report.metric import measure, measures  # noqa: E402
from vitrail.report.paper_comparison import beside, places  # noqa: E402
from vitrail.report.ranking import standings  # noqa: E402
from vitrail.report.run import Run, find_run  # noqa: E402
from vitrail.report.section import Column, ReportSection, blocks  # noqa: E402
from vitrail.report.summary import make_sheet  # noqa: E402
from vitrail.report.values import Values, values  # noqa: E402
from vitrail.report.write import write_report  # noqa: E402
from vitrail.scores.curves import find_area  # noqa: E402
from vitrail.scores.presets import find_presets  # noqa: E402
from vitrail.scores.segmentation import SegmentationScores  # noqa: E402
from vitrail.viz.html import page  # noqa: E402

TINY = """
name = "tiny"
paper = "gradtoken_table2"
models = ["scenes"]
methods = ["rollout", "gradtoken", "gradcam", "random"]
controls = false
targets = "both"
protocols = ["segmentation", "pointing", "gradtoken-tokens", "complexity"]
batch = 4
chunk = 2
keep_maps = true
dataset = { name = "scenes", label = "ones", options = { split = "test", count = 3, objects = 1 } }
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The tiny plan, run once for all."""
    tmp = tmp_path_factory.mktemp("report")
    path = tmp / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    plan, text = read_plan(path)
    store = ResultsStore.create(open_context(plan.model_dump_json()), tmp / "runs", text)
    LocalEngine(1).run(store.missing())
    store.export()
    return Run(store.folder)


@pytest.fixture(scope="module")
def sheet(run):
    return make_sheet(run, each=1)


def parsed(text):
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))  # noqa: S314 - our own page


# -- marks and tests ---------------------------------------------------------------------------------------------------


def column(**given):
    ids = tuple(f"i{i:02d}" for i in range(len(next(iter(given.values())))))
    return {name: Values(ids, np.array(v, dtype=float)[:, None]) for name, v in given.items()}


def test_marks_follow_the_direction_and_leave_controls_out():
    base = np.linspace(0, 1, 12)
    given = column(good=base + 2, fair=base + 1, same=base + 1, poor=base - 1, random=base + 5, edges=base)
    up = standings(given, "up", {"random", "edges"})
    assert [(s.method, s.place) for s in up.values()] == [
        ("good", 1), ("fair", 2), ("same", 2), ("poor", 0), ("random", 0), ("edges", 0)
    ]  # fmt: skip
    down = standings(given, "down", {"random", "edges"})
    assert [(s.method, s.place) for s in down.values()] == [
        ("poor", 1), ("fair", 2), ("same", 2), ("good", 0), ("edges", 0), ("random", 0)
    ]  # fmt: skip
    neither = standings(given, "none", {"random"})
    assert {s.place for s in neither.values()} == {0}
    assert all(s.behind is None and s.ahead is None for s in neither.values())


def test_differences_and_p_values_by_hand():
    given = column(a=[3.0, 3.0, 3.0, 3.0, 3.0, 3.0], b=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0], random=[2.0] * 6)
    found = standings(given, "up", {"random"})
    assert found["b"].behind == (-2.0, -2.0, -2.0)
    assert found["a"].ahead == (1.0, 1.0, 1.0)
    assert found["b"].ahead == (-1.0, -1.0, -1.0)
    # Six pictures that all agree: of 64 ways to swap two do as much.
    assert found["b"].p == pytest.approx(2 / 64, abs=0.015)
    # Two methods against the control: Holm doubles the smaller of two equal p-values, and lifts the other to it.
    assert found["a"].p_control == found["b"].p_control == pytest.approx(2 * 2 / 64, abs=0.03)
    assert found["a"].beats("up") is (found["a"].p_control < 0.05)
    assert found["b"].beats("up") is False
    assert marks(found["b"], "up") == (TIED if found["b"].p >= 0.05 else "") + WEAK
    assert found["a"].value == (3.0, 3.0, 3.0)


def test_methods_with_few_pictures_are_compared_on_those_they_share():
    whole = Values(tuple("abcdef"), np.arange(6.0)[:, None])
    some = Values(("b", "d", "zz"), np.array([[0.0], [0.0], [9.0]]))
    found = standings({"whole": whole, "some": some}, "down")
    assert found["some"].images == 3
    assert found["some"].value.value == 3.0
    assert found["whole"].place == 1  # 2.5 on its own pictures
    assert found["some"].behind.value == -2.0  # 0 against (1 + 3) / 2


def test_places_of_a_papers_column():
    assert places({"a": 1.0, "b": 2.0, "c": 2.0, "d": 3.0}, "up") == {"d": 1, "b": 2, "c": 2}
    assert places({"a": 1.0}, "none") == {}


def test_segmentation_scores_are_those_of_the_tally(run):
    rows = run.scores().filter(pl.col("protocol") == "segmentation", pl.col("target") == "predicted").collect()
    one = collect_scores(rows, SegmentationScores, method="rollout")
    summary = one.summary()
    for m in measures("segmentation", "predicted"):
        v = values(one, m)
        assert v is None or float(v.score(v.table.mean(0))) == pytest.approx(summary[m.score]), m.score


# -- beside a paper ----------------------------------------------------------------------------------------------------


def made_up(limit, miou, **plan):
    """A run that needs no model: the paper's own, with made-up values for two methods and a control."""
    whole = Plan.model_validate(
        {"name": "x", "paper": "vtranm_table2", "models": ["timm:deit_base_patch16_224.fb_in1k"], "view": "squash",
         "dataset": {"name": "imagenet-segmentation", "root": "/nowhere"}, "methods": ["transformer_mm", "vtranm"],
         "protocols": ["segmentation"], **plan}
    )  # fmt: skip
    manifest = {"images": {"imagenet-segmentation": limit}, "refused": {}}
    run = SimpleNamespace(paper="vtranm_table2", plan=whole, controls=frozenset({"random"}), manifest=manifest)
    run.methods = lambda _: list(whole.specs())
    own = measure("segmentation", "predicted", "miou")
    given = column(**miou)
    one = Column(own, given, standings(given, "up", run.controls))
    title = whole.models[0].title
    return run, [ReportSection(title, "imagenet-segmentation", "segmentation", "predicted", (one,))]


def test_difference_interval_and_order_beside_the_paper():
    miou = {"transformer_mm": [0.6156] * 3, "vtranm": [0.5, 0.6, 0.7], "random": [0.3] * 3}
    found = beside(*made_up(4276, miou))
    part = next(p for p in found.parts if p.dataset == "ImageNet-Segmentation")
    assert part.like
    rows = {row.name: row for row in part.rows}
    mm = rows["Trans. MM"].cells["mIoU (%)"]
    assert mm.ours.value == pytest.approx(61.56)
    assert mm.difference == pytest.approx(0.0)
    ours = rows["VTranM (Ours)"].cells["mIoU (%)"]
    assert ours.difference == pytest.approx(60.0 - 63.45)
    assert ours.within is True
    assert (ours.paper_place, ours.place) == (1, 2)
    assert (mm.paper_place, mm.place) == (0, 1)  # Trans. Attr. is the paper's second
    assert rows["random"].control
    assert rows["random"].cells["mIoU (%)"].number is None
    assert rows["Rollout"].cells["mIoU (%)"].reason == "the method is not part of this plan"
    assert part.order == {}  # two methods have no order
    other = next(p for p in found.parts if p.dataset == "ImageNet val")
    assert other.ours == ("", "")
    assert found.differs == ()


def test_what_differs_is_computed_from_the_plan():
    miou = {"transformer_mm": [0.6] * 3, "vtranm": [0.5, 0.6, 0.7], "random": [0.3] * 3}
    run, own = made_up(100, miou, view="model", precision="bfloat16", methods=["transformer_mm:start=3", "vtranm"])
    said = " ".join(beside(run, own).differs)
    assert "100 pictures instead of 4,276" in said
    assert "view = 'model'" in said
    assert "bfloat16" in said
    assert "`transformer_mm:start=3`" in said
    table = find_table("vtranm_table2")
    network = {"name": "timm:deit_base_patch16_224.fb_in1k", "weights": "random"}
    random = Plan.model_validate(run.plan.model_dump() | {"models": [network]})
    assert "random weights" in match_models(table, random)["DeiT"].remark
    assert not match_models(table, random)["DeiT"].same
    tagged = Plan.model_validate(run.plan.model_dump() | {"models": ["timm:deit_base_patch16_224.other"]})
    assert "not of timm:deit_base_patch16_224.fb_in1k" in match_models(table, tagged)["DeiT"].remark


def test_rows_a_paper_quotes_stand_beside_the_score_they_were_given():
    table = find_table("gradtoken_table1")
    found = {(n.method, n.dataset): table.metric(n) for n in table.numbers if n.metric == "PAcc (%)"}
    assert found["Rollout", "ImageNet-Segmentation"].score == "pixel_accuracy"
    assert found["AGCAM", "ImageNet-Segmentation"].score == "best_pixel_accuracy"
    assert found["Rollout", "VOC2012 val"].score == "best_pixel_accuracy"
    assert found["Rollout", "VOC2012 val"].protocol == "multiclass"


# -- a real run --------------------------------------------------------------------------------------------------------


def test_a_stand_in_says_so_and_fills_the_papers_table(sheet):
    found = sheet.beside
    said = " ".join(found.differs)
    assert "scenes, an embedded model, stands in" in said
    assert "3 drawn pictures of ones stand in" in said
    assert "gradtoken-tokens in place of gradtoken: another fill" in said
    assert "Rollout on ViT-B/16 was run as `rollout`, not as `rollout:chefer`" in said
    (part,) = found.parts
    assert not part.like
    rows = {row.name: row for row in part.rows}
    for name in ("GradToken (Ours)", "GradCAM"):
        assert all(c.ours is not None and c.difference is not None for c in rows[name].cells.values())
    known = [c.number.value is not None for c in rows["Rollout"].cells.values()]  # blind to classes: two of four
    assert sorted(known) == [False, False, True, True]
    assert all(c.ours is not None for c in rows["random"].cells.values())
    assert rows["AttCAT"].method == ""
    assert {count for _, count in part.order.values()} == {3}
    labels = {c.measure.label for r in part.rows for c in r.cells.values() if c.measure}
    assert all("fill tokens" in label for label in labels)


def test_curves_have_the_areas_that_are_printed(run, sheet):
    every = list(curves(run))
    assert len(every) == 4
    for one in every:
        block = next(b for b in sheet.blocks if (b.protocol, b.target) == (one.measure.protocol, one.measure.target))
        rule = find_area(find_presets(one.measure.protocol)[0].area)
        for method, y in one.y.items():
            area = float(rule(torch.tensor(y, dtype=torch.float64), one.x))
            printed = block.column(one.measure.score).standings[method].value.value
            assert area == pytest.approx(printed, abs=1e-6), (one.measure.label, method)


def test_every_block_is_filled(run, sheet):
    assert {(b.protocol, b.target) for b in sheet.blocks} == {
        (p, t) for p in ("segmentation", "pointing", "gradtoken-tokens", "complexity") for t in ("predicted", "label")
    }
    for block in sheet.blocks:
        assert block.methods[-1] == "random"  # controls stand apart, below
        for one in block.columns:
            assert set(one.standings) == set(run.plan.specs()), (block.title, one.measure.score)
    assert {c.method for c in sheet.costs} == set(run.plan.specs())
    one = sheet.costs[0]
    assert replace(one, memory=None).held == "–"
    assert replace(one, memory=1536.4 * 2**20).held == "1,536 MiB"
    noted = run.costs().select("method", "memory").collect().drop_nulls()
    assert {c.method: c.memory for c in sheet.costs if c.memory is not None} == {
        name[0]: own["memory"].max() for name, own in noted.group_by("method")
    }
    assert {(s.case.kind, bool(s.picture), s.reason) for s in sheet.shown} == {
        (kind, True, "") for kind in ("best", "worst", "disagreement")
    }
    assert all(set(s.maps) == {"rollout", "gradtoken", "gradcam"} for s in sheet.shown)


def test_the_page_is_well_formed_and_fetches_nothing(sheet):
    text = html(sheet)
    tree = parsed(text)
    for element in tree.iter():
        for name in ("src", "href"):
            value = element.get(name, "#")
            assert value.startswith(("#", "data:image/jpeg;base64,")), value
        assert element.tag not in ("script", "link", "iframe", "object")
    style = tree.find("head/style").text
    assert "url(" not in style
    assert "@import" not in style
    assert "http" not in re.sub(r"data:[^\"]*", "", text)
    links = {a.get("href") for a in tree.iter("a")}
    ids = {f"#{e.get('id')}" for e in tree.iter() if e.get("id")}
    assert links <= ids
    for table in tree.iter("table"):
        widths = {sum(int(c.get("colspan", 1)) for c in tr) for tr in table.find("tbody")}
        assert len(widths) == 1, "a table with rows of different length"
    for image in tree.iter("img"):
        assert image.get("alt")


def test_files_and_columns(run, tmp_path):
    path = write_report(run.folder, tmp_path, each=0)
    assert path.name == "report.html"
    assert "<img" not in path.read_text(encoding="utf-8")
    rows = list(csv.DictReader(StringIO((tmp_path / "report.csv").read_text(encoding="utf-8"))))
    scores = [row for row in rows if not row["table"]]
    assert all(row["protocol"] and row["rule"] and row["value"] for row in scores)
    assert all(row["fill"] == "tokens" for row in scores if row["protocol"] == "gradtoken-tokens")
    published = [row for row in rows if row["table"]]
    assert len(published) == 36, "all that the table has"
    for row in published:
        assert row["value"] or row["reason"]
        if row["value"] and row["paper_value"]:
            assert float(row["difference"]) == pytest.approx(float(row["value"]) - float(row["paper_value"]))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for line in ("## Beside GradToken, Table 2", "## Costs", "*random* (control)", "fill tokens"):
        assert line in text
    # Tables of Markdown: as many cells in every row as in the head.
    for part in text.split("\n\n"):
        lines = [line for line in part.splitlines() if line.startswith("|")]
        assert len({line.count("|") - line.count("\\|") for line in lines}) <= 1


def test_a_plan_without_a_paper_has_no_paper_columns(run):
    text = html(make_sheet(_without_paper(run), each=0))
    assert 'id="paper"' not in text
    assert 'id="scores"' in text


def _without_paper(run):
    other = Run(run.folder)
    other.plan = other.plan.model_copy(update={"paper": None})
    return other


def test_an_unfinished_run_says_how_much_is_missing(run, tmp_path):
    copy = tmp_path / "unfinished"
    shutil.copytree(run.folder, copy)
    for name in ("results.parquet", "results.csv", "costs.parquet"):
        (copy / name).unlink()
    next((copy / "parts").glob("*.parquet")).unlink()
    found = Run(copy)
    assert found.missing == 1
    text = html(make_sheet(found, each=0))
    assert f"1 of {run.manifest['parts']} parts are missing" in text
    for path in (copy / "parts").glob("*.parquet"):
        path.unlink()
    with pytest.raises(DataError, match="no part of"):
        Run(copy)


def test_a_run_whose_parts_were_removed_is_read_from_its_table(run, tmp_path):
    copy = tmp_path / "exported"
    shutil.copytree(run.folder, copy, ignore=shutil.ignore_patterns("parts"))
    found = Run(copy)
    assert found.missing == 0
    ours, theirs = (next(blocks(r)).columns[0].standings for r in (found, run))
    assert ours == theirs


def test_which_run(run, tmp_path):
    assert find_run(None, run.folder.parent) == run.folder
    assert find_run(run.folder.name, run.folder.parent) == run.folder
    with pytest.raises(DataError, match="neither"):
        find_run("nothing", run.folder.parent)
    with pytest.raises(DataError, match="no runs"):
        find_run(None, tmp_path)
    with pytest.raises(DataError, match="not the folder"):
        Run(tmp_path)


def test_the_command(run, tmp_path):
    done = CliRunner().invoke(app, ["report", str(run.folder), "-o", str(tmp_path), "--cases", "0"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "report.html").is_file()


def test_a_page_can_be_read_as_xml():
    assert parsed(page("a < b", "<p>x</p>")).find("body/p").text == "x"
