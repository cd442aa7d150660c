"""The report: rankings against hand computation, comparison with papers, and the report of a real run."""

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
from vitrail.bench.papers import find_table  # noqa: E402
from vitrail.bench.plan import Plan  # noqa: E402
from vitrail.bench.protocols import PROTOCOLS  # noqa: E402
from vitrail.bench.report import Run, find_run, summarise, write_report  # noqa: E402
from vitrail.bench.report.curves import mean_curves  # noqa: E402
from vitrail.bench.report.html_report import render_html  # noqa: E402
from vitrail.bench.report.metric import PROTOCOL_METRICS, metric_info, protocol_metrics  # noqa: E402
from vitrail.bench.report.paper_comparison import best_two, compare_with_paper  # noqa: E402
from vitrail.bench.report.paper_match import match_models  # noqa: E402
from vitrail.bench.report.section import (  # noqa: E402
    TIED,
    WEAK,
    MetricColumn,
    ReportSection,
    report_sections,
    significance_marks,
)
from vitrail.bench.report.values import metric_values  # noqa: E402
from vitrail.bench.results_store import ResultsStore  # noqa: E402
from vitrail.bench.results_table import collect_scores  # noqa: E402
from vitrail.bench.validate import read_plan  # noqa: E402
from vitrail.cli.app import app  # noqa: E402
from vitrail.errors import DataError  # noqa: E402
from vitrail.scores.comparison import MethodValues, rank_methods  # noqa: E402
from vitrail.scores.curves import find_area  # noqa: E402
from vitrail.scores.presets import find_presets  # noqa: E402
from vitrail.scores.segmentation import SegmentationScores  # noqa: E402
from vitrail.viz.templating import render  # noqa: E402

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
    """A small plan, run once for all tests."""
    tmp = tmp_path_factory.mktemp("report")
    path = tmp / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    plan, text = read_plan(path)
    store = ResultsStore.create(open_context(plan.model_dump_json()), tmp / "runs", text)
    LocalEngine(1).run(store.missing())
    store.export()
    return Run(store.folder)


@pytest.fixture(scope="module")
def summary(run):
    return summarise(run, examples=1)


def parsed(text):
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))  # noqa: S314 - our own page


# -- ranking -----------------------------------------------------------------------------------------------------------


def method_values(**values):
    ids = tuple(f"i{i:02d}" for i in range(len(next(iter(values.values())))))
    return {name: MethodValues(ids, np.array(v, dtype=float)[:, None]) for name, v in values.items()}


def test_ranks_follow_the_direction_and_exclude_controls():
    base = np.linspace(0, 1, 12)
    values = method_values(good=base + 2, fair=base + 1, same=base + 1, poor=base - 1, random=base + 5, edges=base)
    up = rank_methods(values, "up", {"random", "edges"})
    assert [(m.method, m.rank) for m in up.values()] == [
        ("good", 1), ("fair", 2), ("same", 2), ("poor", 0), ("random", 0), ("edges", 0)
    ]  # fmt: skip
    down = rank_methods(values, "down", {"random", "edges"})
    assert [(m.method, m.rank) for m in down.values()] == [
        ("poor", 1), ("fair", 2), ("same", 2), ("good", 0), ("edges", 0), ("random", 0)
    ]  # fmt: skip
    neither = rank_methods(values, "none", {"random"})
    assert {m.rank for m in neither.values()} == {0}
    assert all(m.to_best is None and m.to_control is None for m in neither.values())


def test_differences_and_p_values_match_hand_computation():
    values = method_values(a=[3.0, 3.0, 3.0, 3.0, 3.0, 3.0], b=[1.0, 1.0, 1.0, 1.0, 1.0, 1.0], random=[2.0] * 6)
    ranking = rank_methods(values, "up", {"random"})
    a, b = ranking["a"], ranking["b"]
    assert b.to_best.difference == (-2.0, -2.0, -2.0)
    assert a.to_control.difference == (1.0, 1.0, 1.0)
    assert b.to_control.difference == (-1.0, -1.0, -1.0)
    # Six images with equal differences: 2 of 64 swaps give a difference as large.
    assert b.to_best.p_holm == pytest.approx(2 / 64, abs=0.015)
    # Two methods against the control: Holm doubles the smaller of two equal p-values and raises the other to it.
    assert a.to_control.p_holm == b.to_control.p_holm == pytest.approx(2 * 2 / 64, abs=0.03)
    assert a.better_than_control("up") is (a.to_control.p_holm < 0.05)
    assert b.better_than_control("up") is False
    assert significance_marks(b, "up") == (TIED if b.to_best.p_holm >= 0.05 else "") + WEAK
    assert a.value == (3.0, 3.0, 3.0)


