"""Generated text explained token by token: the matrix, its words, one forward pass, views, saving and loading."""

from __future__ import annotations

import io
import json
import re

import pytest
import torch
from rich.console import Console

import vitrail
from tests.text.language import PROMPT, MarkedCopy, language_model, word_tokens
from vitrail.errors import InputError, OptionError
from vitrail.targets import token

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
STEPS = 4


@pytest.mark.parametrize("family", ["GPT2", "Llama", pytest.param("Mamba", marks=pytest.mark.slow)])
def test_greedy_tokens_are_those_of_the_model(family):
    if family == "Mamba":
        from tests.zoo.decoders import mamba

        model, tokenizer = mamba(), word_tokens()
    else:
        model, tokenizer = language_model(family)
    g = vitrail.explain_generation(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, max_new_tokens=STEPS)
    row = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    for index in tokenizer.convert_tokens_to_ids(list(g.tokens[g.prompt_tokens :])):
        scores = model(input_ids=row).logits[0, -1].detach()
        assert int(scores.argmax()) == index
        row = torch.cat([row, torch.tensor([[index]])], 1)
    assert g.text == PROMPT + g.generated
    assert len(g.log_probabilities) == len(g)


@pytest.mark.parametrize(
    "method", ["gradient_x_input", "transformer_mm", "attnlrp:gamma_linear=0", "shapley:forwards=30"]
)
def test_each_row_is_the_explanation_of_its_token(method):
    model, tokenizer = language_model()
    g = vitrail.explain_generation(model, PROMPT, method, tokenizer=tokenizer, continuation="Rome and Ben")
    start, words = g.prompt_tokens, g.generated.split()
    assert g.matrix.shape == (3, start + 3)
    for t, word in enumerate(words):
        before = " ".join([PROMPT, *words[:t]])
        e = vitrail.explain(model, before, method, tokenizer=tokenizer, target=token(word))
        tolerance = 2e-2 if "shapley" in method else 1e-5  # coalitions of other tokens
        scale = float(e.grid.abs().max())
        if "shapley" not in method:
            assert torch.allclose(g.matrix[t, : start + t].double(), e.grid[0, 0], atol=tolerance * scale), t
        assert not g.matrix[t, start + t :].any()
        assert float(e.named_targets[0][0].pinned.probability) == pytest.approx(
            torch.tensor(g.log_probabilities[t]).exp()
        )


def test_one_forward_pass_serves_all_tokens():
    model, tokenizer = language_model()

    def passes(words):
        count = []
        handle = model.register_forward_hook(lambda *_: count.append(1))
        try:
            vitrail.explain_generation(model, PROMPT, "transformer_mm", tokenizer=tokenizer, continuation=words)
        finally:
            handle.remove()
        return len(count)

    passes("Rome and Ben")  # reads the structure
    assert passes("Ben has Rome") == passes("red and red")
    assert passes("Ben has Rome") <= 2


@pytest.mark.parametrize("method", ["gradient_x_input", "transformer_mm", "attnlrp"])
def test_several_prompts_give_what_each_gives_alone(method):
    model, tokenizer = language_model()
    prompts, words = [PROMPT, "Anna has the red key and Ben has the"], ["Rome and Ben", "blue door"]
    vitrail.explain_generation(model, prompts, method, tokenizer=tokenizer, continuation=words)  # reads the structure
    rows = []
    handle = model.register_forward_hook(lambda _, args, kwargs, out: rows.append(len(out.logits)), with_kwargs=True)
    both = vitrail.explain_generation(model, prompts, method, tokenizer=tokenizer, continuation=words)
    handle.remove()
    assert set(rows) <= {2, 4, 6}, "both prompts in each pass"
    assert [len(g) for g in both] == [3, 2]
    for prompt, own, g in zip(prompts, words, both, strict=True):
        alone = vitrail.explain_generation(model, prompt, method, tokenizer=tokenizer, continuation=own)
        assert g.matrix.shape == alone.matrix.shape
        scale = float(alone.matrix.abs().max())
        assert torch.allclose(g.matrix, alone.matrix, rtol=0, atol=1e-6 * scale)
        assert (g.text, g.words, g.units) == (alone.text, alone.words, alone.units)
        assert g.log_probabilities == pytest.approx(alone.log_probabilities)
        assert g.explanation.source.prompts[0].encoded.text.startswith(prompt)
    written = vitrail.explain_generation(model, prompts, method, tokenizer=tokenizer, max_new_tokens=2)
    assert [g.prompt for g in written] == prompts


