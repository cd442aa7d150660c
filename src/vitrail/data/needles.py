"""Needles: prompts for language models that ask for one of several facts, with the passage of the fact.

"Anna has the book. Ben has the key. Anna has the": the next word is "book", and it comes from the first sentence. The
same seed and index give the same prompt on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from vitrail.data.scenes import scene_generator
from vitrail.data.textures import uniform_int
from vitrail.errors import InputError

__all__ = ["NEEDLE_ENDINGS", "NEEDLE_TEMPLATES", "NeedlePrompt", "NeedleTemplate", "draw_needle"]

Span = tuple[int, int]

NAMES = (
    "Anna", "Ben", "Carol", "David", "Emma", "Frank", "Grace", "Henry", "Julia", "Karl", "Laura", "Martin", "Nina",
    "Oscar", "Peter", "Rosa", "Simon", "Tom", "Vera", "Walter",
)  # fmt: skip
THINGS = (
    "book", "key", "lamp", "cup", "hat", "ring", "phone", "bag", "ball", "coat", "map", "chair", "knife", "bottle",
    "camera", "guitar", "clock", "box", "mirror", "bell",
)  # fmt: skip
CITIES = (
    "Paris", "London", "Berlin", "Rome", "Madrid", "Tokyo", "Vienna", "Moscow", "Boston", "Chicago", "Cairo", "Dublin",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "pink", "orange", "grey")
FOODS = ("bread", "rice", "cheese", "soup", "fish", "cake", "fruit", "pasta", "meat", "honey", "chocolate", "salad")


@dataclass(frozen=True)
class NeedleTemplate:
    """Facts of one kind.

    Attributes:
        start: The sentence of a fact up to its value, with a place for the key.
        question: A question for the value of a key.
        keys: What the facts are about.
        values: Their values; without any, numbers of four digits.
    """

    start: str
    question: str
    keys: tuple[str, ...]
    values: tuple[str, ...] = ()


NEEDLE_TEMPLATES: dict[str, NeedleTemplate] = {
    "thing": NeedleTemplate("{} has the", "What does {} have?", NAMES, THINGS),
    "city": NeedleTemplate("{} lives in", "Where does {} live?", NAMES, CITIES),
    "colour": NeedleTemplate("The {} is", "Which colour is the {}?", THINGS, COLOURS),
    "food": NeedleTemplate("{} likes", "What does {} like?", NAMES, FOODS),
    "code": NeedleTemplate("The code of {} is", "What is the code of {}?", NAMES),
}
"""Kinds of facts by name."""

NEEDLE_ENDINGS: tuple[str, ...] = ("{start}", "As I said, {said}", "Question: {question} Answer: {start}")
"""What follows the facts: the start of one of them, alone, after a few words, or after a question."""


@dataclass(frozen=True)
class NeedlePrompt:
    """A prompt whose next word is one of the facts in it.

    Attributes:
        template: One of ``NEEDLE_TEMPLATES``.
        text: The prompt.
        answer: The right next word.
        source: First character and end of the answer in the text.
        other: The second candidate: the value of another key.
        other_source: First character and end of the second candidate in the text.
        sentences: First character and end of each fact; the ending follows the last one.
        ending: Number of the ending in ``NEEDLE_ENDINGS``.
    """

    template: str
    text: str
    answer: str
    source: Span
    other: str
    other_source: Span
    sentences: tuple[Span, ...]
    ending: int


def draw_needle(seed: int, index: int, *, template: str | None = None) -> NeedlePrompt:
    """Draw a prompt of two to six facts that ends with the start of one of them.

    The endings of ``NEEDLE_ENDINGS`` take turns.

    Args:
        seed: Seed of a family of prompts, 0 or more.
        index: Index of the prompt, 0 or more.
        template: One of ``NEEDLE_TEMPLATES``; by default each in turn.

    Raises:
        InputError: The template is unknown.

    Example:
        >>> prompt = draw_needle(0, 0)
        >>> prompt.text[slice(*prompt.source)] == prompt.answer
        True
    """
    chosen = list(NEEDLE_TEMPLATES)[index % len(NEEDLE_TEMPLATES)] if template is None else template
    if chosen not in NEEDLE_TEMPLATES:
        raise InputError(f"unknown template {chosen!r}: use one of {', '.join(NEEDLE_TEMPLATES)}")
    kind = NEEDLE_TEMPLATES[chosen]
    rng = scene_generator(seed, index, 8)
    count = uniform_int(rng, 2, 6)
    keys = _draw(rng, kind.keys, count)
    values = _draw(rng, kind.values, count) if kind.values else _codes(rng, count)
    asked, other = (int(i) for i in np.argsort(rng.random(count), kind="stable")[:2])
    text, sentences, sources = "", [], []
    for key, value in zip(keys, values, strict=True):
        sentence = f"{kind.start.format(key)} {value}."
        place = len(text) + len(sentence) - len(value) - 1
        sources.append((place, place + len(value)))
        sentences.append((len(text), len(text) + len(sentence)))
        text += sentence + " "
    start, ending = kind.start.format(keys[asked]), index // len(NEEDLE_TEMPLATES) % len(NEEDLE_ENDINGS)
    said = "the" + start[3:] if start.startswith("The ") else start
    text += NEEDLE_ENDINGS[ending].format(start=start, said=said, question=kind.question.format(keys[asked]))
    return NeedlePrompt(
        chosen, text, values[asked], sources[asked], values[other], sources[other], tuple(sentences), ending
    )


def _draw(rng: Generator, items: tuple[str, ...], count: int) -> list[str]:
    """Different items in random order."""
    return [items[int(i)] for i in np.argsort(rng.random(len(items)), kind="stable")[:count]]


def _codes(rng: Generator, count: int) -> list[str]:
    """Numbers of four digits whose first digits differ."""
    first = [1 + int(i) for i in np.argsort(rng.random(9), kind="stable")[:count]]
    return [f"{digit}{uniform_int(rng, 0, 999):03d}" for digit in first]
