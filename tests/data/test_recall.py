"""Recall prompts: answers follow from their sources, pairs share their facts, and no two splits share a prompt."""

from __future__ import annotations

import pytest

from vitrail.data.recall import RECALL_LENGTH, RECALL_TASKS, RECALL_WORDS, draw_recall, recall_tokenizer, replace_source
from vitrail.errors import InputError

COUNT = 60


def pairs(task):
    return [draw_recall(0, index, task=task, split="test") for index in range(COUNT)]


@pytest.mark.parametrize("task", RECALL_TASKS)
def test_the_answer_comes_from_its_source(task):
    for prompt in (one for pair in pairs(task) for one in pair):
        found = [prompt.words[place] for place in prompt.source]
        if task == "sum":
            assert len(found) == 2
            assert sum(map(int, found)) == int(prompt.answer)
        else:
            assert found == [prompt.answer]
            assert prompt.words.count(prompt.answer) == 1, "no other word is the answer"


@pytest.mark.parametrize("task", RECALL_TASKS)
def test_the_second_candidate_answers_another_question_about_the_same_facts(task):
    for first, second in pairs(task):
        assert (first.answer, first.source) == (second.other, second.other_source)
        assert (second.answer, second.source) == (first.other, first.other_source)
        assert first.answer != first.other
        facts = first.sentence.index(max(first.sentence))
        assert first.words[:facts] == second.words[:facts]
        assert first.words[facts:] != second.words[facts:]
        assert len(first.words) == len(second.words) == len(first.sentence)


def answer_by_reading(words):
    """The answer that a reader gives who parses the sentences of lookups and mentions."""
    text = " ".join(words)
    *facts, question = text.split(" . ")
    asked = question.split()
    if asked[0] in ("Now", "First"):
        cities = [f.split()[3] for f in facts if f.split()[1] == "went" and f.split()[0] == asked[1]]
        return cities[-1 if asked[0] == "Now" else 0]
    if asked[1] == "owns":
        return next(f.split()[1] for f in facts if f.endswith(f"belongs to {asked[0]}"))
    return next(f.split()[-1] for f in facts if f.startswith(question))


@pytest.mark.parametrize("task", ["lookup", "mention"])
def test_a_reader_gives_the_same_answer(task):
    for prompt in (one for pair in pairs(task) for one in pair):
        assert answer_by_reading(prompt.words) == prompt.answer, prompt.text


def test_copies_continue_the_list():
    for prompt in (one for pair in pairs("copy") for one in pair):
        given = prompt.words[prompt.words.index("Continue") + 2 :]
        place = prompt.source[0]
        assert prompt.words[place - len(given) : place] == given


@pytest.mark.parametrize("task", RECALL_TASKS)
def test_a_replaced_source_changes_the_answer(task):
    for prompt in (one for pair in pairs(task) for one in pair):
        changed = replace_source(prompt)
        assert changed.answer != prompt.answer
        different = [i for i, (a, b) in enumerate(zip(prompt.words, changed.words, strict=True)) if a != b]
        assert different == [prompt.source[0]]
        assert set(changed.words) | {changed.answer} <= set(RECALL_WORDS)


def test_prompts_are_the_same_in_every_call_and_differ_between_splits():
    assert draw_recall(3, 5) == draw_recall(3, 5)
    texts = {
        split: {draw_recall(0, i, split=split)[0].text for i in range(COUNT)} for split in ("train", "val", "test")
    }
    assert len(set.union(*texts.values())) > 2.9 * COUNT
    assert {draw_recall(0, i)[0].task for i in range(COUNT)} == set(RECALL_TASKS)


def test_the_tokenizer_knows_every_prompt():
    tokenizer = recall_tokenizer()
    for index in range(COUNT):
        prompt = draw_recall(0, index)[0]
        assert tokenizer.tokenize(prompt.text) == list(prompt.words)
        assert len(prompt.words) + 3 <= RECALL_LENGTH


def test_unknown_names_are_errors():
    with pytest.raises(InputError, match="unknown task 'recite': use one of lookup"):
        draw_recall(0, 0, task="recite")
    with pytest.raises(InputError, match="unknown split 'dev'"):
        draw_recall(0, 0, split="dev")
