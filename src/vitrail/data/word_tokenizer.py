"""WordTokenizer: a tokenizer of whole words with the interface of Hugging Face's fast tokenizers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from vitrail.errors import InputError

__all__ = ["SPECIAL_WORDS", "WordTokenizer"]

SPECIAL_WORDS: tuple[str, ...] = ("<pad>", "<start>", "<end>")
"""Padding, start and end of a text: the first words of every vocabulary."""

_WORD = re.compile(r"<\w+>|\w+|[^\w\s]")


class WordTokenizer:
    """Splits texts into words and punctuation, of which it knows a fixed list.

    It has the parts of the interface of Hugging Face's fast tokenizers that `vitrail.explain` uses: tokens with their
    characters, special tokens, padding on either side, tensors, and the way back to a text.

    Args:
        words: The vocabulary by number; the first three words are padding, start and end of a text.
        length: Maximum number of tokens of the model.

    Example:
        >>> tokenizer = WordTokenizer((*SPECIAL_WORDS, "Anna", "has", "the", "key", "."))
        >>> tokenizer("Anna has the key.")["input_ids"], tokenizer.decode([3, 4, 5, 6, 7])
        ([1, 3, 4, 5, 6, 7], 'Anna has the key.')
    """

    is_fast = True
    chat_template = None
    pad_token, bos_token, eos_token = SPECIAL_WORDS
    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2
    all_special_ids, all_special_tokens = (0, 1, 2), SPECIAL_WORDS

    def __init__(self, words: Sequence[str], length: int = 96) -> None:
        if tuple(words[:3]) != SPECIAL_WORDS:
            raise InputError(f"the vocabulary starts with {list(words[:3])}, expected {list(SPECIAL_WORDS)}")
        self.words, self.model_max_length, self.padding_side = tuple(words), length, "left"
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @property
    def vocab_size(self) -> int:
        """Number of words."""
        return len(self.words)

    def get_vocab(self) -> dict[str, int]:
        """Number of each word."""
        return dict(self._numbers)

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        padding: bool | str = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: str | None = None,
        return_offsets_mapping: bool = False,
        return_special_tokens_mask: bool = False,
        return_attention_mask: bool = True,
        **_: Any,
    ) -> dict[str, Any]:
        """Tokenize one text or several.

        Args:
            text: A text, or a list of texts.
            add_special_tokens: Whether a text begins with the start word.
            padding: Whether to pad all texts to the longest one.
            truncation: Whether to keep the first ``max_length`` tokens only.
            max_length: Maximum number of tokens.
            return_tensors: "pt" for tensors.
            return_offsets_mapping: Whether to return the characters of each token.
            return_special_tokens_mask: Whether to return which tokens are special.
            return_attention_mask: Whether to return which tokens are no padding.

        Returns:
            ``input_ids`` and what was asked for: lists of one text, or of one list for each text.

        Raises:
            InputError: A word is not in the vocabulary, or texts of different lengths are to become one tensor.
        """
        texts = [text] if isinstance(text, str) else list(text)
        rows = [self._encode(one, add_special_tokens, max_length if truncation else None) for one in texts]
        longest = max(map(len, rows), default=0)
        if padding:
            rows = [self._pad(row, longest) for row in rows]
        elif return_tensors is not None and any(len(row) < longest for row in rows):
            raise InputError("texts of different lengths cannot become one tensor: pass padding=True")
        found: dict[str, Any] = {"input_ids": [[number for number, _ in row] for row in rows]}
        if return_attention_mask:
            found["attention_mask"] = [[int(number != self.pad_token_id) for number, _ in row] for row in rows]
        if return_special_tokens_mask:
            found["special_tokens_mask"] = [[int(number in self.all_special_ids) for number, _ in row] for row in rows]
        if return_offsets_mapping:
            found["offset_mapping"] = [[span for _, span in row] for row in rows]
        if return_tensors is not None:
            return {name: torch.tensor(values) for name, values in found.items()}
        return {name: values[0] for name, values in found.items()} if isinstance(text, str) else found

    def encode(self, text: str, *, add_special_tokens: bool = True, **_: Any) -> list[int]:
        """Numbers of the words of a text."""
        return [number for number, _ in self._encode(text, add_special_tokens, None)]

    def tokenize(self, text: str, **_: Any) -> list[str]:
        """Words of a text, without special ones."""
        return [self.words[number] for number, _ in self._encode(text, False, None)]

    def decode(self, numbers: Any, *, skip_special_tokens: bool = False, **_: Any) -> str:
        """The text of some numbers of words, given as a list, a tensor or one number."""
        chosen = torch.as_tensor(numbers).reshape(-1).tolist()
        kept = [self.words[n] for n in chosen if not (skip_special_tokens and n in self.all_special_ids)]
        return join_words(kept)

    def batch_decode(self, rows: Any, **options: Any) -> list[str]:
        """The texts of several lists of numbers."""
        return [self.decode(row, **options) for row in rows]

    def convert_ids_to_tokens(self, numbers: Any) -> Any:
        """Words of some numbers; of one number, one word."""
        return self.words[numbers] if isinstance(numbers, int) else [self.words[int(number)] for number in numbers]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Numbers of some words; of one word, one number."""
        return self._number(tokens) if isinstance(tokens, str) else [self._number(token) for token in tokens]

    def _number(self, word: str) -> int:
        if word not in self._numbers:
            raise InputError(f"{word!r} is not a word of this model, which knows {', '.join(self.words[3:])}")
        return self._numbers[word]

    def _encode(self, text: str, special: bool, limit: int | None) -> list[tuple[int, tuple[int, int]]]:
        if not isinstance(text, str):
            raise InputError(f"the text is a {type(text).__name__}, expected a string")
        row = [(self.bos_token_id, (0, 0))] if special else []
        row += [(self._number(match.group()), match.span()) for match in _WORD.finditer(text)]
        return row[:limit]

    def _pad(self, row: list[tuple[int, tuple[int, int]]], length: int) -> list[tuple[int, tuple[int, int]]]:
        padding = [(self.pad_token_id, (0, 0))] * (length - len(row))
        return padding + row if self.padding_side == "left" else row + padding


def join_words(words: Sequence[str]) -> str:
    """A text of some words: separated by spaces, punctuation without one before it.

    Example:
        >>> join_words(["List", ":", "key", "lamp", "."])
        'List: key lamp.'
    """
    return "".join(word if i == 0 or word in ".:,?" else f" {word}" for i, word in enumerate(words))
