"""The tokens of a call of a language model, and which positions its output has scores of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.errors import TargetError

#: Argument of Hugging Face decoders that says for which positions scores are computed.
KEPT_POSITIONS = "logits_to_keep"


@dataclass(frozen=True)
class TokenRow:
    """Tokens of one text of a call, without padding.

    Attributes:
        ids: Their numbers in the vocabulary.
        columns: Where each stands along the axis of the call's tensors.
    """

    ids: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TokenContext:
    """The texts of a call of a language model.

    Attributes:
        rows: Tokens of each text.
        length: Length of the axis of positions, padding included.
        kept: Positions whose scores the output has, counted from the end; None for all.
        tokenizer: The tokenizer, or None.
    """

    rows: tuple[TokenRow, ...]
    length: int
    kept: tuple[int, ...] | None = None
    tokenizer: Any = None

    @classmethod
    def of(cls, model_inputs: ModelInputs, tokenizer: Any = None) -> TokenContext | None:
        """The texts of a call, those of the decoder if it has two; None for a call without texts."""
        for ids_name, mask_name in (("decoder_input_ids", "decoder_attention_mask"), ("input_ids", "attention_mask")):
            ids = model_inputs.called(ids_name)
            if ids is not None and ids.dim() == 2:
                kept = model_inputs.kwargs.get(KEPT_POSITIONS)
                rows = token_rows(ids, model_inputs.called(mask_name))
                if type(kept) is int and kept > 0:  # the last ones; 0 is all
                    kept = list(range(-kept, 0))
                return cls(rows, int(ids.shape[1]), tuple(kept) if isinstance(kept, list) else None, tokenizer)
        return None

    @property
    def scored(self) -> int:
        """Number of positions that the output should have scores of."""
        return self.length if self.kept is None else len(self.kept)

    def select(self, images: Sequence[int]) -> TokenContext:
        """Some of the texts."""
        return replace(self, rows=tuple(self.rows[i] for i in images))

    def score_index(self, column: int) -> int:
        """Index of a position among those that the output has scores of.

        Raises:
            TargetError: The output has no scores of it.
        """
        if self.kept is None:
            return column
        if column - self.length not in self.kept:
            raise TargetError(
                f"the output has no scores of position {column}: leave {KEPT_POSITIONS} out of the inputs"
            )
        return self.kept.index(column - self.length)

    def decode(self, index: int) -> str:
        """Characters of a token; its number where the tokenizer is unknown."""
        return f"token {index}" if self.tokenizer is None else decoded_token(self.tokenizer, index)


def token_rows(ids: Tensor, mask: Tensor | None = None) -> tuple[TokenRow, ...]:
    """Tokens of each row without padding, by the attention mask.

    Example:
        >>> import torch
        >>> token_rows(torch.tensor([[0, 7, 8]]), torch.tensor([[0, 1, 1]]))
        (TokenRow(ids=(7, 8), columns=(1, 2)),)
    """
    found = []
    for i, row in enumerate(ids.tolist()):
        valid = [True] * len(row) if mask is None or mask.shape != ids.shape else mask[i].bool().tolist()
        columns = tuple(j for j, here in enumerate(valid) if here)
        found.append(TokenRow(tuple(row[j] for j in columns), columns))
    return tuple(found)


def decoded_token(tokenizer: Any, index: int) -> str:
    """Characters of one token, with the space before it; its name in the vocabulary where it has none."""
    name = tokenizer.convert_ids_to_tokens(index)
    text = str(tokenizer.decode([index], clean_up_tokenization_spaces=False))
    if isinstance(name, str) and name.startswith("▁") and not text.startswith(" "):
        text = f" {text}"
    return text if text and "�" not in text else str(name)


def token_index(text: str, tokenizer: Any) -> int:
    """The number of the token that a text is.

    Raises:
        TargetError: The text is several tokens, or not in the vocabulary.
    """
    ids = encoded_answer(text, tokenizer)
    if len(ids) == 1:
        return ids[0]
    vocabulary = tokenizer.get_vocab()
    for name in (text, text.replace(" ", "▁"), text.replace(" ", "Ġ")):
        if name in vocabulary:
            return int(vocabulary[name])
    listed = ", ".join(f"{decoded_token(tokenizer, i)!r} (id {i})" for i in ids)
    raise TargetError(
        f"{text!r} is {len(ids)} tokens: {listed}. A target token is one of them, by its text or id; "
        f"targets.answer({text!r}) explains all of them"
    )


def encoded_answer(text: str, tokenizer: Any) -> tuple[int, ...]:
    """The tokens of a text that follows another one, without special tokens.

    Raises:
        TargetError: The text is empty, or a part of it is not in the vocabulary.
    """
    ids = tuple(int(i) for i in tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    if not ids:
        raise TargetError(f"{text!r} has no tokens: give a word")
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is not None and unknown in ids and text != getattr(tokenizer, "unk_token", None):
        kind = type(tokenizer).__name__
        raise TargetError(
            f"{text!r} is not in the vocabulary of {kind}, which reads it as {tokenizer.unk_token!r}: give a text that "
            "the model can write, or the id of a token"
        )
    return ids


def tokenizer_of(given: Any) -> Any:
    """The tokenizer inside a processor or `vitrail.text.TokenizerSettings`, or the object itself."""
    return getattr(given, "tokenizer", given)
