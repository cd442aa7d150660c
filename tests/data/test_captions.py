"""Captions: what they say agrees with the rendered scene, and words become numbers."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data import SCENE_CLASSES, SCENE_COLOURS, Scenes, describe_objects, encode_captions, render
from vitrail.data.captions import CAPTION_LENGTH, CAPTION_WORDS, SCENE_PLACES, TEMPLATES, Caption
from vitrail.errors import InputError


@pytest.fixture(scope="module")
def scenes():
    return Scenes("val", 24, pairs=True, coloured=True)[:]


def test_the_named_colour_dominates_the_object(scenes):
    """Red, green and blue objects have most of their light in that channel."""
    channels = {"red": 0, "green": 1, "blue": 2}
    checked = 0
    for scene in scenes:
        for colour, mask in zip(scene.colours, scene.masks, strict=True):
            name = SCENE_COLOURS[colour]
            if name in channels:
                mean = scene.image[mask].astype(float).mean(0)
                assert mean.argmax() == channels[name], name
                checked += 1
    assert checked > 10


def test_places_are_thirds_of_the_image(scenes):
    for scene in scenes:
        for caption, (x0, y0, x1, y1) in zip(describe_objects(scene), scene.boxes, strict=True):
            words = SCENE_PLACES[caption.place].split()
            x, y = (x0 + x1) / 2 / 128, (y0 + y1) / 2 / 128
            assert ("left" in words, "right" in words) == (x < 1 / 3, x >= 2 / 3)
            assert ("top" in words, "bottom" in words) == (y < 1 / 3, y >= 2 / 3)


def test_shapes_do_not_depend_on_colours():
    plain, coloured = render(0, 5, objects=1), render(0, 5, objects=1, coloured=True)
    assert plain.classes == coloured.classes
    assert plain.colours == ()
    assert 0 <= coloured.colours[0] < len(SCENE_COLOURS)
    with pytest.raises(InputError, match="coloured=True"):
        describe_objects(plain)


def test_coloured_scenes_are_the_same_every_time():
    first, second = (Scenes("test", pairs=True, coloured=True)[7] for _ in range(2))
    assert np.array_equal(first.image, second.image)
    assert Scenes("test", pairs=True, coloured=True).id(7) == "test-0-128-pairs-coloured-000007"


def test_every_caption_is_encoded_and_can_be_read_back():
    for template in range(len(TEMPLATES)):
        for shape in (None, 3):
            for place in (None, *range(len(SCENE_PLACES))):
                text = str(Caption(shape, 2, place, template))
                (row,) = encode_captions([text])
                assert len(row) == CAPTION_LENGTH
                assert " ".join(CAPTION_WORDS[n] for n in row if n > 2) == text
                assert (row[0], row[row > 0][-1]) == (1, 2)


def test_a_caption_matches_what_it_mentions():
    star = Caption(SCENE_CLASSES.index("star"), 0, 4)
    assert Caption(colour=0).matches(star)
    assert Caption(star.shape, place=4).matches(star)
    assert not Caption(star.shape, place=3).matches(star)


def test_unknown_and_too_many_words_are_named():
    with pytest.raises(InputError, match="'dog' in 'a dog' is not a word"):
        encode_captions(["a dog"])
    with pytest.raises(InputError, match="has 11 words: use at most 10"):
        encode_captions([" ".join(["a"] * 11)])
