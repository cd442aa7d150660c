"""`Explanation.check` of texts: words are removed, shifted orders are the null distribution."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vitrail
from tests.text.texts import BAD, FILLERS, GOOD, text_model, train_classifier
from vitrail.errors import InputError, OptionError
from vitrail.trust import WordRemoval, shifted_orders

WORDS = 20


def long_reviews(count, generator):
    """Texts of filler words with one decisive word each, with its class and position."""
    found = []
    for _ in range(count):
        words = [FILLERS[i] for i in torch.randint(len(FILLERS), (WORDS,), generator=generator).tolist()]
        label, which = (int(torch.randint(2, (), generator=generator)) for _ in range(2))
        position = int(torch.randint(WORDS, (), generator=generator))
        words[position] = (BAD, GOOD)[label][which]
        found.append((" ".join(words), label, position))
    return found


def with_scores(explanation, scores):
    """The same explanation with other scores of the words of its first text."""
    text = replace(explanation.text[0], scores=scores[None])
    return replace(explanation, text=(text,))


@pytest.mark.slow
def test_verdicts_tell_right_word_scores_from_wrong_ones():
    """A classifier that decides by one word: scores that mark it are faithful, others are not."""
    model, tokenizer, generator = train_classifier()
    default = int(vitrail.explain(model, " ".join(FILLERS), "rollout", tokenizer=tokenizer).targets)
    right, wrong = [], []
    for text, label, position in long_reviews(10, generator):
        if label == default or len(right) > 5:
            continue  # without its decisive word such a text is classified as before
        e = vitrail.explain(model, [text], "transformer_mm", target=label, tokenizer=tokenizer)
        truth = torch.zeros(WORDS, dtype=torch.float64)
        truth[position] = 1
        for scores, into in ((truth, right), (truth.roll(7), wrong), (-truth, wrong)):
            into.append(with_scores(e, scores).check(tests=["removal"]))
        (right if int(e.text[0].scores[0].argmax()) == position else wrong).append(e.check())
    assert len(right) > 3
    assert not any("no better than chance" in check.failures for check in right), [c.p_value for c in right]
    assert all(check.verdict == "no better than chance" for check in wrong), [c.p_value for c in wrong]
    one = right[1]
    assert one.unit == "words"
    assert one.sentences[0].startswith("Removing the 10 % most relevant words lowers")
    assert "as many words in shifted orders" in one.sentences[0]
    assert one.class_similarity is not None
    assert one.head_similarity is not None
    assert one.skipped == ("noise: a text cannot be changed a little",)
    assert "random head" in one.sentences[2]


def test_a_check_of_a_text_leaves_the_model_and_counts_its_passes():
    model, tokenizer = text_model("bert")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    text = " ".join(FILLERS[i % len(FILLERS)] for i in range(20))
    evaluated = []
    e = vitrail.explain(model, text, "transformer_mm", target=1, tokenizer=tokenizer)
    check = e.check(tests=["removal"], advance=evaluated.append)
    assert sum(evaluated) == 1 + 3 + 3 * 50 + 6, "the whole text, the control, 50 orders and the kept words, 3 levels"
    assert check.forwards == 3 * 50 + 6
    assert check.levels == (0.1, 0.4, 1 / 20)
    assert check.copies == 49
    assert check.removal == "words"
    assert check.to_dict()["unit"] == "words"
    masked = e.check(tests=["removal"], removal="mask")
    assert masked.removal == "mask"
    assert masked.probability == pytest.approx(check.probability)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    attached = vitrail.explain(model, text, "transformer_mm", target=1, tokenizer=tokenizer, check=True)
    assert attached.checks[0, 0].removed == check.removed


def test_words_are_left_out_or_masked():
    model, tokenizer = text_model("bert")
    text = " ".join(FILLERS)
    source = vitrail.explain(model, text, "rollout", target=1, tokenizer=tokenizer).source
    keep = torch.tensor([[0, 3, 19], [1, 2, 4]])
    seen = []

    def score(logits):
        seen.append(logits)
        return logits[:, 1]

    for by, texts in (
        ("words", ["the plot on", "a film scene"]),
        ("mask", [" ".join(w if i in row else "[MASK]" for i, w in enumerate(FILLERS)) for row in keep.tolist()]),
    ):
        remove = WordRemoval(source, FILLERS, by)
        found = remove(keep, score)
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 1]
        assert torch.allclose(found, expected)
        assert remove.forwards == 2


def test_shifted_orders_hold_the_same_values():
    values = torch.arange(25.0)
    for count in (10, 49, 80):
        copies = shifted_orders(values, count, seed=1)
        assert copies.shape == (count, 25)
        assert all(torch.equal(copy.sort().values, values) for copy in copies)
        assert not (copies == values).all(1).any()
        assert torch.equal(copies, shifted_orders(values, count, seed=1))
    steps = (copies[:49].diff(dim=1).abs() == 1).sum(1)
    assert (steps >= 23).all(), "neighbours stay neighbours in a shift"


def test_what_cannot_be_checked_is_named():
    model, tokenizer = text_model("bert")
    short = vitrail.explain(model, "the film is superb", "rollout", target=1, tokenizer=tokenizer)
    with pytest.raises(InputError, match="4 words is too short to be checked: use at least 20"):
        short.check()
    text = " ".join(FILLERS)
    e = vitrail.explain(model, text, "rollout", target=1, tokenizer=tokenizer)
    with pytest.raises(OptionError, match="removal='blur' is not one of 'words', 'mask'"):
        e.check(removal="blur")
    function = vitrail.explain(model, text, "rollout", target=lambda y: y.logits[:, 0], tokenizer=tokenizer)
    with pytest.raises(InputError, match="the target of these is a function"):
        function.check()
    tokens = vitrail.explain(model, dict(tokenizer(text, return_tensors="pt")), "rollout", target=1)
    with pytest.raises(InputError, match="checked word by word"):
        tokens.check()
