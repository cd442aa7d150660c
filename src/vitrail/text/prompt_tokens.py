"""Tokenize prompts of language models: texts, chats and tensors of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.targets.token_context import decoded_token, token_rows
from vitrail.text.tokens import EncodedText, TokenizerSettings, TokenWindow


@dataclass(frozen=True)
class EncodedPrompt:
    """A tokenized prompt.

    Attributes:
        encoded: Its text and tokens.
        ids: Numbers of the tokens.
        columns: Where each token stands in the result: that of the tensors that were passed, else 0, 1, 2, …
        width: Length of that axis for this prompt.
    """

    encoded: EncodedText
    ids: tuple[int, ...]
    columns: tuple[int, ...]
    width: int


def encode_prompts(inputs: Any, settings: TokenizerSettings | Any) -> list[EncodedPrompt]:
    """Tokenize a prompt or several.

    Args:
        inputs: A text, a chat (a list of messages with "role" and "content"), a list of these, or a dict with
            ``input_ids`` and, for padded rows, ``attention_mask``.
        settings: `TokenizerSettings`; for a dict, any object with the methods of a tokenizer.

    Raises:
        InputError: A prompt is empty or of another kind, or the tokenizer has no chat template.
    """
    tokenizer = getattr(settings, "tokenizer", settings)
    if isinstance(inputs, Mapping):
        return _of_tensors(inputs, tokenizer)
    single = isinstance(inputs, str) or is_chat(inputs)
    given = [inputs] if single else inputs
    if isinstance(given, Sequence) and given and all(isinstance(one, EncodedPrompt) for one in given):
        return list(given)
    if isinstance(given, Tensor):
        return _of_tensors({"input_ids": given}, tokenizer)
    if not isinstance(given, Sequence) or not given:
        raise InputError(
            f"a language model explains prompts, not a {type(inputs).__name__}: pass a text, a chat (a list of "
            "messages), a list of these, or a dict with input_ids"
        )
    return [_of_text(i, one, tokenizer) for i, one in enumerate(given)]


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages.

    Example:
        >>> is_chat([{"role": "user", "content": "Hello"}]), is_chat(["Hello"])
        (True, False)
    """
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(one, Mapping) and "role" in one and "content" in one for one in value)
    )


def _of_text(index: int, prompt: Any, tokenizer: Any) -> EncodedPrompt:
    chat = is_chat(prompt)
    if not chat and not isinstance(prompt, str):
        raise InputError(f"prompt {index} is a {type(prompt).__name__}: pass a text or a list of messages")
    text = _chat_text(prompt, tokenizer) if chat else prompt
    full = tokenizer(
        text, return_offsets_mapping=True, return_special_tokens_mask=True, add_special_tokens=not chat, verbose=False
    )
    ids = tuple(int(i) for i in full["input_ids"])
    special = special_ids(tokenizer)
    content = [not s and i not in special for s, i in zip(full["special_tokens_mask"], ids, strict=True)]
    if not any(content):
        raise InputError(f"prompt {index} is empty: pass a text with at least one word")
    spans = tuple((int(a), int(b)) for a, b in full["offset_mapping"])
    names = tuple(tokenizer.convert_ids_to_tokens(list(ids)))
    return _prompt(text, ids, names, spans, content, range(len(ids)), len(ids))


def _chat_text(messages: Any, tokenizer: Any) -> str:
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(
            f"{type(tokenizer).__name__} has no chat template, so a list of messages cannot be read: pass a text, or "
            "the tokenizer of a model that was trained on chats"
        )
    last = messages[-1]["role"]
    # A chat that ends with the model's own words goes on there; after those of the user, the model begins.
    ends = {"continue_final_message": True} if last == "assistant" else {"add_generation_prompt": True}
    return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **ends))


