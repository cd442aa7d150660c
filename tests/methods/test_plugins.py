"""Methods and scores of other packages: entry points, plan imports, --import."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch

import vitrail as library
from tests.cli.test_app import vitrail
from vitrail.errors import OptionError, PluginWarning
from vitrail.methods import METHODS, find, plugins, register
from vitrail.scores import REGISTERED_SCORES, ScoreInputs, find_score, register_score
from vitrail.scores.registry import RESERVED_NAMES
from vitrail.testing import tiny_vit

METHOD = '''
import torch
from vitrail.methods import register

@register("NAME", "Own rows", "attention", cite="", class_specific=False)
def own_rows(trace):
    """Rate the upper rows highest."""
    rows, columns = trace.layout.grid
    return torch.linspace(1, 0, rows * columns).expand(len(trace.logits), -1)
'''
SCORE = '''
from vitrail.scores import register_score

@register_score("NAME", "Upper half", "up", "share of relevance in the upper half", percent=True)
def own_share(inputs):
    """Share of relevance in the upper half."""
    maps = inputs.maps.clamp_min(0)
    return maps[:, : maps.shape[1] // 2].sum((1, 2)) / maps.sum((1, 2))
'''
PLAN = """
name = "own"
models = ["scenes"]
methods = ["own_rows", "rollout"]
controls = false
protocols = ["own_share"]
batch = 2
chunk = 1
IMPORTS
dataset = { name = "scenes", options = { split = "test", count = 2, objects = 1 } }
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write modules and a dist-info folder; afterwards everything they registered is removed."""
    site, before = tmp_path / "site", (dict(METHODS), dict(REGISTERED_SCORES), set(plugins._attempted))
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def write(modules, entries=None, name="own-package"):
        for module, text in modules.items():
            (site / f"{module}.py").write_text(text)
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"[{group}]\n" + "\n".join(own) for group, own in (entries or {}).items()]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        plugins._entries.cache_clear()
        return site

    yield write
    for table, content in zip((METHODS, REGISTERED_SCORES), before, strict=False):
        table.clear()
        table.update(content)
    plugins._attempted.clear()
    plugins._attempted.update(before[2])
    plugins._entries.cache_clear()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_methods_of_other_packages_are_found_by_name(package):
    package({"own_a": METHOD.replace("NAME", "own_rows")}, {"vitrail.methods": ["own_rows = own_a"]})
    assert "own_rows" not in METHODS, "nothing is loaded before it is needed"
    e = library.explain(tiny_vit(), torch.randn(1, 3, 32, 32), "own_rows")
    assert e.grid[0, 0, 0, 0] > e.grid[0, 0, -1, -1]
    assert "own_rows" in library.methods()
    listed = vitrail("methods", "own_rows")
    assert "Rate the upper rows highest" in listed.stdout


def test_broken_packages_are_warned_about_and_change_nothing(package):
    package(
        {
            "own_broken": METHOD.replace("NAME", "half") + "\nraise RuntimeError('broken on purpose')\n",
            "own_clash": METHOD.replace("NAME", "rollout"),
            "own_misnamed": METHOD.replace("NAME", "other_name"),
            "own_good": METHOD.replace("NAME", "good"),
        },
        {"vitrail.methods": ["half = own_broken", "rollout = own_clash", "named = own_misnamed", "good = own_good",
                             "gone = own_missing"]},
    )  # fmt: skip
    rollout = METHODS["rollout"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        known = library.methods()
    messages = sorted(str(w.message) for w in caught if w.category is PluginWarning)
    assert len(messages) == 4
    assert "'gone' of own-package (own_missing)" in messages[0]
    assert "broken on purpose" in messages[1]
    assert "registers no method of this name" in messages[2]
    assert "there is a method 'rollout' of vitrail.methods.rollout already" in messages[3]
    assert "good" in known
    assert not {"half", "other_name", "named"} & set(known)
    assert METHODS["rollout"] is rollout
    done = vitrail("methods", "good")
    assert done.returncode == 0
    assert "warning" not in done.stderr, "each is loaded, and warned about, once"


def test_the_command_line_prints_warnings_of_packages_as_lines(package):
    package({"own_broken": "raise RuntimeError('broken on purpose')\n"}, {"vitrail.scores": ["x = own_broken"]})
    done = vitrail("methods", "rollout")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: the score 'x' of own-package")


def test_names_can_be_registered_again_by_the_same_module_only():
    def first(trace):
        return trace

    register("twice", "Twice", "attention", cite="")(first)
    try:
        register("twice", "Twice again", "attention", cite="")(first)
        assert METHODS["twice"].title == "Twice again"
        first.__module__ = "elsewhere"
        with pytest.raises(OptionError, match="already"):
            register("twice", "Twice", "attention", cite="")(lambda trace: trace)
    finally:
        del METHODS["twice"]


@pytest.mark.parametrize(("fields", "message"), [
    ({"name": "segmentation"}, "is a protocol of vitrail"),
    ({"name": "chefer21"}, "is a protocol of vitrail"),
    ({"name": "a b"}, "is not a name"),
    ({"direction": "higher"}, "is not one of 'up'"),
    ({"needs": ("masks",)}, "some of 'mask'"),
    ({"needs": "mask"}, "must be a tuple"),
])  # fmt: skip
def test_scores_with_unknown_fields_are_refused(fields, message):
    with pytest.raises(OptionError, match=message):
        register_score(**({"name": "mine", "title": "Mine", "direction": "up"} | fields))


def test_reserved_names_are_those_of_the_protocols():
    protocols = pytest.importorskip("vitrail.bench.protocols")
    assert set(RESERVED_NAMES) == {*protocols._OWN_PROTOCOLS, "explain"}


@pytest.mark.slow
def test_bench_and_report_know_methods_and_scores_of_other_packages(package, tmp_path):
    pl = pytest.importorskip("polars")
    package(
        {"own_a": METHOD.replace("NAME", "own_rows"), "own_b": SCORE.replace("NAME", "own_share")},
        {"vitrail.methods": ["own_rows = own_a"], "vitrail.scores": ["own_share = own_b"]},
    )
    (tmp_path / "plan.toml").write_text(PLAN.replace("IMPORTS", ""))
    done = vitrail("bench", tmp_path / "plan.toml", "--workers", "1", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    rows = pl.read_parquet(folder / "results.parquet").filter(pl.col("score") == "own_share", pl.col("image") != "")
    values = dict(rows.group_by("method").agg(pl.col("value").mean()).iter_rows())
    assert values.get("own_rows", 0) > 0.7, done.stdout
    done = vitrail("report", folder, "--cases", "0")
    assert done.returncode == 0, done.stderr
    page = (folder / "report.html").read_text()
    assert "Upper half, %" in page
    assert "share of relevance in the upper half" in page
    assert f"{100 * values['own_rows']:.2f}" in page


@pytest.mark.slow
def test_plan_imports_reach_workers_and_reports(tmp_path):
    # A module in the current folder, found by a console script, its workers and the report.
    (tmp_path / "own_module.py").write_text(METHOD.replace("NAME", "own_rows") + SCORE.replace("NAME", "own_share"))
    (tmp_path / "plan.toml").write_text(PLAN.replace("IMPORTS", 'imports = ["own_module"]'))
    start = "import sys; sys.path = [p for p in sys.path if p]; from vitrail.cli.app import main; main()"
    for args in (["bench", "plan.toml", "--workers", "2"], ["report", "--cases", "1"]):
        command = [sys.executable, "-c", start, *args]
        environment = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        assert done.returncode == 0, done.stderr


def test_plan_without_imports_keeps_its_key(package, tmp_path):
    plan_module = pytest.importorskip("vitrail.bench.plan")
    content = {"name": "p", "models": "scenes", "dataset": {"name": "scenes"}, "methods": "@single",
               "protocols": "pointing"}  # fmt: skip
    plan = plan_module.Plan.model_validate(content)
    key = plan.key(["w"], [["a"]])
    assert plan.model_copy(update={"imports": ()}).key(["w"], [["a"]]) == key
    package({"own_a": METHOD.replace("NAME", "own_rows")}, {"vitrail.methods": ["own_rows = own_a"]})
    library.methods()
    assert plan.key(["w"], [["a"]]) == key, "methods of other packages are not part of @single"
    own = plan_module.Plan.model_validate(content | {"methods": "own_rows", "imports": "own_a"})
    before = own.key(["w"], [["a"]])
    (tmp_path / "site" / "own_a.py").write_text(METHOD.replace("NAME", "own_rows") + "# changed\n")
    assert own.key(["w"], [["a"]]) != before, "the source of own methods counts"


def test_plan_imports_that_fail_are_problems_of_the_plan(tmp_path):
    pytest.importorskip("polars")
    (tmp_path / "plan.toml").write_text(PLAN.replace("IMPORTS", 'imports = ["no_such_module"]'))
    done = vitrail("bench", tmp_path / "plan.toml", "--out", tmp_path / "runs")
    assert done.returncode == 2
    assert "no_such_module cannot be imported" in done.stderr
    assert "line 9" in done.stderr


def test_modules_of_the_current_folder_can_be_imported(tmp_path, monkeypatch, package):
    package({})
    (tmp_path / "own_here.py").write_text(METHOD.replace("NAME", "own_rows"))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p and p != str(tmp_path)])
    done = vitrail("methods", "own_rows", "--import", "own_here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Own rows" in done.stdout
    assert vitrail("methods", "--import", "not_here").returncode == 2


def test_score_gets_only_images_that_have_what_it_needs():
    pytest.importorskip("pydantic")
    from types import SimpleNamespace

    from vitrail.bench.protocols import _score_registered
    from vitrail.scores.registry import RegisteredScore

    seen = []

    def compute(inputs: ScoreInputs):
        seen.append(inputs)
        return inputs.maps.sum((1, 2))

    masks = [torch.ones(2, 2), None, torch.ones(2, 2)]
    truths = [SimpleNamespace(mask_of=lambda _, m=m: m, boxes_of=lambda _: None) for m in masks]
    batch = SimpleNamespace(
        ids=("a", "b", "c"), truths=truths, labels=torch.tensor([0, 1, -1]), images=torch.zeros(3, 3, 2, 2),
        target_classes=lambda _: [0, 1, 1], missing_maps=lambda *_: {2: "no map"},
        maps=lambda *_: torch.arange(12.0).reshape(3, 2, 2), explanations={"m": SimpleNamespace(signed=True)},
        explainer=SimpleNamespace(model=SimpleNamespace(loaded=SimpleNamespace(module=None))),
    )  # fmt: skip
    values, reasons = _score_registered(RegisteredScore("s", compute, "S", "up", needs=("mask",)), batch, "m", "label")
    assert values["s"][0] == 6
    assert values["s"][1:].isnan().all()
    assert reasons == {1: "the image has no mask", 2: "no map"}
    assert (len(seen[0].maps), seen[0].signed, seen[0].classes.tolist()) == (1, True, [0])
    with pytest.raises(OptionError, match="one number per image"):
        _score_registered(RegisteredScore("s", lambda i: i.maps, "S", "up"), batch, "m", "label")


def test_unknown_scores_are_none():
    assert find_score("no_such_score") is None
    with pytest.raises(OptionError, match="unknown method"):
        find("no_such_method")