def test_the_source_of_a_copied_word_is_found():
    g = vitrail.explain_generation(MarkedCopy(), "Anna has the red key", tokenizer=word_tokens(), max_new_tokens=2)
    assert g.words == ("red", "red")
    assert g.top(0, 1)[0][0] == "red"
    assert float(g.scores[0].max()) == float(g.scores[0, g.sources.index("red")])
    assert {name for name, _ in g.top(1, 2)} == {"red"}  # the word of the prompt and the one just written


def test_words_and_units_add_up_the_tokens():
    model, tokenizer = language_model()
    text = "Anna has red. Ben is blue."
    g = vitrail.explain_generation(
        model, text, "gradient_x_input", tokenizer=tokenizer, continuation="Rome .", units="sentences"
    )
    assert g.sources[:2] == ("Anna has red.", "Ben is blue.")
    spans = g.token_spans
    inside = [i for i, (a, b) in enumerate(spans) if 0 <= a < b <= 13]
    assert float(g.scores[0, 0]) == pytest.approx(float(g.matrix[0, inside].sum()), abs=1e-6)


def test_a_unit_that_goes_on_in_the_generated_text_is_divided_there():
    """The last sentence of the prompt is a source of the words that continue it, and so are earlier ones of these."""
    model, tokenizer = language_model()
    g = vitrail.explain_generation(
        model, "Anna has red. Ben is", "gradient_x_input", tokenizer=tokenizer, continuation="in Rome and",
        units="sentences",
    )  # fmt: skip
    assert g.sources == ("Anna has red.", "Ben is", "in Rome")
    ends = [stop if start < stop else -1 for start, stop in g.token_spans]  # special tokens have no characters
    inside = [[i for i, end in enumerate(ends) if a < end <= b] for a, b in g.units]
    for t, _ in enumerate(g.words):
        for unit, tokens in enumerate(inside):
            assert float(g.scores[t, unit]) == pytest.approx(float(g.matrix[t, tokens].sum()), abs=1e-6)
    assert g.scores[0, 1] != 0
    assert g.scores[1, 2] != 0  # "in", for "Rome"


def test_a_generation_is_shown_saved_and_loaded(tmp_path):
    model, tokenizer = language_model()
    g = vitrail.explain_generation(model, PROMPT, tokenizer=tokenizer, continuation="Rome and Ben")
    g.save(tmp_path)
    again = vitrail.GenerationExplanation.load(tmp_path)
    assert torch.equal(again.matrix, g.matrix)
    assert (again.words, again.sources, again.text) == (g.words, g.sources, g.text)
    assert again.top("Ben", 3) == g.top("Ben", 3)
    assert (tmp_path / "explanation" / "manifest.json").is_file()
    page = (tmp_path / "generation.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', page, re.DOTALL).group(1))
    assert data["text"] == g.text
    assert len(data["shades"]) == len(g.words)
    assert max(map(max, data["shades"])) == 1.0
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(g.terminal("Ben"))
    assert g.text in console.export_text()
    assert "<iframe" in g._repr_html_()
    assert repr(g).startswith("GenerationExplanation(attnlrp")
    assert g.step(-1).top(1)[0][0] in g.text
    assert g.figure().axes[0].get_ylabel() == "generated"


def test_long_texts_fold():
    model, tokenizer = MarkedCopy(), word_tokens()
    long = "Anna has the red key " + "the city of France is in the city . " * 40
    g = vitrail.explain_generation(model, long, "gradient_x_input", tokenizer=tokenizer, max_new_tokens=1)
    console = Console(record=True, width=10_000, file=io.StringIO())
    console.print(g.terminal(0))
    shown = console.export_text()
    assert "red key" in shown
    assert "… 40 units …" in shown
    assert len(shown) < len(long) / 2


def test_errors_say_what_to_do():
    model, tokenizer = language_model()
    with pytest.raises(OptionError, match="max_new_tokens=0"):
        vitrail.explain_generation(model, PROMPT, tokenizer=tokenizer, max_new_tokens=0)
    with pytest.raises(InputError, match="2 prompts need a list of as many continuations"):
        vitrail.explain_generation(model, [PROMPT, PROMPT], tokenizer=tokenizer, continuation="Ben has")
    with pytest.raises(InputError, match="has 36 tokens, and the model takes 32"):
        vitrail.explain_generation(model, "Anna " * 29, tokenizer=tokenizer, continuation="Ben " * 7)
    g = vitrail.explain_generation(model, PROMPT, "gradient_x_input", tokenizer=tokenizer, continuation="Ben has")
    with pytest.raises(InputError, match="'Rome' was not generated: the words are 'Ben', 'has'"):
        g.top("Rome")
    with pytest.raises(InputError, match=r"holds no generation\.json"):
        vitrail.GenerationExplanation.load("nowhere")
