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
