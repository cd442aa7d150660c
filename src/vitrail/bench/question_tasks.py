"""Tasks of questions about scenes: two questions about one image, whose answers two different objects decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.question_processor import QuestionProcessor
from vitrail.data.questions import UNKNOWN, Question, ask_questions, encode_question
from vitrail.data.scenes import Scene, Scenes
from vitrail.targets.token_target import token

#: Scenes among which an example is searched, and the most objects of a scene.
_SEARCHED, _OBJECTS = 64, 4
_MARK = encode_question("?")[0]


@dataclass(frozen=True, eq=False)
class QuestionPair:
    """A scene with two questions that two different objects answer."""

    scene: Scene
    questions: tuple[Question, Question]


def question_pair(split: str, index: int, kinds: Sequence[str]) -> QuestionPair:
    """The first scene of a range with two such questions, both of one kind; deterministic.

    Args:
        split: "train", "val" or "test".
        index: Number of the example.
        kinds: Kinds of questions, in turn.
    """
    scenes = Scenes(split, 1 << 26, objects=(2, _OBJECTS), coloured=True)
    kind = kinds[index % len(kinds)]
    for number in range(index * _SEARCHED, (index + 1) * _SEARCHED):
        scene = scenes[number]
        own = [q for q in ask_questions(scene) if q.kind == kind]
        for second in own[1:]:
            if second.subject != own[0].subject:
                return QuestionPair(scene, (own[0], second))
    raise LookupError(f"none of {_SEARCHED} scenes has two questions of the kind {kind!r}")


@dataclass(frozen=True, eq=False)
class QuestionBatch:
    """Examples with the arguments of a model: all with their first question, then all with their second one.

    Attributes:
        inputs: Arguments of the model.
        answers: Numbers of the right answers, shape (b, 2).
        last: Position of the last word of each row, shape (2b,).
        subjects: Pixels of the object that each question is about, shape (b, 2, height, width).
        objects: Pixels of all objects, shape (b, 4, height, width); empty where there is none.
        decides: Which objects decide each answer, shape (b, 2, 4).
        words: Which words decide each answer, shape (b, 2, words), and ``candidates``, which words there are.
        candidates: See ``words``.
    """

    inputs: dict[str, Tensor]
    answers: Tensor
    last: Tensor
    subjects: Tensor
    objects: Tensor
    decides: Tensor
    words: Tensor
    candidates: Tensor


def question_batch(pairs: Sequence[QuestionPair]) -> QuestionBatch:
    """The arguments of a model and the ground truth for some examples."""
    from PIL import Image

    asked = [pair.questions[k] for k in (0, 1) for pair in pairs]
    images = [Image.fromarray(pair.scene.image) for pair in pairs]
    inputs = QuestionProcessor()(images=[*images, *images], text=[q.text for q in asked])
    answers = torch.tensor([encode_question(q.answer)[0] for q in asked]).view(2, -1).T
    objects = torch.zeros(len(pairs), _OBJECTS, *pairs[0].scene.image.shape[:2], dtype=torch.bool)
    decides = torch.zeros(len(pairs), 2, _OBJECTS, dtype=torch.bool)
    for i, pair in enumerate(pairs):
        objects[i, : len(pair.scene.masks)] = torch.from_numpy(np.array(pair.scene.masks))
        for k, question in enumerate(pair.questions):
            decides[i, k, list(question.objects)] = True
    subject = torch.tensor([[q.subject or 0 for q in pair.questions] for pair in pairs])
    subjects = objects[torch.arange(len(pairs))[:, None], subject]
    encoded = [encode_question(q.text) for q in asked]
    longest = max(map(len, encoded))
    numbers = torch.tensor([row + [0] * (longest - len(row)) for row in encoded])
    deciding = [{encode_question(word)[0] for word in q.words} for q in asked]
    words = torch.tensor([[n in own for n in row] for row, own in zip(numbers.tolist(), deciding, strict=True)])
    candidates = (numbers > UNKNOWN) & (numbers != _MARK)
    last = inputs["attention_mask"].sum(1) - 1
    pair_of = as_pairs(words), as_pairs(candidates)
    return QuestionBatch(inputs, answers, last, subjects, objects, decides, *pair_of)


def as_pairs(rows: Tensor) -> Tensor:
    """Rows of first and second questions, shape (2b, …), as (b, 2, …)."""
    return torch.stack(rows.chunk(2), 1)


def answer_targets(batch: QuestionBatch) -> list[Any]:
    """The right answer of each row as a target."""
    return [token(number, score="logit") for number in batch.answers.T.flatten().tolist()]


@torch.no_grad()
def answers_right(model: nn.Module, batch: QuestionBatch) -> Tensor:
    """Whether the model's first word is the right answer, shape (b, 2)."""
    device = next(model.parameters()).device
    logits = model(**{name: value.to(device) for name, value in batch.inputs.items()})["logits"].cpu()
    found = logits[torch.arange(len(logits)), batch.last].argmax(-1)
    return as_pairs(found) == batch.answers
