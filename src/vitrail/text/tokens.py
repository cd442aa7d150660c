"""Tokenize texts, split long ones into windows, and combine the scores of tokens into scores of words."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.data.recall import recall_tokenizer
from vitrail.errors import InputError, OptionError, require

Span = tuple[int, int]
REDUCTIONS = ("sum", "max")
_NO_LIMIT = 1_000_000  # tokenizers without a length limit report a model_max_length above this
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class TokenizerSettings:
    """A tokenizer, how the scores of its tokens become scores of words, and how long texts are split into windows.

    Attributes:
        tokenizer: A fast Hugging Face tokenizer. Slow ones do not report the characters of each token.
        reduction: Score of a word from the scores of its tokens: their "sum", or their "max" as in the released code
            of the published experiments on BERT.
        window: Maximum number of tokens in one forward pass, special ones included; the model's limit by default.
        overlap: Number of tokens that neighbouring windows of a long text share; a quarter of a window by default.
        all_windows: Whether a text longer than one window is read to its end, window by window. If False, it is
            truncated after the first window and the remaining words have no score, as in the published experiments on
            movie reviews.
    """

    tokenizer: Any
    reduction: str = "sum"
    window: int | None = None
    overlap: int | None = None
    all_windows: bool = True

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise OptionError(f"reduction={self.reduction!r} is not one of {', '.join(map(repr, REDUCTIONS))}")
        if self.tokenizer is None or isinstance(self.tokenizer, str):
            name = "…" if self.tokenizer is None else repr(self.tokenizer)
            raise InputError(
                f"tokenizer={self.tokenizer!r} is no tokenizer: pass transformers.AutoTokenizer.from_pretrained({name})"
            )
        if not getattr(self.tokenizer, "is_fast", False):
            kind = type(self.tokenizer).__name__
            raise InputError(
                f"{kind} does not report the characters of each token, which are needed to score words: use the fast "
                "tokenizer of the model, as transformers.AutoTokenizer returns it"
            )


@dataclass(frozen=True)
class TokenWindow:
    """A part of a text that fits into one forward pass.

    Attributes:
        text: Index of the text.
        inputs: The model's inputs by name, one number for each token.
        positions: Index of each token among all tokens of the text; -1 for special tokens.
    """

    text: int
    inputs: dict[str, list[int]]
    positions: list[int]

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class EncodedText:
    """A tokenized text.

    Attributes:
        text: The text.
        tokens: All its tokens, special ones included.
        spans: Start and end (exclusive) of each token in characters; equal for tokens without characters.
        content: Which tokens are not special.
        windows: The windows the text is split into; one unless the text is long.
    """

    text: str
    tokens: tuple[str, ...]
    spans: tuple[Span, ...]
    content: tuple[bool, ...]
    windows: tuple[TokenWindow, ...]


def encode_texts(texts: Sequence[str], settings: TokenizerSettings, model: nn.Module) -> list[EncodedText]:
    """Tokenize texts and split those that are longer than the model's limit into windows.

    Raises:
        InputError: A text has no words, or the overlap leaves no room in a window.
    """
    encoded = []
    limit = max_tokens(model, settings)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {index} is a {type(text).__name__}: pass a string or a list of strings")
        encoded.append(_encode_text(index, text, settings, model, limit))
    return encoded


def _encode_text(index: int, text: str, settings: TokenizerSettings, model: nn.Module, limit: int) -> EncodedText:
    full = _tokenize(settings, text)
    special = full["special_tokens_mask"]
    content = tuple(not s for s in special)
    if not any(content):
        kind = type(settings.tokenizer).__name__
        raise InputError(f"text {index} has no words that {kind} knows: {text[:40]!r}; pass a text with words")
    content_positions = [i for i, is_content in enumerate(content) if is_content]
    if len(special) <= limit:
        parts = [full]
    else:
        room = limit - sum(special)
        overlap = room // 4 if settings.overlap is None else settings.overlap
        if not 0 <= overlap < room:
            raise InputError(
                f"overlap={overlap} is too large for windows of {limit} tokens, {sum(special)} of them special: use "
                f"an overlap from 0 to {max(room - 1, 0)}"
            )
        parts = _split(settings, text, limit, overlap)[: None if settings.all_windows else 1]
    windows, start = [], 0
    for part in parts:
        is_content = [not s for s in part["special_tokens_mask"]]
        remaining = iter(content_positions[start : start + sum(is_content)])
        positions = [next(remaining) if here else -1 for here in is_content]
        if any(part["input_ids"][i] != full["input_ids"][p] for i, p in enumerate(positions) if p >= 0):
            raise InputError(
                f"the windows of text {index} do not match its tokens: shorten the text, or pass window=… to "
                "TokenizerSettings"
            )
        windows.append(TokenWindow(index, {k: part[k] for k in _input_names(model) if k in part}, positions))
        if len(parts) > 1:
            start += sum(is_content) - overlap
    tokens = tuple(settings.tokenizer.convert_ids_to_tokens(full["input_ids"]))
    spans = tuple((int(a), int(b)) for a, b in full["offset_mapping"])
    return EncodedText(text, tokens, spans, content, tuple(windows))


def _tokenize(settings: TokenizerSettings, text: str, **options: Any) -> dict[str, Any]:
    outputs = {"return_special_tokens_mask": True, "return_offsets_mapping": True, "return_attention_mask": True}
    return dict(settings.tokenizer(text, **outputs, add_special_tokens=True, verbose=False, **options))


def _split(settings: TokenizerSettings, text: str, limit: int, overlap: int) -> list[dict[str, Any]]:
    options = {"truncation": True, "max_length": limit, "stride": overlap, "return_overflowing_tokens": True}
    split = _tokenize(settings, text, **options)
    return [{k: v[i] for k, v in split.items()} for i in range(len(split["input_ids"]))]


def _input_names(model: nn.Module) -> list[str]:
    """Outputs of a tokenizer that the model's forward accepts."""
    parameters = signature(model.forward).parameters
    return [name for name in ("input_ids", "token_type_ids", "attention_mask") if name in parameters]


