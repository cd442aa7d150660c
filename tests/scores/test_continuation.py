"""Faithfulness of continuations against models whose log-probabilities are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitrail
from vitrail.data.recall import draw_recall, recall_tokenizer
from vitrail.errors import InputError
from vitrail.scores import continuation_faithfulness, continuation_log_probability


def count_sevens(prompts):
    return [float(list(prompt).count(7)) for prompt in prompts]


def test_removed_and_kept_units_are_those_of_highest_relevance():
    prompt, free = [1, 7, 2, 7, 3, 7], [False, True, True, True, True, False]
    right = continuation_faithfulness(count_sevens, [prompt], [[9, 3, 0, 2, 0, 9]], [free], shares=(0.25, 0.5))
    assert right["comprehensiveness_at"].tolist() == [[1, 2]], "the last seven may not be removed"
    assert right["sufficiency_at"].tolist() == [[1, 0]]
    wrong = continuation_faithfulness(count_sevens, [prompt], [[9, 0, 3, 0, 2, 9]], [free], shares=(0.25, 0.5))
    assert wrong["comprehensiveness"].tolist() == [0]
    assert wrong["sufficiency"].tolist() == [2]


def test_units_are_removed_as_a_whole():
    prompt, units = [7, 1, 2, 7], [0, 0, 1, 1]
    # The second unit has the larger sum, though the first one has the token of highest relevance.
    found = continuation_faithfulness(
        count_sevens, [prompt], [[3.0, -2.0, 1.0, 1.0]], [[True] * 4], [units], shares=(0.5,)
    )
    assert found["comprehensiveness"].tolist() == [1]
    seen = []
    continuation_faithfulness(
        lambda p: seen.extend(map(tuple, p)) or count_sevens(p), [prompt], [[3.0, -2.0, 1.0, 1.0]], [[True] * 4],
        [units], shares=(0.5,),
    )  # fmt: skip
    assert seen == [(7, 1, 2, 7), (7, 1), (2, 7)]


def test_lengths_must_agree():
    with pytest.raises(InputError, match="prompt 0 has 2 tokens, 1 scores"):
        continuation_faithfulness(count_sevens, [[1, 2]], [[1.0]], [[True, True]])
    model = vitrail.load("lm-recall").module
    with pytest.raises(InputError, match="3 prompts are no multiple of 2 continuations"):
        continuation_log_probability(model, [[3], [4]])([[1], [1], [1]])


def test_log_probability_is_the_sum_over_the_tokens_of_the_continuation():
    model = vitrail.load("lm-recall").module
    prompts, answers = [[1, 40, 3, 4], [1, 41, 3]], [[60, 19], [4]]
    found = continuation_log_probability(model, answers, batch_size=2)([prompts[0], prompts[0][:3], prompts[1], [1]])
    expected = []
    for prompt, answer in zip(
        [prompts[0], prompts[0][:3], prompts[1], [1]], [answers[0]] * 2 + [answers[1]] * 2, strict=True
    ):
        with torch.no_grad():
            scores = model(torch.tensor([prompt + answer]))["logits"][0].log_softmax(-1)
        expected.append(sum(float(scores[len(prompt) - 1 + i, token]) for i, token in enumerate(answer)))
    assert np.allclose(found, expected, atol=1e-4)


def test_the_source_is_comprehensive_and_the_rest_is_not():
    """Without its source, the right answer of a lookup becomes unlikely; without another fact it stays likely."""
    model, tokenizer = vitrail.load("lm-recall").module, recall_tokenizer()
    prompts = [draw_recall(0, index, task="lookup", split="test")[0] for index in range(8)]
    ids = [tokenizer.encode(prompt.text) for prompt in prompts]
    answers = [[tokenizer.convert_tokens_to_ids(prompt.answer)] for prompt in prompts]
    facts = [[False, *(s < max(p.sentence) for s in p.sentence)] for p in prompts]

    def marked(places, length):
        return [float(i - 1 in places) for i in range(length)]

    log_probability = continuation_log_probability(model, answers)
    own, other = (
        continuation_faithfulness(
            log_probability, ids, [marked(getattr(p, name), len(row)) for p, row in zip(prompts, ids, strict=True)],
            facts, shares=(0.01,),
        )["comprehensiveness"]
        for name in ("source", "other_source")
    )  # fmt: skip
    assert own.mean() > 5
    assert abs(other).mean() < 1
