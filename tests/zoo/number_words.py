"""A tokenizer whose words are numbers, "w7" is token 7, and the score of a token that is explained by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class NumberWords:
    """A fast tokenizer of 60 words.

    Args:
        special: Tokens that are no words.
    """

    is_fast = True
    unk_token_id = None
    pad_token_id, eos_token_id = 1, 2

    def __init__(self, special: Sequence[int] = (0, 1, 2)) -> None:
        self.all_special_ids = tuple(special)

    def __len__(self) -> int:
        return 60

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        return f"▁w{ids}" if isinstance(ids, int) else [f"▁w{i}" for i in ids]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(f"w{i}" for i in ids)

    def get_vocab(self) -> dict[str, int]:
        return {f"▁w{i}": i for i in range(60)}

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        words = text.split()
        ends = [sum(len(w) + 1 for w in words[: i + 1]) - 1 for i in range(len(words))]
        spans = [(end - len(w), end) for w, end in zip(words, ends, strict=True)]
        ids = [int(word[1:]) for word in words]
        return {"input_ids": ids, "offset_mapping": spans, "special_tokens_mask": [0] * len(ids)}


def log_odds(scores: torch.Tensor, index: int) -> torch.Tensor:
    """Logarithm of p / (1 − p) of one token, by its definition; scores have shape (b, vocabulary)."""
    p = scores.softmax(-1)[:, index]
    return p.log() - (1 - p).log()
