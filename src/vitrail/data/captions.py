"""Captions of coloured scenes: an object described by shape, colour and place, as words and as numbers of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.scenes import Scene
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.data.textures import SCENE_COLOURS
from vitrail.errors import InputError

__all__ = [
    "CAPTION_LENGTH", "CAPTION_WORDS", "SCENE_PLACES", "Caption", "CaptionTokenizer", "describe_objects",
    "encode_captions",
]  # fmt: skip

SCENE_PLACES: tuple[str, ...] = (
    "at the top left", "at the top", "at the top right",
    "at the left", "in the centre", "at the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip
"""Places of an object: the third of the image, row by row, that the centre of its box is in."""

TEMPLATES: tuple[str, ...] = ("{}", "a picture of {}", "there is {}")
"""What may stand around the description of an object."""

PAD, START, END = 0, 1, 2
CAPTION_WORDS: tuple[str, ...] = (
    "<pad>", "<start>", "<end>", "a", "picture", "of", "there", "is", "at", "in", "the", "object",
    "top", "bottom", "left", "right", "centre", *SCENE_COLOURS, *SCENE_CLASSES,
)  # fmt: skip
"""All words of captions, by number."""

CAPTION_LENGTH = 12
"""Numbers in an encoded caption, with start and end."""

_NUMBERS = {word: number for number, word in enumerate(CAPTION_WORDS)}


@dataclass(frozen=True)
class Caption:
    """A description of an object. What is None is not mentioned.

    Attributes:
        shape: Class of the object.
        colour: Index in ``SCENE_COLOURS``.
        place: Index in ``SCENE_PLACES``.
        template: Index in ``TEMPLATES``.

    Example:
        >>> str(Caption(shape=2, colour=0, place=1)), str(Caption(colour=4, template=1))
        ('a red star at the top', 'a picture of a blue object')
    """

    shape: int | None = None
    colour: int | None = None
    place: int | None = None
    template: int = 0

    def __str__(self) -> str:
        words = ["a"]
        words += [SCENE_COLOURS[self.colour]] if self.colour is not None else []
        words += [SCENE_CLASSES[self.shape] if self.shape is not None else "object"]
        words += [SCENE_PLACES[self.place]] if self.place is not None else []
        return TEMPLATES[self.template].format(" ".join(words))

    def matches(self, other: Caption) -> bool:
        """Whether it holds for an object whose complete description is the other one.

        Example:
            >>> Caption(shape=2).matches(Caption(2, 0, 1)), Caption(shape=2, colour=3).matches(Caption(2, 0, 1))
            (True, False)
        """
        pairs = ((self.shape, other.shape), (self.colour, other.colour), (self.place, other.place))
        return all(mine is None or mine == its for mine, its in pairs)


def describe_objects(scene: Scene) -> tuple[Caption, ...]:
    """Complete description of each object of a coloured scene, front to back.

    Raises:
        InputError: The scene is not coloured.

    Example:
        >>> from vitrail.data import render
        >>> [str(caption) for caption in describe_objects(render(0, 3, objects=2, coloured=True))]
        ['a blue house at the bottom', 'a green star in the centre']
    """
    if not scene.colours:
        raise InputError("the scene has random hues, which have no names: render it with coloured=True")
    places = object_places(scene.boxes, scene.image.shape[0])
    attributes = zip(scene.classes, scene.colours, places, strict=True)
    return tuple(Caption(shape, colour, int(place)) for shape, colour, place in attributes)


def object_places(boxes: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Index in ``SCENE_PLACES`` of each box, shape (objects,), given boxes of shape (objects, 4)."""
    thirds = np.minimum((boxes[:, :2] + boxes[:, 2:]) * 3 // (2 * size), 2)
    places: NDArray[np.int64] = thirds[:, 1] * 3 + thirds[:, 0]
    return places


def encode_captions(texts: Sequence[str]) -> NDArray[np.int64]:
    """Numbers of the words of each text, with start and end, padded to a common length.

    Args:
        texts: Texts of the words in ``CAPTION_WORDS``.

    Returns:
        Shape (texts, ``CAPTION_LENGTH``).

    Raises:
        InputError: A word is unknown, or a text is too long.

    Example:
        >>> encode_captions(["a red star"]).tolist()
        [[1, 3, 17, 25, 2, 0, 0, 0, 0, 0, 0, 0]]
    """
    rows = np.full((len(texts), CAPTION_LENGTH), PAD, np.int64)
    for row, text in zip(rows, texts, strict=True):
        words = text.lower().split()
        unknown = [word for word in words if word not in _NUMBERS]
        if unknown:
            raise InputError(
                f"{unknown[0]!r} in {text!r} is not a word of the captions: use {', '.join(CAPTION_WORDS[3:])}"
            )
        if len(words) > CAPTION_LENGTH - 2:
            raise InputError(f"{text!r} has {len(words)} words: use at most {CAPTION_LENGTH - 2}")
        row[: len(words) + 2] = [START, *(_NUMBERS[word] for word in words), END]
    return rows


class CaptionTokenizer:
    """The tokenizer of models that read captions of scenes, such as ``scenes-clip``.

    Example:
        >>> tokenizer = CaptionTokenizer()
        >>> tokenizer(["a red star"])[0, :5].tolist(), tokenizer.decode([17, 25])
        ([1, 3, 17, 25, 2], 'red star')
    """

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Numbers of the words, shape (texts, ``CAPTION_LENGTH``)."""
        return torch.from_numpy(encode_captions(texts))

    def decode(self, numbers: Sequence[int]) -> str:
        """The words of some numbers."""
        return " ".join(CAPTION_WORDS[number] for number in numbers)