def test_methods_are_compared_on_the_images_they_share():
    complete = MethodValues(tuple("abcdef"), np.arange(6.0)[:, None])
    partial = MethodValues(("b", "d", "zz"), np.array([[0.0], [0.0], [9.0]]))
    ranking = rank_methods({"complete": complete, "partial": partial}, "down")
    assert ranking["partial"].images == 3
    assert ranking["partial"].value.value == 3.0
    assert ranking["complete"].rank == 1  # 2.5 on its own images
    assert ranking["partial"].to_best.difference.value == -2.0  # 0 against (1 + 3) / 2


def test_best_two_values_of_a_paper_column():
    assert best_two({"a": 1.0, "b": 2.0, "c": 2.0, "d": 3.0}, "up") == {"d": 1, "b": 2, "c": 2}
    assert best_two({"a": 1.0}, "none") == {}


def test_segmentation_values_give_the_scores_of_the_accumulator(run):
    rows = run.scores().filter(pl.col("protocol") == "segmentation", pl.col("target") == "predicted").collect()
    one = collect_scores(rows, SegmentationScores, method="rollout")
    summary = one.summary()
    for metric in protocol_metrics("segmentation", "predicted"):
        values = metric_values(one, metric)
        assert values is None or float(values.score(values.table.mean(0))) == pytest.approx(summary[metric.score])


# -- comparison with a paper -------------------------------------------------------------------------------------------


def synthetic_run(limit, miou, **plan):
    """A run without a model: the paper's plan, with synthetic values for two methods and a control."""
    parsed_plan = Plan.model_validate(
        {"name": "x", "paper": "vtranm_table2", "models": ["timm:deit_base_patch16_224.fb_in1k"], "view": "squash",
         "dataset": {"name": "imagenet-segmentation", "root": "/nowhere"}, "methods": ["transformer_mm", "vtranm"],
         "protocols": ["segmentation"], **plan}
    )  # fmt: skip
    manifest = {"images": {"imagenet-segmentation": limit}, "refused": {}}
    run = SimpleNamespace(paper="vtranm_table2", plan=parsed_plan, controls=frozenset({"random"}), manifest=manifest)
    run.methods = lambda _: list(parsed_plan.specs())
    metric = metric_info("segmentation", "predicted", "miou")
    values = method_values(**miou)
    one = MetricColumn(metric, values, rank_methods(values, "up", run.controls))
    title = parsed_plan.models[0].title
    return run, [ReportSection(title, "imagenet-segmentation", "segmentation", "predicted", (one,))]


def test_differences_intervals_and_ranks_against_the_paper():
    miou = {"transformer_mm": [0.6156] * 3, "vtranm": [0.5, 0.6, 0.7], "random": [0.3] * 3}
    found = compare_with_paper(*synthetic_run(4276, miou))
    table = next(t for t in found.tables if t.dataset == "ImageNet-Segmentation")
    assert table.same_setup
    rows = {row.name: row for row in table.rows}
    mm = rows["Trans. MM"].cells["mIoU (%)"]
    assert mm.ours.value == pytest.approx(61.56)
    assert mm.difference == pytest.approx(0.0)
    ours = rows["VTranM (Ours)"].cells["mIoU (%)"]
    assert ours.difference == pytest.approx(60.0 - 63.45)
    assert ours.in_interval is True
    assert (ours.paper_rank, ours.rank) == (1, 2)
    assert (mm.paper_rank, mm.rank) == (0, 1)  # Trans. Attr. is the paper's second
    assert rows["random"].control
    assert rows["random"].cells["mIoU (%)"].published is None
    assert rows["Rollout"].cells["mIoU (%)"].reason == "method not in this plan"
    assert table.rank_correlation == {}  # too few methods
    other = next(t for t in found.tables if t.dataset == "ImageNet val")
    assert not other.in_run
    assert found.differences == ()


