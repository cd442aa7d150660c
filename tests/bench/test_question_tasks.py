"""Questions as a task: pairs with different subjects, their truth, and the model's answers."""

from __future__ import annotations

import pytest
import torch

from vitrail.bench.question_tasks import question_pair
from vitrail.bench.world_tasks import WORLD_TASKS
from vitrail.data.questions import QUESTION_WORDS
from vitrail.models import load


@pytest.mark.parametrize("kind", ["colour", "shape", "relation"])
def test_the_two_questions_have_different_subjects(kind):
    for index in range(3):
        pair = question_pair("val", index, (kind,))
        assert [q.kind for q in pair.questions] == [kind] * 2
        assert pair.questions[0].subject != pair.questions[1].subject


@pytest.mark.parametrize("task", ["questions", "relations", "question_words"])
def test_the_model_answers_and_the_truth_is_in_place(task):
    module = load("scenes-vlm").module
    batch = WORLD_TASKS[task](module, "test", range(6))
    assert batch.rows == 12
    assert batch.correct.float().mean() >= 0.75
    assert batch.masks.flatten(2).any(-1).all()
    if task == "question_words":
        assert (batch.masks <= batch.candidates).all()
        ids = batch.inputs["input_ids"][0, 257:]
        named = [QUESTION_WORDS[i] for i, there in zip(ids.tolist(), batch.masks[0, 0].tolist(), strict=False) if there]
        assert named == list(question_pair("test", 0, ("colour", "shape")).questions[0].words)
    else:
        inside = torch.einsum("bko,bohw->bkhw", batch.decides.double(), batch.objects.double()) > 0
        assert (batch.masks <= inside).all(), "the subject is among the objects that decide"
