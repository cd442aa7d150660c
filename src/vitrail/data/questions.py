"""Questions about coloured scenes with their answers, the objects that decide them, and their words as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.data.scenes import Scene
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.data.textures import SCENE_COLOURS
from vitrail.errors import InputError

__all__ = [
    "QUESTION_KINDS", "QUESTION_LENGTH", "QUESTION_WORDS", "Question", "ask_questions", "encode_question",
    "questions_about",
]  # fmt: skip

QUESTION_KINDS = ("colour", "shape", "relation", "count", "list")
"""What is asked: the colour of a shape, the shape of a colour, the shape beside another one, how many, and all."""

PAD, IMAGE, START, END, UNKNOWN = 0, 1, 2, 3, 4
NUMBERS = ("one", "two", "three", "four", "five", "six")
RELATIONS = ("left of", "right of", "above", "below")
QUESTION_WORDS: tuple[str, ...] = (
    "<pad>", "<image>", "<start>", "<end>", "<unknown>", "?", ",", "what", "which", "colour", "shape", "shapes", "has",
    "is", "are", "there", "the", "how", "many", "in", "image", "left", "right", "of", "above", "below",
    *NUMBERS, *SCENE_COLOURS, *SCENE_CLASSES,
)  # fmt: skip
"""All words of questions and answers, by number."""

QUESTION_LENGTH = 20
"""Most words of a question with its answer, start and end included."""

#: Distance of two centres, as a share of the image, from which one is left of or above the other.
_MARGIN = 1 / 16
_WORD_NUMBERS = {word: number for number, word in enumerate(QUESTION_WORDS)}


@dataclass(frozen=True)
class Question:
    """A question about a scene with its ground truth.

    Attributes:
        kind: One of ``QUESTION_KINDS``.
        text: The question.
        answer: The answer, one word except for the kind "list".
        subject: Index of the object that the answer describes; None where it is about all objects.
        objects: Indices of all objects that decide the answer.
        words: Words of the question that decide the answer.
    """

    kind: str
    text: str
    answer: str
    subject: int | None
    objects: tuple[int, ...]
    words: tuple[str, ...]


def ask_questions(scene: Scene) -> tuple[Question, ...]:
    """All questions about a coloured scene that have exactly one answer, in a fixed order.

    Raises:
        InputError: The scene is not coloured.

    Example:
        >>> from vitrail.data import render
        >>> questions = ask_questions(render(0, 3, objects=2, coloured=True))
        >>> questions[0].text, questions[0].answer, questions[-1].answer
        ('which colour has the house ?', 'blue', 'green star , blue house')
    """
    if not scene.colours:
        raise InputError("the scene has random hues, which have no names: render it with coloured=True")
    return questions_about(scene.classes, scene.colours, scene.boxes / scene.image.shape[0])


def questions_about(classes: Sequence[int], colours: Sequence[int], boxes: NDArray[np.float64]) -> tuple[Question, ...]:
    """All questions about some objects that have exactly one answer.

    Args:
        classes: Shape of each object.
        colours: Colour of each object.
        boxes: x0, y0, x1, y1 of each object as shares of the image, shape (objects, 4).
    """
    shapes, hues = [SCENE_CLASSES[c] for c in classes], [SCENE_COLOURS[c] for c in colours]
    everything = tuple(range(len(shapes)))
    found = []
    for k, (shape, hue) in enumerate(zip(shapes, hues, strict=True)):
        if shapes.count(shape) == 1:
            found += [
                Question("colour", text.format(shape), hue, k, (k,), (shape,))
                for text in ("which colour has the {} ?", "what colour is the {} ?")
            ]
        if hues.count(hue) == 1:
            found += [
                Question("shape", text.format(hue), shape, k, (k,), (hue,))
                for text in ("which shape is {} ?", "what is {} ?")
            ]
    found += _relations(shapes, (boxes[:, :2] + boxes[:, 2:]) / 2)
    if len(shapes) <= len(NUMBERS):
        number = NUMBERS[len(shapes) - 1]
        found.append(Question("count", "how many shapes are there ?", number, None, everything, ("many",)))
    if len(shapes) <= 4:
        order = sorted(everything, key=lambda k: (boxes[k, 0] + boxes[k, 2], k))
        listed = " , ".join(f"{hues[k]} {shapes[k]}" for k in order)
        found.append(Question("list", "what is in the image ?", listed, None, everything, ("what", "image")))
    return tuple(found)


def _relations(shapes: Sequence[str], centres: NDArray[np.float64]) -> list[Question]:
    """Questions for the only object on one side of another one. An object that is nearly level makes them unclear."""
    found = []
    for k, shape in enumerate(shapes):
        if shapes.count(shape) > 1:
            continue
        for relation, (axis, sign) in zip(RELATIONS, ((0, -1), (0, 1), (1, -1), (1, 1)), strict=True):
            distance = sign * (centres[:, axis] - centres[k, axis])
            beside = [j for j in range(len(shapes)) if j != k and distance[j] > 0]
            clear = all(abs(distance[j]) > _MARGIN for j in range(len(shapes)) if j != k)
            if len(beside) == 1 and clear:
                words = (relation.split()[0], shape)
                text = f"what is {relation} the {shape} ?"
                found.append(Question("relation", text, shapes[beside[0]], beside[0], (beside[0], k), words))
    return found


def encode_question(text: str) -> list[int]:
    """Numbers of the words of a text, without start and end; upper case and punctuation without spaces are accepted.

    Example:
        >>> [QUESTION_WORDS[n] for n in encode_question("What colour is the kite?")]
        ['what', 'colour', 'is', 'the', 'kite', '?']
    """
    words = text.lower().replace("?", " ? ").replace(",", " , ").split()
    unknown = [word for word in words if word not in _WORD_NUMBERS]
    if unknown:
        known = ", ".join(QUESTION_WORDS[UNKNOWN + 1 :])
        raise InputError(f"{unknown[0]!r} in {text!r} is not a word of the questions: use {known}")
    return [_WORD_NUMBERS[word] for word in words]
