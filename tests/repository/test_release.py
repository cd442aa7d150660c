"""A release: one version everywhere, supported versions tested, stable names documented, a leaderboard."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest

import vitrail

ROOT = Path(__file__).resolve().parents[2]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def project():
    return tomllib.loads(text("pyproject.toml"))


def test_version_agrees_everywhere():
    assert project()["project"]["dynamic"] == ["version"]
    path = project()["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{vitrail.__version__}"' in text(path)
    assert re.search(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE)[1] == vitrail.__version__
    assert re.search(r"^## (\d.*)$", text("CHANGELOG.md"), re.MULTILINE)[1] == vitrail.__version__


def test_workflow_tests_the_oldest_versions_and_every_python():
    workflow, settings = text(".github/workflows/ci.yml"), project()["project"]
    extras = settings["optional-dependencies"]
    lowest = dict(one.split(">=") for one in [*settings["dependencies"], *extras["timm"], *extras["hf"]])
    for name in ("torch", "torchvision", "timm", "transformers"):
        pinned = re.search(rf'"{name}==([\d.]+?)(\.\*)?"', workflow)[1]
        assert pinned == lowest[name], f"the job of the oldest versions has {name} {pinned}"
    pythons = [one.split()[-1] for one in settings["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    matrix = f"python: {json.dumps(pythons)}"
    assert workflow.count(matrix) == 2, "the fast tests and the wheel run on every supported Python"


def test_workflows_run_commands_that_exist():
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE))
    called = set()
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow[True], "YAML reads the key `on` as true"
        for name, job in workflow["jobs"].items():
            assert job["timeout-minutes"] <= 90, name
            for step in job["steps"]:
                assert ("run" in step) != ("uses" in step), step
                called |= set(step.get("run", "").split("\n"))
    made = {line.removeprefix("make ") for line in called if line.startswith("make ")}
    assert {"lint", "test-fast", "test-all", "docs"} <= made <= targets
    for line in called:
        assert all((ROOT / path).exists() for path in re.findall(r"(?:^| )((?:tests|\.ci)/\S+)", line)), line
    extras = {one for line in called for group in re.findall(r'-e "\.\[([\w,]+)\]"', line) for one in group.split(",")}
    assert extras
    known = project()["project"]["optional-dependencies"]
    assert extras <= set(known)
    assert known["all"] == [f"vitrail[{','.join(name for name in known if name != 'all')}]"]


def test_api_page_names_the_stable_modules():
    section = text("docs/api.md").split("## What is stable")[1].split("\n## ")[0]
    missing = [module for module in json.loads(text("tests/api_surface.json")) if f"`{module}`" not in section]
    assert not missing
    assert "Deprecation" in section


def test_methods_of_relevance_propagation_have_a_note_on_patents():
    from vitrail.methods import METHODS

    names = [method.name for method in METHODS.values() if method.family == "relevance"]
    assert "attnlrp" in names
    assert not [name for name in names if "index.md#patents" not in text(f"docs/methods/{name}.md")]
    assert "## Patents" in text("docs/methods/index.md")


def test_leaderboard_has_every_entry_and_published_number():
    pytest.importorskip("pydantic")
    spec = importlib.util.spec_from_file_location("leaderboard_page", ROOT / "results" / "leaderboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.PAGE.read_text(encoding="utf-8")
    assert module.page(text) == text, "run `python results/leaderboard.py`"
    assert len(list(module.published_rows())) > 400
    assert len(list(module.measured_rows())) > 0


def test_no_file_has_marks_of_a_merge():
    folders = ("docs", "src", "tests", "studies", "results", "benchmarks", "training")
    suffixes = (".py", ".md", ".bib", ".toml", ".json", ".js", ".css", ".html", ".csv")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    marks = ("<" * 7 + " ", ">" * 7 + " ")
    assert not [path for path in files if any(line.startswith(marks) for line in path.open(encoding="utf-8"))]
    assert len(files) > 800