def test_differences_from_the_paper_are_computed_from_the_plan():
    miou = {"transformer_mm": [0.6] * 3, "vtranm": [0.5, 0.6, 0.7], "random": [0.3] * 3}
    run, sections = synthetic_run(
        100, miou, view="model", precision="bfloat16", methods=["transformer_mm:start=3", "vtranm"]
    )
    text = " ".join(compare_with_paper(run, sections).differences)
    assert "100 images instead of 4,276" in text
    assert "view = 'model'" in text
    assert "bfloat16" in text
    assert "`transformer_mm:start=3`" in text
    table = find_table("vtranm_table2")
    network = {"name": "timm:deit_base_patch16_224.fb_in1k", "weights": "random"}
    random = Plan.model_validate(run.plan.model_dump() | {"models": [network]})
    assert "random weights" in match_models(table, random)["DeiT"].difference
    assert not match_models(table, random)["DeiT"].same
    tagged = Plan.model_validate(run.plan.model_dump() | {"models": ["timm:deit_base_patch16_224.other"]})
    assert "instead of timm:deit_base_patch16_224.fb_in1k" in match_models(table, tagged)["DeiT"].difference


def test_quoted_rows_are_compared_with_the_score_of_their_source():
    table = find_table("gradtoken_table1")
    found = {(n.method, n.dataset): table.metric(n) for n in table.numbers if n.metric == "PAcc (%)"}
    assert found["Rollout", "ImageNet-Segmentation"].score == "pixel_accuracy"
    assert found["AGCAM", "ImageNet-Segmentation"].score == "best_pixel_accuracy"
    assert found["Rollout", "VOC2012 val"].score == "best_pixel_accuracy"
    assert found["Rollout", "VOC2012 val"].protocol == "multiclass"


# -- a real run --------------------------------------------------------------------------------------------------------


def test_a_substitute_is_named_and_fills_the_papers_table(summary):
    found = summary.paper_comparison
    text = " ".join(found.differences)
    assert "replaced by scenes, an embedded model" in text
    assert "replaced by 3 rendered images of ones" in text
    assert "gradtoken-tokens instead of gradtoken: another fill" in text
    assert "Rollout on ViT-B/16 was run as `rollout`, not as `rollout:chefer`" in text
    (table,) = found.tables
    assert not table.same_setup
    rows = {row.name: row for row in table.rows}
    for name in ("GradToken (Ours)", "GradCAM"):
        assert all(c.ours is not None and c.difference is not None for c in rows[name].cells.values())
    known = [c.published.value is not None for c in rows["Rollout"].cells.values()]  # class-agnostic: two of four
    assert sorted(known) == [False, False, True, True]
    assert all(c.ours is not None for c in rows["random"].cells.values())
    assert rows["AttCAT"].method == ""
    assert {count for _, count in table.rank_correlation.values()} == {3}
    labels = {c.metric.label for r in table.rows for c in r.cells.values() if c.metric}
    assert all("fill tokens" in label for label in labels)


def test_areas_under_the_curves_are_the_printed_scores(run, summary):
    every = list(mean_curves(run))
    assert len(every) == 4
    for one in every:
        metric = one.metric
        section = next(s for s in summary.sections if (s.protocol, s.target) == (metric.protocol, metric.target))
        rule = find_area(find_presets(metric.protocol)[0].area)
        for method, y in one.y.items():
            area = float(rule(torch.tensor(y, dtype=torch.float64), one.x))
            printed = section.column(metric.score).ranking[method].value.value
            assert area == pytest.approx(printed, abs=1e-6), (metric.label, method)


def test_every_section_is_complete(run, summary):
    assert {(s.protocol, s.target) for s in summary.sections} == {
        (p, t) for p in ("segmentation", "pointing", "gradtoken-tokens", "complexity") for t in ("predicted", "label")
    }
    for section in summary.sections:
        assert section.methods[-1] == "random"  # controls are last
        for one in section.columns:
            assert set(one.ranking) == set(run.plan.specs()), (section.title, one.metric.score)
    assert {c.method for c in summary.costs} == set(run.plan.specs())
    one = summary.costs[0]
    assert replace(one, memory=None).memory_text == "–"
    assert replace(one, memory=1536.4 * 2**20).memory_text == "1,536 MiB"
    measured = run.costs().select("method", "memory").collect().drop_nulls()
    assert {c.method: c.memory for c in summary.costs if c.memory is not None} == {
        name[0]: own["memory"].max() for name, own in measured.group_by("method")
    }
    assert {(e.example.kind, bool(e.image), e.reason) for e in summary.examples} == {
        (kind, True, "") for kind in ("best", "worst", "disagreement")
    }
    assert all(set(e.maps) == {"rollout", "gradtoken", "gradcam"} for e in summary.examples)


