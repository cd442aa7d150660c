"""Snippets of the documentation that are not Python pages: commands, plans and blocks that need a server or a download.

``python`` blocks are run by test_docs.py, tutorials by test_tutorials.py, coming-from.md by test_coming_from.py. Here,
commands are parsed by the parser of the command line without being run: most of them name files or weights of the
reader. Plans are validated; the client of the web server is run against the server.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from itertools import takewhile

import pytest
import typer
from PIL import Image

from tests.repository.test_docs import PAGES, ROOT
from vitrail.cli.app import app

#: Pages whose commands are checked; the changelog speaks of former versions.
COMMANDED = [
    p for p in [*PAGES, *(ROOT / name / "README.md" for name in ("benchmarks", "studies"))] if p.name != "CHANGELOG.md"
]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELLS = {"sh", "bash", "console", "text"}


def blocks(page, *languages):
    return [body for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def commands(page):
    """The command lines of a page, without prompts, comments and variables, as lists of words."""
    for body in blocks(page, *SHELLS):
        for line in body.replace("\\\n", " ").splitlines():
            words = line.removeprefix("$ ").strip()
            if re.match(r"(\w+=\S+ )*(srun )?(vitrail|python|make) ", words + " "):
                split = shlex.split(words, comments=True)
                start = next(i for i, word in enumerate(split) if word in ("vitrail", "python", "make"))
                yield list(takewhile(lambda word: word not in ("|", "&&", ">"), split[start:]))


def source(script):
    """The text of a script and of the scripts beside it that it imports."""
    text = script.read_text(encoding="utf-8")
    beside = [script.parent / f"{name}.py" for name in re.findall(r"^(?:from|import) (\w+)", text, re.MULTILINE)]
    return text + "".join(source(other) for other in beside if other.is_file())


@pytest.fixture(scope="module")
def program():
    return typer.main.get_command(app)


@pytest.mark.parametrize("page", [p for p in COMMANDED if list(commands(p))], ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_can_be_parsed(page, program):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for name, *words in commands(page):
        if name == "vitrail":
            if words and not words[0].startswith("-"):
                assert words[0] in program.commands, f"vitrail {words[0]} does not exist"
                program.commands[words[0]].make_context(words[0], words[1:])
        elif name == "make":
            assert words[0] in targets, f"make {words[0]} does not exist"
        elif words[0].endswith(".py"):
            known = set(re.findall(r'"(--[\w-]+)"', source(ROOT / words[0])))
            assert {word for word in words if word.startswith("--")} <= known, words


def test_most_commands_are_found():
    """The pattern finds commands; a page that writes them in another way is noticed."""
    found = [words for page in COMMANDED for words in commands(page)]
    assert sum(words[0] == "vitrail" for words in found) > 60
    assert sum(words[0] == "python" for words in found) > 20


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "toml")], ids=lambda p: p.stem)
def test_plans_are_valid(page):
    pytest.importorskip("pydantic")
    from vitrail.bench import Plan

    for body in blocks(page, "toml"):
        content = tomllib.loads(body)
        if set(content) == {"project"}:  # of a package with entry points
            assert set(content["project"]["entry-points"]) <= {"vitrail.methods", "vitrail.scores"}
        else:
            assert Plan.model_validate(content).methods


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "py")], ids=lambda p: p.stem)
def test_other_python_blocks_compile(page):
    for body in blocks(page, "py"):
        compile(body, page.name, "exec")


@pytest.mark.slow
def test_client_of_the_web_server_runs(tmp_path, monkeypatch):
    httpx, testclient = pytest.importorskip("httpx"), pytest.importorskip("fastapi.testclient")
    from vitrail.cli.serve import load_models
    from vitrail.web.fastapi_app import make_app

    (block,) = blocks(ROOT / "docs" / "web.md", "py")
    Image.effect_noise((64, 48), 90).convert("RGB").save(tmp_path / "cat.jpg")
    monkeypatch.chdir(tmp_path)
    server = make_app(load_models(["scenes"], []))
    monkeypatch.setattr(httpx, "Client", lambda **_: testclient.TestClient(server))
    exec(compile(block, "web.md", "exec"), {})  # noqa: S102
    assert Image.open(tmp_path / "figure.png").width > 100


def test_compared_models_agree_with_the_page():
    """What docs/compare.md says in words holds for the committed numbers; its tables are made from them."""
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    results = json.loads((ROOT / "studies" / "results" / "compare.json").read_text(encoding="utf-8"))
    models = re.findall(r"<!-- compare: (\S+) -->", text)
    below, tied = [], []
    for found in (results[name] for name in models):
        rows = {row["method"]: row for row in found["rows"]}
        own = [row for row in rows.values() if not row["control"]]
        assert f"`{found['recommended']}` for" in text
        assert max(own, key=lambda row: row["localisation"])["method"] == "leadlight"
        behind, low, high = (-100 * number for number in rows["leadlight"]["to_best"])
        assert f"(by {behind:.1f} points [{high:.1f}, {low:.1f}])" in text
        centre = rows["centre"]["faithfulness"][0]
        below.append({row["method"] for row in own if row["faithfulness"][0] < centre})
        tied.append({row["method"] for row in own if row["tied_with_best"]})
    assert [len(names) for names in below] == [6, 6]
    assert below[0] & below[1] == {"gradtoken", "abslrp", "gradient_x_input", "lrp"}
    assert tied[0] & tied[1] == {"grad_rollout", "transformer_mm", "attnlrp"}
    assert {"cdam", "leadlight"} <= tied[1] - tied[0]
