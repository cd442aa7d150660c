"""From texts to tokens a model can be fed with, and from scores of tokens back to words."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import InputError, OptionError, require

Span = tuple[int, int]
JOINS = ("sum", "max")
#: What a tokenizer without a limit of its own says its limit is.
_NO_LIMIT = 1_000_000
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Reading:
    """How texts are read: by which tokenizer, how pieces make words, and how long texts are cut.

    Attributes:
        tokenizer: A fast Hugging Face tokenizer: only these say which characters each piece stands for.
        join: A word's score from its pieces': their "sum", or the "max" of them, as the released code for BERT has it.
        window: Most tokens the model is shown at a time, special ones included; what the model allows by default.
        overlap: Tokens that neighbouring windows of a long text share; a quarter of a window by default.
        whole: Whether a text longer than a window is read window by window to its end. If not, it is cut off after the
            first, and words beyond have no score, as in the published experiments on movie reviews.
    """

    tokenizer: Any
    join: str = "sum"
    window: int | None = None
    overlap: int | None = None
    whole: bool = True

    def __post_init__(self) -> None:
        if self.join not in JOINS:
            raise OptionError(f"join={self.join!r} is not one of {', '.join(map(repr, JOINS))}")
        if not getattr(self.tokenizer, "is_fast", False):
            kind = type(self.tokenizer).__name__
            raise InputError(
                f"{kind} does not say which characters its pieces stand for, which words are made from: use the fast "
                "tokenizer of the model, as transformers.AutoTokenizer gives it"
            )


@dataclass(frozen=True)
class Window:
    """A stretch of a text as the model is shown it.

    Attributes:
        text: Which text it is of.
        row: The model's inputs by name, one number a token.
        at: Where each token stands among all tokens of the text, −1 for special ones.
    """

    text: int
    row: dict[str, list[int]]
    at: list[int]

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True)
class Encoded:
    """A text as a tokenizer reads it.

    Attributes:
        text: The text.
        tokens: All its tokens, special ones included.
        spans: First character and the one after the last of each token; both the same where it stands for none.
        content: Which tokens are no special ones.
        windows: What the model is shown; one unless the text is long.
    """

    text: str
    tokens: tuple[str, ...]
    spans: tuple[Span, ...]
    content: tuple[bool, ...]
    windows: tuple[Window, ...]


def encode(texts: Sequence[str], reading: Reading, model: nn.Module) -> list[Encoded]:
    """Tokens of texts, cut into windows where they are longer than the model takes.

    Raises:
        InputError: A text has no words, or the windows do not leave room for any.
    """
    found = []
    most = limit(model, reading)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {index} is a {type(text).__name__}: give a text or a list of texts")
        found.append(_encode(index, text, reading, model, most))
    return found


def _encode(index: int, text: str, reading: Reading, model: nn.Module, most: int) -> Encoded:
    whole = _tokenize(reading, text)
    special = whole["special_tokens_mask"]
    content = tuple(not s for s in special)
    if not any(content):
        raise InputError(f"text {index} has no words that {type(reading.tokenizer).__name__} knows: {text[:40]!r}")
    positions = [i for i, is_content in enumerate(content) if is_content]
    if len(special) <= most:
        parts = [whole]
    else:
        room = most - sum(special)
        overlap = room // 4 if reading.overlap is None else reading.overlap
        if not 0 <= overlap < room:
            raise InputError(
                f"windows of {most} tokens that share {overlap} do not move on: {sum(special)} of them are special"
            )
        parts = _cut(reading, text, most, overlap)[: None if reading.whole else 1]
    windows, start = [], 0
    for part in parts:
        inside = [not s for s in part["special_tokens_mask"]]
        own = iter(positions[start : start + sum(inside)])
        at = [next(own) if here else -1 for here in inside]
        if any(part["input_ids"][i] != whole["input_ids"][p] for i, p in enumerate(at) if p >= 0):
            raise InputError(f"text {index} is cut in a way that does not fit its tokens: shorten it, or set window=…")
        windows.append(Window(index, {k: part[k] for k in _names(model) if k in part}, at))
        if len(parts) > 1:
            start += sum(inside) - overlap
    tokens = tuple(reading.tokenizer.convert_ids_to_tokens(whole["input_ids"]))
    spans = tuple((int(a), int(b)) for a, b in whole["offset_mapping"])
    return Encoded(text, tokens, spans, content, tuple(windows))


def _tokenize(reading: Reading, text: str, **more: Any) -> dict[str, Any]:
    ask = {"return_special_tokens_mask": True, "return_offsets_mapping": True, "return_attention_mask": True}
    return dict(reading.tokenizer(text, **ask, add_special_tokens=True, verbose=False, **more))


def _cut(reading: Reading, text: str, most: int, overlap: int) -> list[dict[str, Any]]:
    options = {"truncation": True, "max_length": most, "stride": overlap, "return_overflowing_tokens": True}
    cut = _tokenize(reading, text, **options)
    return [{k: v[i] for k, v in cut.items()} for i in range(len(cut["input_ids"]))]


def _names(model: nn.Module) -> list[str]:
    """The inputs of a tokenizer that a model takes."""
    takes = signature(model.forward).parameters
    return [name for name in ("input_ids", "token_type_ids", "attention_mask") if name in takes]


def limit(model: nn.Module, reading: Reading) -> int:
    """Most tokens at a time: what was asked for, or what model and tokenizer allow.

    Example:
        >>> from types import SimpleNamespace as Thing
        >>> model = nn.Module()
        >>> model.config = Thing(max_position_embeddings=512)
        >>> limit(model, Reading(Thing(is_fast=True, model_max_length=10**30)))
        512
    """
    config: Any = getattr(model, "config", None)
    allowed = [int(getattr(reading.tokenizer, "model_max_length", _NO_LIMIT) or _NO_LIMIT)]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 0:
        # Where positions are counted from behind the number of the padding token, those below cannot be used.
        for name, module in model.named_modules():
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                positions -= 0 if module.padding_idx is None else module.padding_idx + 1
                break
        allowed.append(positions)
    most = min(allowed)
    if reading.window is not None:
        if reading.window > most:
            raise OptionError(f"window={reading.window} is more than the {most} tokens the model allows")
        most = reading.window
    if most >= _NO_LIMIT:
        raise InputError("how many tokens the model takes is unknown: say so by Reading(tokenizer, window=…)")
    return most


def batch(windows: Sequence[Window], padding: int) -> dict[str, Tensor]:
    """Windows side by side, padded on the right to the longest; what is padded is masked."""
    longest = max(map(len, windows))
    fill = {"input_ids": padding}
    rows = {name: [w.row[name] + [fill.get(name, 0)] * (longest - len(w)) for w in windows] for name in windows[0].row}
    if "attention_mask" not in rows and any(len(w) < longest for w in windows):
        raise InputError("this model takes no attention mask: texts of different lengths go one by one, batch_size=1")
    return {name: torch.tensor(values, dtype=torch.long) for name, values in rows.items()}


def words_of(text: str) -> tuple[Span, ...]:
    """The words of a text, as what blanks separate: first character and the one after the last.

    Example:
        >>> words_of("not  bad.")
        ((0, 3), (5, 9))
    """
    return tuple(match.span() for match in _WORD.finditer(text))


def join_pieces(scores: Tensor, pieces: Sequence[Span], words: Sequence[Span], join: str = "sum") -> Tensor:
    """Scores of words from those of pieces, by the characters they share.

    A piece that reaches over several words is split by characters in a sum, and takes part in each word's maximum.

    Args:
        scores: Scores of pieces, shape (K, T).
        pieces: Characters of each piece; pieces without any belong to no word.
        words: Characters of each word, in order.
        join: "sum" or "max".

    Returns:
        Scores of words, shape (K, W); 0 where no piece meets a word.

    Example:
        >>> join_pieces(torch.tensor([[1.0, 2.0, 4.0]]), [(0, 3), (3, 5), (6, 8)], [(0, 5), (6, 8)])
        tensor([[3., 4.]])
    """
    ends = [end for _, end in words]
    meets: list[tuple[int, int, float]] = []
    for piece, (start, stop) in enumerate(pieces):
        shared = []
        for word in range(bisect_right(ends, start), len(words)):
            if words[word][0] >= stop:
                break
            shared.append((word, min(stop, words[word][1]) - max(start, words[word][0])))
        total = sum(n for _, n in shared)
        meets += [(piece, word, n / total) for word, n in shared if n]
    found = scores.new_zeros(len(scores), len(words))
    if not meets:
        return found
    piece_of, word_of, share = (torch.tensor(column, device=scores.device) for column in zip(*meets, strict=True))
    if join == "max":
        index = word_of.expand(len(scores), -1)
        return found.scatter_reduce(1, index, scores[:, piece_of], "amax", include_self=False)
    return found.index_add(1, word_of, scores[:, piece_of] * share.to(scores))


def load_tokenizer(model: str) -> Any:
    """Load the fast tokenizer of a Hugging Face model.

    Args:
        model: ``hf:NAME``, where NAME is a folder or a name on the hub.

    Raises:
        InputError: The model is from another source, or its tokenizer cannot be loaded.
    """
    source, _, name = model.partition(":")
    if source != "hf" or not name:
        raise InputError(f"{model!r} is not a Hugging Face model, which texts need: pass --model hf:NAME")
    transformers: Any = require("transformers", "hf", "read texts")
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"the tokenizer of {name} cannot be loaded ({reason}): check that it is a text model and available"
        ) from error
