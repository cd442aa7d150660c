"""Recall: short texts whose last word repeats or adds up words of the text, with the words it comes from.

The words that decide the next word are known: the value of a key, the last or first mention, the next word of a list,
or the two numbers of a sum. Every prompt has a second candidate, the answer to another question about the same facts.
The same seed and index give the same prompts on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from vitrail.data.scenes import SPLIT_OFFSETS, scene_generator
from vitrail.data.textures import uniform_int
from vitrail.data.word_tokenizer import SPECIAL_WORDS, WordTokenizer, join_words
from vitrail.errors import InputError

__all__ = ["RECALL_TASKS", "RECALL_WORDS", "RecallPrompt", "draw_recall", "recall_tokenizer", "replace_source"]

NAMES = (
    "Anna", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jane", "Kim", "Leo", "Mia", "Nils", "Olga",
    "Paul",
)  # fmt: skip
OBJECTS = (
    "key", "lamp", "book", "coin", "cup", "bell", "rope", "drum", "boat", "kite", "ring", "comb", "fork", "vase",
    "mask", "doll", "flag", "harp", "sock", "tent", "wheel", "brush", "clock", "stone",
)  # fmt: skip
ROOMS = ("kitchen", "cellar", "attic", "garden", "hall", "shed", "tower", "office")
CITIES = ("Rome", "Oslo", "Lima", "Cairo", "Paris", "Delhi", "Quito", "Tokyo", "Berlin", "Nairobi", "Sydney", "Dublin")
NUMBERS = tuple(map(str, range(19)))
FILLERS = ("It is late .", "The sun is out .", "It is cold today .", "Nobody is here .")
_OTHERS = (
    "has", "the", "is", "in", "belongs", "to", "owns", "went", "Now", "First", "was", "List", "Continue", "gets",
    "coins", "All", ".", ":", "The",
)  # fmt: skip

_FILLER_WORDS = tuple(word for text in FILLERS for word in text.split())

RECALL_WORDS: tuple[str, ...] = tuple(
    dict.fromkeys((*SPECIAL_WORDS, *_OTHERS, *_FILLER_WORDS, *NAMES, *OBJECTS, *ROOMS, *CITIES, *NUMBERS))
)
"""All words of the prompts, by number."""

RECALL_LENGTH = 96
"""Maximum number of tokens of a prompt."""

FILLER_RATE = 0.3
"""Probability of a sentence without meaning after each fact."""

Words = list[str]


@dataclass(frozen=True)
class RecallPrompt:
    """A prompt whose next word is known, and where in the prompt this word comes from.

    Attributes:
        task: One of ``RECALL_TASKS``.
        words: The words of the prompt.
        answer: The right next word.
        source: Positions in ``words`` of the words that the answer comes from; two for sums.
        other: The second candidate: the answer to another question about the same facts.
        other_source: Positions of the words that the second candidate comes from.
        sentence: Number of the sentence of each word; the last one is the question.
    """

    task: str
    words: tuple[str, ...]
    answer: str
    source: tuple[int, ...]
    other: str
    other_source: tuple[int, ...]
    sentence: tuple[int, ...]

    @property
    def text(self) -> str:
        """The prompt as a text."""
        return join_words(self.words)


@dataclass(frozen=True)
class _Facts:
    """Sentences of facts, and two questions about them.

    Attributes:
        sentences: Words of each sentence.
        questions: Words of the two questions, of the same length.
        answers: Answers of both.
        sources: For each question, sentence and position in it of each word that the answer comes from.
    """

    sentences: list[Words]
    questions: tuple[Words, Words]
    answers: tuple[str, str]
    sources: tuple[list[tuple[int, int]], list[tuple[int, int]]]


def draw_recall(
    seed: int, index: int, *, task: str | None = None, split: str | None = None
) -> tuple[RecallPrompt, RecallPrompt]:
    """Draw two prompts with the same facts and different questions: the answer of one is the other's second candidate.

    Args:
        seed: Seed of a family of prompts, 0 or more.
        index: Index of the pair, 0 or more.
        task: One of ``RECALL_TASKS``; None to draw one.
        split: "train", "val" or "test": no two splits share an index. None counts all.

    Returns:
        The two prompts.

    Raises:
        InputError: The task or the split is unknown.

    Example:
        >>> first, second = draw_recall(0, 3, task="lookup")
        >>> first.words[first.source[0]] == first.answer == second.other
        True
    """
    if split is not None and split not in SPLIT_OFFSETS:
        raise InputError(f"unknown split {split!r}: use one of {', '.join(SPLIT_OFFSETS)}")
    if task is not None and task not in RECALL_TASKS:
        raise InputError(f"unknown task {task!r}: use one of {', '.join(RECALL_TASKS)}")
    rng = scene_generator(seed, index + SPLIT_OFFSETS.get(split or "", 0), 7)
    chosen = list(RECALL_TASKS)[uniform_int(rng, 0, len(RECALL_TASKS) - 1)] if task is None else task
    facts = RECALL_TASKS[chosen](rng)
    words: Words = []
    sentence: list[int] = []
    starts, count = [], 0
    for part in facts.sentences:
        starts.append(len(words))
        filler = FILLERS[uniform_int(rng, 0, len(FILLERS) - 1)].split() if rng.random() < FILLER_RATE else []
        for one in (part, filler):
            words += one
            sentence += [count] * len(one)
            count += bool(one)
    found = [tuple(starts[s] + position for s, position in places) for places in facts.sources]
    first, second = (
        RecallPrompt(
            chosen, (*words, *facts.questions[k]), facts.answers[k], found[k], facts.answers[1 - k], found[1 - k],
            (*sentence, *[count] * len(facts.questions[k])),
        )
        for k in range(2)
    )  # fmt: skip
    return first, second


def replace_source(prompt: RecallPrompt) -> RecallPrompt:
    """The prompt with another word as its source, and the answer that follows from it.

    A model whose answer changes accordingly uses the source. In a sum, the first of the two numbers is replaced.

    Example:
        >>> prompt = draw_recall(0, 3, task="sum")[0]
        >>> changed = replace_source(prompt)
        >>> int(changed.answer) - int(prompt.answer) in (1, -8), changed.source == prompt.source
        (True, True)
    """
    place = prompt.source[0]
    old = prompt.words[place]
    if prompt.task == "sum":
        new = str(int(old) % 9 + 1)
        answer = str(int(prompt.answer) - int(old) + int(new))
    else:
        kind = next(words for words in (OBJECTS, ROOMS, CITIES) if old in words)
        start = kind.index(old)
        new = answer = next(word for word in kind[start:] + kind[:start] if word not in prompt.words)
    words = (*prompt.words[:place], new, *prompt.words[place + 1 :])
    return replace(prompt, words=words, answer=answer)


def recall_tokenizer() -> WordTokenizer:
    """The tokenizer of the prompts and of the embedded model ``lm-recall``.

    Example:
        >>> recall_tokenizer().tokenize("Anna has the key.")
        ['Anna', 'has', 'the', 'key', '.']
    """
    return WordTokenizer(RECALL_WORDS, RECALL_LENGTH)


def _draw(rng: Generator, items: Sequence[str], count: int) -> Words:
    """Different items in random order."""
    return [items[int(i)] for i in np.argsort(rng.random(len(items)), kind="stable")[:count]]


def _lookup(rng: Generator) -> _Facts:
    """Key–value recall, with the value after its key or before it."""
    form, count = uniform_int(rng, 0, 2), uniform_int(rng, 2, 6)
    asked = [int(i) for i in np.argsort(rng.random(count), kind="stable")[:2]]
    if form == 1:
        keys, values = _draw(rng, OBJECTS, count), _draw(rng, ROOMS, count)
        sentences = [["The", k, "is", "in", "the", v, "."] for k, v in zip(keys, values, strict=True)]
        questions, place = [["The", keys[i], "is", "in", "the"] for i in asked], 5
    else:
        keys, values = _draw(rng, NAMES, count), _draw(rng, OBJECTS, count)
        pairs = zip(keys, values, strict=True)
        if form == 0:
            sentences, place = [[k, "has", "the", v, "."] for k, v in pairs], 3
        else:
            sentences, place = [["The", v, "belongs", "to", k, "."] for k, v in pairs], 1
        questions = [[keys[i], "has" if form == 0 else "owns", "the"] for i in asked]
    return _Facts(
        sentences, (questions[0], questions[1]), (values[asked[0]], values[asked[1]]),
        ([(asked[0], place)], [(asked[1], place)]),
    )  # fmt: skip


def _mention(rng: Generator) -> _Facts:
    """The last and the first of several mentions of the same name among those of other names."""
    count = uniform_int(rng, 3, 6)
    own = uniform_int(rng, 2, min(3, count))
    name, *others = _draw(rng, NAMES, 3)
    cities = _draw(rng, CITIES, count)
    places = sorted(int(i) for i in np.argsort(rng.random(count), kind="stable")[:own])
    who = [name if i in places else others[uniform_int(rng, 0, 1)] for i in range(count)]
    sentences = [[person, "went", "to", city, "."] for person, city in zip(who, cities, strict=True)]
    first, last = places[0], places[-1]
    return _Facts(
        sentences, (["Now", name, "is", "in"], ["First", name, "was", "in"]), (cities[last], cities[first]),
        ([(last, 3)], [(first, 3)]),
    )  # fmt: skip


def _copy(rng: Generator) -> _Facts:
    """The next word of a list, given some words from the middle of it."""
    count, given = uniform_int(rng, 5, 10), uniform_int(rng, 1, 3)
    items = _draw(rng, OBJECTS, count)
    starts = [int(i) for i in np.argsort(rng.random(count - given), kind="stable")[:2]]
    questions = [["Continue", ":", *items[s : s + given]] for s in starts]
    ends = [s + given for s in starts]
    return _Facts(
        [["List", ":", *items, "."]], (questions[0], questions[1]), (items[ends[0]], items[ends[1]]),
        ([(0, 2 + ends[0])], [(0, 2 + ends[1])]),
    )  # fmt: skip


def _sum(rng: Generator) -> _Facts:
    """The sum of the two numbers of one name; the numbers of other names are distractors."""
    people = _draw(rng, NAMES, uniform_int(rng, 2, 3))
    numbers = [uniform_int(rng, 1, 9) for _ in range(2 * len(people))]
    while len({a + b for a, b in zip(numbers[::2], numbers[1::2], strict=True)}) < len(people):
        numbers = [uniform_int(rng, 1, 9) for _ in range(2 * len(people))]
    order = [int(i) for i in np.argsort(rng.random(len(numbers)), kind="stable")]
    seen: set[int] = set()
    sentences: list[Words] = []
    sources: list[list[tuple[int, int]]] = [[] for _ in people]
    for which in order:
        person = which // 2
        verb = "gets" if person in seen else "has"
        seen.add(person)
        sources[person].append((len(sentences), 2))
        sentences.append([people[person], verb, str(numbers[which]), "coins", "."])
    totals = [str(a + b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    questions = [["All", "coins", person, "has", ":"] for person in people]
    return _Facts(sentences, (questions[0], questions[1]), (totals[0], totals[1]), (sources[0], sources[1]))


RECALL_TASKS: dict[str, Callable[[Generator], _Facts]] = {
    "lookup": _lookup,
    "mention": _mention,
    "copy": _copy,
    "sum": _sum,
}
"""Key–value recall, last or first mention, copying, and sums with distractors; each draws facts and two questions."""
