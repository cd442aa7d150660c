"""Prompts given as tensors: the words of tokenizers that put spaces between tokens, and special tokens."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402

from vitrail.text.prompt_tokens import encode_prompts  # noqa: E402
from vitrail.text.tokens import TokenizerSettings  # noqa: E402

WORDS = ("[PAD]", "[UNK]", "what", "colour", "is", "the", "kite", "play", "##ing", "?", "<image>")
UNKNOWN = {"unk_token": "[UNK]"}


def wordpieces():
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    inner = Tokenizer(models.WordPiece(vocabulary, **UNKNOWN))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    inner.add_special_tokens([AddedToken("<image>", special=True)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **UNKNOWN)


def test_words_of_tensors_are_those_of_the_text():
    """Neither of two word pieces has the space between them, and a continued word has none."""
    ids = [WORDS.index(word) for word in ("<image>", "what", "is", "play", "##ing", "the", "kite")]
    (prompt,) = encode_prompts({"input_ids": torch.tensor([ids])}, TokenizerSettings(wordpieces()))
    text = prompt.encoded.text
    assert text.removeprefix("<image>").split() == ["what", "is", "playing", "the", "kite"]
    shown = [
        text[a:b].strip()
        for (a, b), content in zip(prompt.encoded.spans, prompt.encoded.content, strict=True)
        if content
    ]
    assert shown == ["what", "is", "play", "ing", "the", "kite"], "a token that was added as special is no word"


def bytes_of(text):
    """A tokenizer with a token for each byte, as rare characters have in any vocabulary."""
    inner = Tokenizer(models.BPE({one: i for i, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    return tokenizer, tokenizer(text)["input_ids"]


def test_characters_of_several_tokens_are_put_together():
    tokenizer, ids = bytes_of("in 東京 😀")
    (prompt,) = encode_prompts({"input_ids": torch.tensor([ids])}, tokenizer)
    assert prompt.encoded.text == "in 東京 😀"
    assert prompt.encoded.spans == ((0, 1), (1, 2), (2, 3), *[(3, 4)] * 3, *[(4, 5)] * 3, (5, 6), *[(6, 7)] * 4)
    (cut,) = encode_prompts({"input_ids": torch.tensor([ids[:5]])}, tokenizer)  # two of the three bytes
    assert len(set(cut.encoded.spans)) == 5


def test_a_space_that_a_tokenizer_adds_is_not_counted_twice():
    """Some tokenizers put a space in front of every text; a continuation that begins with one has it already."""
    from tokenizers import normalizers

    from vitrail.targets.token_context import encoded_answer, token_index

    names = ["<unk>", "▁", "▁▁", "▁Paris", "▁is", "Paris", "▁because"]
    inner = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")  # noqa: S106
    whole = tokenizer("is Paris because")["input_ids"]
    assert [names[i] for i in tokenizer(" Paris because")["input_ids"]] == ["▁", "▁Paris", "▁because"]
    assert list(encoded_answer(" Paris because", tokenizer)) == whole[1:]
    assert list(encoded_answer("Paris because", tokenizer)) == whole[1:]
    assert token_index(" Paris", tokenizer) == names.index("▁Paris")