def _of_tensors(inputs: Mapping[str, Any], tokenizer: Any) -> list[EncodedPrompt]:
    ids = inputs.get("input_ids")
    if ids is None:
        raise InputError(
            f"the inputs have {', '.join(map(str, inputs))}, and a language model with a "
            "tokenizer needs input_ids: words are read from these"
        )
    ids = ids if isinstance(ids, Tensor) else torch.as_tensor(ids)
    ids = ids[None] if ids.dim() == 1 else ids
    mask = inputs.get("attention_mask")
    mask = None if mask is None else torch.as_tensor(mask)
    # A mask for each pair of tokens names no padding.
    mask = None if mask is None or mask.numel() != ids.numel() else mask.reshape(ids.shape)
    special = special_ids(tokenizer)
    found = []
    for i, row in enumerate(token_rows(ids, mask)):
        content = [index not in special for index in row.ids]
        if not any(content):
            raise InputError(f"prompt {i} is empty: all of its tokens are special ones or padding")
        pieces = [_piece(tokenizer, row.ids[max(i - 1, 0) : i], row.ids[i]) for i in range(len(row.ids))]
        spans, at = [], 0
        for piece in pieces:
            spans.append((at, at + len(piece)))
            at += len(piece)
        found.append(
            _prompt("".join(pieces), row.ids, tuple(pieces), tuple(spans), content, row.columns, int(ids.shape[1]))
        )
    return found


def with_continuation(prompt: EncodedPrompt, ids: Sequence[int], tokenizer: Any) -> EncodedPrompt:
    """The prompt with generated tokens after it, as one text."""
    start = len(prompt.encoded.text)
    pieces = continuation_pieces(prompt.ids, ids, tokenizer)
    spans, at = [], start
    for i, piece in enumerate(pieces):
        end = at + len(piece)
        if not piece:  # bytes of a character that later tokens complete
            end = at + len(next((later for later in pieces[i:] if later), ""))
        spans.append((at, end))
        at += len(piece)
    special = special_ids(tokenizer)
    old = prompt.encoded
    every = (*prompt.ids, *(int(i) for i in ids))
    return _prompt(
        old.text + "".join(pieces), every, (*old.tokens, *tokenizer.convert_ids_to_tokens(list(ids))),
        (*old.spans, *spans), [*old.content, *(int(i) not in special for i in ids)], range(len(every)), len(every),
    )  # fmt: skip


def continuation_pieces(before: Sequence[int], ids: Sequence[int], tokenizer: Any) -> list[str]:
    """Characters that each generated token adds to a text; "" for a token that only begins a character."""

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    context = list(before[-4:])
    shown, pieces = decode(context), []
    for i in range(len(ids)):
        text = decode([*context, *ids[: i + 1]])
        whole = not text.endswith("�") and text.startswith(shown)
        pieces.append(text[len(shown) :] if whole else "")
        shown = text if whole else shown
    return pieces


def _prompt(
    text: str, ids: tuple[int, ...], names: tuple[str, ...], spans: tuple[tuple[int, int], ...], content: list[bool],
    columns: Sequence[int], width: int,
) -> EncodedPrompt:  # fmt: skip
    window = TokenWindow(0, {}, list(range(len(ids))))
    encoded = EncodedText(text, names, spans, tuple(content), (window,))
    return EncodedPrompt(encoded, ids, tuple(columns), width)


def _piece(tokenizer: Any, before: Sequence[int], index: int) -> str:
    """Characters that a token adds to a text; some tokenizers put a space between two tokens, which neither has."""
    alone = decoded_token(tokenizer, index)
    if not before or alone.startswith(" "):
        return alone
    first, both = (
        str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)) for ids in ([*before], [*before, index])
    )
    added = both.removeprefix(first)
    return added if both.startswith(first) and added and "�" not in added else alone


def special_ids(tokenizer: Any) -> set[int]:
    """Ids of special tokens, those that were added as such included; the one for unknown words stands for a word."""
    found = set(getattr(tokenizer, "all_special_ids", ()) or ())
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    found |= {index for index, one in added.items() if getattr(one, "special", False)}
    return found - {getattr(tokenizer, "unk_token_id", None)}
