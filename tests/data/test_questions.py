"""Questions about scenes: answers agree with the scene, in every symmetry, and words are encoded."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data import SCENE_CLASSES, SCENE_COLOURS, Scenes, ask_questions, render
from vitrail.data.questions import QUESTION_KINDS, QUESTION_LENGTH, QUESTION_WORDS, encode_question, questions_about
from vitrail.errors import InputError


def test_every_answer_is_true_and_the_only_one():
    """Colours and shapes by the lists of the scene, relations by the centres of the boxes, independently computed."""
    seen = set()
    for scene in Scenes("val", 40, coloured=True):
        names = [SCENE_CLASSES[c] for c in scene.classes]
        hues = [SCENE_COLOURS[c] for c in scene.colours]
        x, y = ((scene.boxes[:, k] + scene.boxes[:, k + 2]) / 2 for k in (0, 1))
        for q in ask_questions(scene):
            seen.add(q.kind)
            if q.kind == "colour":
                assert {h for n, h in zip(names, hues, strict=True) if n == q.words[0]} == {q.answer}
            elif q.kind == "shape":
                assert [n for n, h in zip(names, hues, strict=True) if h == q.words[0]] == [q.answer]
            elif q.kind == "count":
                assert ["one", "two", "three", "four"].index(q.answer) == len(names) - 1
            elif q.kind == "list":
                order = np.argsort(x, kind="stable")
                assert q.answer == " , ".join(f"{hues[k]} {names[k]}" for k in order)
            else:
                k = names.index(q.words[1])
                side = {"left": x < x[k], "right": x > x[k], "above": y < y[k], "below": y > y[k]}[q.words[0]]
                assert [n for n, there in zip(names, side, strict=True) if there] == [q.answer]
                assert q.objects == (q.subject, k)
            assert all(word in q.text.split() for word in q.words)
            assert q.subject is None or names[q.subject] in (q.answer, *q.words)
    assert seen == set(QUESTION_KINDS)


def test_questions_are_the_same_each_time_and_fit_the_model():
    scene = render(0, 5, objects=4, coloured=True)
    assert ask_questions(scene) == ask_questions(render(0, 5, objects=4, coloured=True))
    for q in ask_questions(scene):
        assert len(encode_question(q.text)) + len(encode_question(q.answer)) + 2 <= QUESTION_LENGTH


def test_unclear_questions_are_not_asked():
    boxes = np.array([[0.1, 0.1, 0.3, 0.3], [0.12, 0.6, 0.32, 0.8]])  # nearly the same column
    texts = [q.text for q in questions_about([0, 1], [2, 2], boxes)]
    first = SCENE_CLASSES[0]
    assert f"what is below the {first} ?" in texts
    assert not any("left of" in text or "right of" in text for text in texts)
    assert not any(text.startswith("which shape") for text in texts), "two objects have this colour"
    same = [q.kind for q in questions_about([0, 0], [1, 2], boxes)]
    assert "colour" not in same


def test_words_are_numbers_and_others_are_named():
    assert [QUESTION_WORDS[i] for i in encode_question("What COLOUR is the star?")] == [
        "what",
        "colour",
        "is",
        "the",
        "star",
        "?",
    ]
    with pytest.raises(InputError, match="'dog' in 'the dog'"):
        encode_question("the dog")
    with pytest.raises(InputError, match="coloured=True"):
        ask_questions(render(0, 1))
