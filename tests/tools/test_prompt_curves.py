"""Compare methods on prompts: those that find the word that is copied are better than a random order."""

from __future__ import annotations

import pytest

import vitrail
from tests.text.language import MarkedCopy, language_model, word_tokens
from vitrail.errors import InputError
from vitrail.targets import token
from vitrail.tools.prompt_curves import prompt_faithfulness

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
PROMPTS = [
    "the city of France is in the city and Anna has the red key , Ben opens",
    "Anna has the blue door in France and Ben is in the city of Rome",
    "the door of Anna is green and the city of Ben is one of two",
    "a red key opens the door of the city in France",
] * 3


def test_methods_that_find_the_copied_word_are_recommended():
    methods = ["gradient_x_input", "raw_attention"]
    found = vitrail.compare(MarkedCopy(), PROMPTS, methods, tokenizer=word_tokens(), batch_size=12)
    assert {row.method for row in found.rows} == {*methods, "random"}
    assert found.recommended in methods
    assert found.rows[0].ranked.value.value > found.rows[-1].ranked.value.value + 0.3
    assert found.removal == "mask"
    assert vitrail.compare(
        MarkedCopy(), PROMPTS, ["gradient_x_input"], tokenizer=word_tokens(), target=token("blue", against="red")
    ).rows


def test_faithfulness_of_the_right_order_is_the_highest():
    model, tokenizer = MarkedCopy(), word_tokens()
    found = vitrail.explain(model, PROMPTS[:1], methods=["gradient_x_input", "random"], tokenizer=tokenizer)
    columns, removal = prompt_faithfulness(found["random"].source, found, [0.1, 0.5], lambda _: None)
    assert removal == "mask"
    assert columns["gradient_x_input"].shape == (1, 1)
    assert columns["gradient_x_input"][0, 0] > 0.8


def test_too_many_prompts_and_encoders_are_refused():
    model, tokenizer = language_model()
    with pytest.raises(InputError, match="65 prompts are too many"):
        vitrail.compare(model, ["Anna has"] * 65, ["random"], tokenizer=tokenizer)