def test_the_page_is_well_formed_and_loads_nothing(summary):
    text = render_html(summary)
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
    path = write_report(run.folder, tmp_path, examples=0)
    assert path.name == "report.html"
    assert "<img" not in path.read_text(encoding="utf-8")
    rows = list(csv.DictReader(StringIO((tmp_path / "report.csv").read_text(encoding="utf-8"))))
    scores = [row for row in rows if not row["table"]]
    assert all(row["protocol"] and row["rule"] and row["value"] for row in scores)
    assert all(row["fill"] == "tokens" for row in scores if row["protocol"] == "gradtoken-tokens")
    published = [row for row in rows if row["table"]]
    assert len(published) == 36, "all numbers of the table"
    for row in published:
        assert row["value"] or row["reason"]
        if row["value"] and row["paper_value"]:
            assert float(row["difference"]) == pytest.approx(float(row["value"]) - float(row["paper_value"]))
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for line in ("## Comparison with GradToken, Table 2", "## Costs", "*random* (control)", "fill tokens"):
        assert line in text
    # Markdown tables: as many cells in every row as in the head.
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") - line.count("\\|") for line in lines}) <= 1


def test_a_plan_without_a_paper_has_no_comparison(run):
    text = render_html(summarise(_without_paper(run), examples=0))
    assert 'id="paper"' not in text
    assert 'id="scores"' in text


def _without_paper(run):
    other = Run(run.folder)
    other.plan = other.plan.model_copy(update={"paper": None})
    return other


def test_an_unfinished_run_reports_the_missing_chunks(run, tmp_path):
    copy = tmp_path / "unfinished"
    shutil.copytree(run.folder, copy)
    for name in ("results.parquet", "results.csv", "costs.parquet"):
        (copy / name).unlink()
    next((copy / "parts").glob("*.parquet")).unlink()
    unfinished = Run(copy)
    assert unfinished.missing_chunks == 1
    text = render_html(summarise(unfinished, examples=0))
    assert f"1 of {run.manifest['parts']} chunks are missing" in text
    for path in (copy / "parts").glob("*.parquet"):
        path.unlink()
    with pytest.raises(DataError, match="no chunk of"):
        Run(copy)


def test_a_run_without_chunk_files_is_read_from_its_tables(run, tmp_path):
    copy = tmp_path / "exported"
    shutil.copytree(run.folder, copy, ignore=shutil.ignore_patterns("parts"))
    exported = Run(copy)
    assert exported.missing_chunks == 0
    ranking, expected = (next(report_sections(r)).columns[0].ranking for r in (exported, run))
    assert ranking == expected


def test_find_run_by_path_and_key(run, tmp_path):
    assert find_run(None, run.folder.parent) == run.folder
    assert find_run(run.folder.name, run.folder.parent) == run.folder
    with pytest.raises(DataError, match="neither"):
        find_run("nothing", run.folder.parent)
    with pytest.raises(DataError, match="no runs"):
        find_run(None, tmp_path)
    with pytest.raises(DataError, match="not a run's folder"):
        Run(tmp_path)


def test_the_command_writes_a_report(run, tmp_path):
    result = CliRunner().invoke(app, ["report", str(run.folder), "-o", str(tmp_path), "--cases", "0"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report.html").is_file()


def test_template_values_are_escaped():
    text = render("report_rationale.html", facts=[("a < b", "<p>x</p>")], averages=[], other_names=[], versions="")
    assert "".join(parsed(text).find("body/header/ul/li").itertext()) == "<p>x</p>a < b"


def test_scores_of_every_protocol_have_columns():
    assert set(PROTOCOLS) - {"sanity"} <= set(PROTOCOL_METRICS)  # those of sanity are named after layers
