"""The processor of scenes with questions: tensors of a call, and the methods of its tokenizer."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from vitrail.data import QuestionProcessor, Scenes
from vitrail.data.question_processor import QuestionTokenizer
from vitrail.data.questions import IMAGE, PAD, START
from vitrail.errors import InputError


def test_words_come_back():
    tokenizer = QuestionTokenizer()
    ids = tokenizer("what is left of the bolt ?")["input_ids"]
    assert tokenizer.decode(ids[1:]) == "what is left of the bolt ?"
    assert ids[0] == START
    vocabulary = tokenizer.get_vocab()
    assert len(vocabulary) == len(tokenizer) == 50
    assert all(vocabulary[name] == i for i, name in enumerate(tokenizer.convert_ids_to_tokens(range(50))))


def test_the_tensors_of_a_call():
    scene = Scenes("test", objects=2, coloured=True)[0]
    photo = Image.fromarray(scene.image)
    given = QuestionProcessor()(
        images=[photo, photo.resize((64, 64))], text=["how many shapes are there?", "what is red?"]
    )
    assert given["input_ids"].shape == (2, 256 + 7)
    assert (given["input_ids"][:, :256] == IMAGE).all()
    assert given["attention_mask"].sum(1).tolist() == [263, 261]
    assert given["input_ids"][1, -2:].tolist() == [PAD, PAD]
    assert torch.equal(given["pixel_values"][0], scene.to_tensor())
    assert given["pixel_values"].shape == (2, 3, 128, 128)


def test_what_does_not_fit_is_named():
    photo = Image.new("RGB", (128, 128))
    with pytest.raises(InputError, match="1 images and 2 questions"):
        QuestionProcessor()(images=photo, text=["what is red?", "what is blue?"])
    with pytest.raises(InputError, match="return_tensors='np'"):
        QuestionProcessor()(images=photo, text="what is red?", return_tensors="np")
