"""The command line for language models: tokens, answers, contrasts, units and generated text."""

from __future__ import annotations

import importlib
import json

import pytest
from typer.testing import CliRunner

import vitrail
from tests.text.language import PROMPT, language_model
from vitrail.cli.app import app

explain_module = importlib.import_module("vitrail.pipeline.explain")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    model, tokenizer = language_model()
    path = tmp_path_factory.mktemp("decoder")
    model.float().save_pretrained(path)
    tokenizer.save_pretrained(path)
    model.double()
    return path


def run(folder, to, *options):
    return CliRunner().invoke(app, ["explain", "--text", PROMPT, "--model", f"hf:{folder}", "-o", str(to), *options])


def test_tokens_and_answers_are_explained_as_in_python(folder, tmp_path):
    done = run(folder, tmp_path, "--token", "Paris", "--against", "Rome", "--method", "gradient_x_input")
    assert done.exit_code == 0, done.output
    assert "'Paris'" in done.output
    record = json.loads((tmp_path / "gradient-x-input/manifest.json").read_text())["named_targets"][0][0]
    assert (record["asked"]["first"]["name"], record["asked"]["against"][0]["name"]) == ("Paris", "Rome")
    model, tokenizer = language_model()
    e = vitrail.explain(
        model, PROMPT, "gradient_x_input", tokenizer=tokenizer, target=vitrail.targets.token("Paris", "Rome")
    )
    words = json.loads((tmp_path / "gradient-x-input/words.json").read_text())[0]["words"]
    assert [w["scores"][0] for w in words] == pytest.approx(e.text[0].scores[0].tolist(), abs=1e-4)
    done = run(
        folder, tmp_path / "answer", "--answer", "Paris , red", "--units", "tokens", "--method", "gradient_x_input"
    )
    assert done.exit_code == 0, done.output
    assert "log-probability" in done.output


@pytest.mark.parametrize("more", [["--token", "Paris"], ["--generate", "1"]])
def test_activations_are_computed_again_where_asked_for(folder, tmp_path, monkeypatch, more):
    asked = []
    whole = explain_module.run_in_memory

    def note(run, model, recompute, batch):
        asked.append(recompute)
        return whole(run, model, recompute, batch)

    monkeypatch.setattr(explain_module, "run_in_memory", note)
    for option in ([], ["--recompute"], ["--no-recompute"]):
        done = run(folder, tmp_path / "".join(option), "--method", "gradient_x_input", *more, *option)
        assert done.exit_code == 0, done.output
    assert asked == [None, True, False]
    done = CliRunner().invoke(app, ["explain", str(tmp_path), "--recompute"])
    assert "does not go with a folder" in " ".join((done.output + str(done.exception)).split())


def test_generated_words_have_their_sources(folder, tmp_path):
    done = run(folder, tmp_path, "--generate", "3")
    assert done.exit_code == 0, done.output
    assert "sources" in done.output
    assert vitrail.GenerationExplanation.load(tmp_path).prompt == PROMPT


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--token", "Parisian"], "not in the vocabulary"),
        (["--token", "Paris", "--target", "3"], "does not go with --token"),
        (["--answer", "Paris", "--generate", "3"], "does not go with"),
        (["--units", "letters"], "is not one of 'tokens'"),
    ],
)
def test_errors_say_what_to_do(folder, tmp_path, options, words):
    done = run(folder, tmp_path, *options)
    assert done.exit_code != 0
    assert words in " ".join((done.output + str(done.exception)).split())
    done = CliRunner().invoke(app, ["explain", "--token", "Paris"])
    assert "pass one with --text" in " ".join((done.output + str(done.exception)).split())


def test_texts_without_a_model_are_explained_on_the_embedded_one(tmp_path):
    text = "Anna has the key. Ben has the lamp. Anna has the"
    done = CliRunner().invoke(app, ["explain", "--text", text, "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "lm-recall, the embedded toy language model" in done.output
    words = json.loads((tmp_path / "attnlrp-released/words.json").read_text())[0]["words"]
    assert max(words, key=lambda w: w["scores"][0])["word"] == "key."
    done = CliRunner().invoke(app, ["explain", "--text", "The capital of France is", "-o", str(tmp_path)])
    assert done.exit_code != 0
    assert "'capital' is not a word of this model" in str(done.exception)
