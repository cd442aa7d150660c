"""Checks of scores of prompts: the removed words are those that decide, and contrasts of answers follow them."""

from __future__ import annotations

import pytest
import torch

import vitrail
from tests.text.language import MarkedCopy, language_model, word_tokens
from vitrail.errors import InputError, OptionError
from vitrail.targets import answer, contrast, token
from vitrail.text.prompt_scorer import PromptScorer

pytestmark = pytest.mark.filterwarnings("ignore::vitrail.errors.MapWarning")
PROMPT = (
    "the city of France is in the city and Anna has the red key , Ben opens the door with the key of the city . who"
)


def test_the_words_that_decide_pass_and_others_do_not():
    found = vitrail.explain(MarkedCopy(), PROMPT, methods=["gradient_x_input", "random"], tokenizer=word_tokens())
    checks = found.check(tests=["removal", "class"])
    assert checks["gradient_x_input"].passed
    assert checks["random"].p_value > checks["gradient_x_input"].p_value
    check = checks["gradient_x_input"]
    assert check.is_probability
    assert check.removed[0] < 0.1 < check.null_removed[0]  # probability of the copied word
    assert check.removal == "mask"
    assert check.class_similarity < 0.9


@pytest.mark.parametrize("removal", ["mask", "replace"])
def test_values_without_words_are_those_of_the_model(removal):
    model, tokenizer = language_model()
    target = contrast(answer("Paris , red"), answer("Rome is"))
    e = vitrail.explain(model, "Anna has the red key", "random", tokenizer=tokenizer, target=target)
    scorer = PromptScorer(model, e.source.prompts[0], e.named_targets[0][0].pinned, tokenizer, removal)
    kept = torch.tensor([[True] * 6, [True, False, True, True, False, True]])

    def total(words, mask):
        ids = torch.tensor([[*e.source.prompts[0].ids, *tokenizer.convert_tokens_to_ids(words)]])
        mask = torch.cat([mask, mask.new_ones(len(words))])[None]
        if removal == "replace":
            ids, mask = torch.where(mask, ids, 0), torch.ones_like(mask)
        scores = model(input_ids=ids, attention_mask=mask.long()).logits[0].detach().log_softmax(-1)
        ids = torch.tensor(tokenizer.convert_tokens_to_ids(words))
        return float(scores[5 : 5 + len(words)].gather(1, ids[:, None]).sum())

    expected = [total(["Paris", ",", "red"], row) - total(["Rome", "is"], row) for row in kept]
    assert scorer(kept).tolist() == pytest.approx(expected, rel=1e-5)
    assert scorer(kept[:1])[0] == pytest.approx(
        e.named_targets[0][0].pinned.first.total - e.named_targets[0][0].pinned.against[0].total, rel=1e-5
    )


def test_a_check_is_part_of_the_explanation():
    model, tokenizer = language_model()
    e = vitrail.explain(model, PROMPT, "transformer_mm", tokenizer=tokenizer, target=token("Paris"), check=True)
    check = e.checks[0, 0]
    assert check.unit == "words"
    assert check.probability == pytest.approx(e.named_targets[0][0].pinned.probability, rel=1e-5)
    assert check.other_class
    assert check.head_similarity is not None


def test_errors_say_what_to_do():
    model, tokenizer = language_model()
    with pytest.raises(InputError, match="a prompt of 3 words is too short to be checked: use at least 20"):
        vitrail.explain(model, "Anna has red", "random", tokenizer=tokenizer).check()
    with pytest.raises(OptionError, match="removal='blur' is not one of 'mask', 'replace'"):
        vitrail.explain(model, PROMPT, "random", tokenizer=tokenizer).check(removal="blur")
    e = vitrail.explain(model, PROMPT, "random", tokenizer=tokenizer, target=lambda output: output.logits[:, -1, 5])
    with pytest.raises(InputError, match="the target of these is a function"):
        e.check()
