"""WordTokenizer: the outputs that Hugging Face's fast tokenizers have, and the way back to the text."""

from __future__ import annotations

import pytest
import torch

from vitrail.data.word_tokenizer import SPECIAL_WORDS, WordTokenizer
from vitrail.errors import InputError

TOKENIZER = WordTokenizer((*SPECIAL_WORDS, "Anna", "has", "the", "key", "lamp", ".", ":"), 16)
TEXT = "Anna has the key."


def test_tokens_have_the_characters_of_the_text():
    found = TOKENIZER(TEXT, return_offsets_mapping=True, return_special_tokens_mask=True)
    assert found["input_ids"] == [1, 3, 4, 5, 6, 8]
    assert found["special_tokens_mask"] == [1, 0, 0, 0, 0, 0]
    pieces = [TEXT[a:b] for a, b in found["offset_mapping"]]
    assert pieces == ["", "Anna", "has", "the", "key", "."]
    assert TOKENIZER.convert_ids_to_tokens(found["input_ids"]) == ["<start>", *pieces[1:]]
    assert TOKENIZER(TEXT, add_special_tokens=False)["input_ids"] == found["input_ids"][1:]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_masked_on_either_side(side):
    tokenizer = WordTokenizer(TOKENIZER.words)
    tokenizer.padding_side = side
    found = tokenizer([TEXT, "the lamp"], padding=True, return_tensors="pt")
    short = [1, 5, 7]
    expected = [0, 0, 0, *short] if side == "left" else [*short, 0, 0, 0]
    assert found["input_ids"].tolist() == [[1, 3, 4, 5, 6, 8], expected]
    assert torch.equal(found["attention_mask"], (found["input_ids"] != 0).long())


def test_decoding_gives_the_text_back():
    ids = TOKENIZER.encode(TEXT)
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == TEXT
    assert TOKENIZER.decode(torch.tensor(ids)) == f"<start> {TEXT}"
    assert TOKENIZER.batch_decode([[3, 4]]) == ["Anna has"]
    assert TOKENIZER.decode(6) == "key"
    assert TOKENIZER.convert_tokens_to_ids("key") == 6
    assert TOKENIZER(TEXT, truncation=True, max_length=3)["input_ids"] == [1, 3, 4]
    assert len(TOKENIZER) == TOKENIZER.vocab_size == len(TOKENIZER.get_vocab()) == 10


def test_errors_name_the_word_and_the_way_out():
    with pytest.raises(InputError, match="'Bob' is not a word of this model, which knows Anna, has"):
        TOKENIZER("Bob has the key.")
    with pytest.raises(InputError, match="pass padding=True"):
        TOKENIZER([TEXT, "the"], return_tensors="pt")
    with pytest.raises(InputError, match="the vocabulary starts with"):
        WordTokenizer(("Anna", "has", "the"))