def max_tokens(model: nn.Module, settings: TokenizerSettings) -> int:
    """Maximum number of tokens in one forward pass: ``settings.window``, or the limit of model and tokenizer.

    Raises:
        OptionError: ``settings.window`` is above the limit.
        InputError: The limit is unknown.

    Example:
        >>> from types import SimpleNamespace
        >>> model = nn.Module()
        >>> model.config = SimpleNamespace(max_position_embeddings=512)
        >>> max_tokens(model, TokenizerSettings(SimpleNamespace(is_fast=True, model_max_length=10**30)))
        512
    """
    config: Any = getattr(model, "config", None)
    limits = [int(getattr(settings.tokenizer, "model_max_length", _NO_LIMIT) or _NO_LIMIT)]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        # RoBERTa counts positions from padding_idx + 1, so the ones below cannot be used.
        for name, module in model.named_modules():
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                positions -= 0 if module.padding_idx is None else module.padding_idx + 1
                break
        limits.append(positions)
    limit = min(limits)
    if settings.window is not None:
        if settings.window > limit:
            raise OptionError(f"window={settings.window} is more than the {limit} tokens the model allows")
        limit = settings.window
    if limit >= _NO_LIMIT:
        raise InputError("the maximum number of tokens is unknown: pass TokenizerSettings(tokenizer, window=…)")
    return limit


def pad_windows(windows: Sequence[TokenWindow], padding_id: int) -> dict[str, Tensor]:
    """Stack windows into a batch, padded on the right to the longest; padding is masked."""
    longest = max(map(len, windows))
    fill = {"input_ids": padding_id}
    rows = {
        name: [w.inputs[name] + [fill.get(name, 0)] * (longest - len(w)) for w in windows] for name in windows[0].inputs
    }
    if "attention_mask" not in rows and any(len(w) < longest for w in windows):
        raise InputError("the model takes no attention mask, so texts of different lengths need batch_size=1")
    return {name: torch.tensor(values, dtype=torch.long) for name, values in rows.items()}


def special_tokens(windows: Sequence[TokenWindow]) -> Tensor:
    """Which tokens of windows are special, padding included, shape (b, n)."""
    longest = max(map(len, windows))
    return torch.tensor([[p < 0 for p in w.positions] + [True] * (longest - len(w)) for w in windows])


def word_spans(text: str) -> tuple[Span, ...]:
    """Start and end (exclusive) of each word of a text, split at whitespace.

    Example:
        >>> word_spans("not  bad.")
        ((0, 3), (5, 9))
    """
    return tuple(match.span() for match in _WORD.finditer(text))


def word_scores(
    token_scores: Tensor, token_spans: Sequence[Span], words: Sequence[Span], reduction: str = "sum"
) -> Tensor:
    """Compute scores of words from scores of tokens, by the characters they share.

    A token that spans several words is divided among them by characters in a sum, and counts fully in each maximum.

    Args:
        token_scores: Scores of tokens, shape (K, T).
        token_spans: Characters of each token; tokens without characters belong to no word.
        words: Characters of each word, in order.
        reduction: "sum" or "max".

    Returns:
        Scores of words, shape (K, W); 0 for words without tokens.

    Example:
        >>> word_scores(torch.tensor([[1.0, 2.0, 4.0]]), [(0, 3), (3, 5), (6, 8)], [(0, 5), (6, 8)])
        tensor([[3., 4.]])
    """
    ends = [end for _, end in words]
    overlaps: list[tuple[int, int, float]] = []
    for token, (start, stop) in enumerate(token_spans):
        shared = []
        for word in range(bisect_right(ends, start), len(words)):
            if words[word][0] >= stop:
                break
            shared.append((word, min(stop, words[word][1]) - max(start, words[word][0])))
        total = sum(n for _, n in shared)
        overlaps += [(token, word, n / total) for word, n in shared if n]
    scores = token_scores.new_zeros(len(token_scores), len(words))
    if not overlaps:
        return scores
    tokens, word_of, share = (torch.tensor(column, device=scores.device) for column in zip(*overlaps, strict=True))
    if reduction == "max":
        index = word_of.expand(len(scores), -1)
        return scores.scatter_reduce(1, index, token_scores[:, tokens], "amax", include_self=False)
    return scores.index_add(1, word_of, token_scores[:, tokens] * share.to(scores))


def load_tokenizer(model: str) -> Any:
    """Load the fast tokenizer of a Hugging Face model or of the embedded language model.

    Args:
        model: ``hf:NAME``, where NAME is a folder or a name on the hub; or "lm-recall", an embedded model.

    Raises:
        InputError: The model is from another source, or its tokenizer cannot be loaded.
    """
    if model == "lm-recall":
        return recall_tokenizer()
    source, _, name = model.partition(":")
    if source != "hf" or not name:
        from vitrail.models import EMBEDDED_MODELS

        meant = "hf:NAME" if name or not model or model in EMBEDDED_MODELS else f"hf:{model}"
        raise InputError(f"{model!r} is not a Hugging Face model, which texts need: pass --model {meant}")
    transformers: Any = require("transformers", "hf", "read texts")
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the tokenizer of {name} cannot be loaded ({reason}): check that it is a text model and available"
        ) from error
