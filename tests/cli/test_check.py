"""``vitrail check`` and ``vitrail compare`` of prompts: the numbers are those of Python."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import vitrail
from vitrail.cli.app import app
from vitrail.targets import token
from vitrail.text import load_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES, THINGS = ("Anna", "Ben", "Cleo", "Dan", "Eva"), ("key", "lamp", "coin", "ring", "drum")
PROMPT = " ".join(f"{name} has the {thing} ." for name, thing in zip(NAMES, THINGS, strict=True)) + " Anna has the"
SHORTER = " ".join(PROMPT.split()[5:-3]) + " Eva has the"


def run(*options):
    return CliRunner().invoke(app, list(map(str, options)))


def test_a_prompt_is_checked_as_in_python(tmp_path):
    done = run("check", "--text", PROMPT, "--method", "attnlrp", "--token", "key", "--against", "lamp", "-o", tmp_path)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "text-0-0.json").read_text())["attnlrp"]
    model, tokenizer = vitrail.load("lm-recall"), load_tokenizer("lm-recall")
    e = vitrail.explain(model, PROMPT, "attnlrp", tokenizer=tokenizer, target=token("key", against="lamp"))
    expected = e.check()
    assert found["removed"] == pytest.approx(expected.removed)
    assert (found["verdict"], found["unit"]) == (expected.verdict, "words")
    assert expected.verdict in done.output


def test_prompts_are_compared_as_in_python(tmp_path):
    file = tmp_path / "compared.json"
    given = ("--method", "attnlrp", "--method", "rollout", "--token", "key", "-o", file)
    done = run("compare", "--text", PROMPT, "--text", SHORTER, *given)
    assert done.exit_code == 0, done.output
    model, tokenizer = vitrail.load("lm-recall"), load_tokenizer("lm-recall")
    compared = vitrail.compare(
        model, [PROMPT, SHORTER], ["attnlrp", "rollout"], tokenizer=tokenizer, target=token("key")
    )
    expected = {row.method: row.ranked.value.value for row in compared.rows}
    rows = json.loads(file.read_text())["rows"]
    assert {row["method"]: row["faithfulness"][0] for row in rows} == pytest.approx(expected)


@pytest.mark.parametrize("command", ["check", "compare"])
def test_errors_say_what_to_do(command):
    for options, words in (
        ((), "pass image files, or texts with --text"),
        (("--token", "key", "x.png"), "--token, --answer and --units are for texts"),
        (("--text", "Anna", "x.png"), "image files and --text were both given"),
        (("--text", " "), "text 1 is empty"),
    ):
        done = run(command, *options)
        assert done.exit_code == 1
        assert words in str(done.exception)
