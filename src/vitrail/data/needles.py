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

__all__ = ["NEEDLE_TEMPLATES", "NeedlePrompt", "draw_needle"]

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

NEEDLE_TEMPLATES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "thing": ("{key} has the {value}.", "{key} has the", NAMES, THINGS),
    "city": ("{key} lives in {value}.", "{key} lives in", NAMES, CITIES),
    "colour": ("The {key} is {value}.", "The {key} is", THINGS, COLOURS),
    "food": ("{key} likes {value}.", "{key} likes", NAMES, FOODS),
    "code": ("The code of {key} is {value}.", "The code of {key} is", NAMES, ()),
}
"""By name: sentence of a fact, question, keys and values. The values of codes are numbers of four digits."""


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
        sentences: First character and end of each fact; the question follows the last one.
    """

    template: str
    text: str
    answer: str
    source: Span
    other: str
    other_source: Span
    sentences: tuple[Span, ...]


def draw_needle(seed: int, index: int, *, template: str | None = None) -> NeedlePrompt:
    """Draw a prompt of two to six facts and a question about one of them.

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
    fact, question, keys, values = NEEDLE_TEMPLATES[chosen]
    rng = scene_generator(seed, index, 8)
    count = uniform_int(rng, 2, 6)
    chosen_keys = _draw(rng, keys, count)
    chosen_values = _draw(rng, values, count) if values else _codes(rng, count)
    asked, other = (int(i) for i in np.argsort(rng.random(count), kind="stable")[:2])
    text, sentences, sources = "", [], []
    for key, value in zip(chosen_keys, chosen_values, strict=True):
        sentence = fact.format(key=key, value=value)
        start = len(text) + sentence.rindex(value)
        sources.append((start, start + len(value)))
        sentences.append((len(text), len(text) + len(sentence)))
        text += sentence + " "
    return NeedlePrompt(
        chosen, text + question.format(key=chosen_keys[asked]), chosen_values[asked], sources[asked],
        chosen_values[other], sources[other], tuple(sentences),
    )  # fmt: skip


def _draw(rng: Generator, items: tuple[str, ...], count: int) -> list[str]:
    """Different items in random order."""
    return [items[int(i)] for i in np.argsort(rng.random(len(items)), kind="stable")[:count]]


def _codes(rng: Generator, count: int) -> list[str]:
    """Numbers of four digits whose first digits differ."""
    first = [1 + int(i) for i in np.argsort(rng.random(9), kind="stable")[:count]]
    return [f"{digit}{uniform_int(rng, 0, 999):03d}" for digit in first]
