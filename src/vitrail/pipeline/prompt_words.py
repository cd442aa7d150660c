"""The text side of prompts: the relevance of each prompt's words for its image, computed at first access."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import torch
from torch import Tensor, nn

from vitrail.capture.inputs import SPECIAL_TOKENS, ModelInputs
from vitrail.errors import MapWarning, NotApplicableError
from vitrail.models.loaded import LoadedModel
from vitrail.targets.bound_targets import TargetRecord
from vitrail.targets.contrasts import Contrast
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.prompts import Prompt
from vitrail.targets.text_call import IDS, find_tokenizer, tokenize
from vitrail.targets.text_encoder import TextEncoder, text_encoder
from vitrail.text.result import WordRelevance, word_relevance
from vitrail.text.tokens import EncodedText, TokenWindow

#: Most prompts that share a pass of the text encoder.
MAX_PROMPTS = 64


@dataclass(frozen=True, eq=False)
class PromptWords(Sequence[WordRelevance]):
    """Words of the prompts, one entry for each image and target, all targets of the first image first.

    Attributes:
        loaded: The model that was called.
        model_inputs: Its inputs.
        records: Targets of each image.
        methods: The method with its options.
        explain: `vitrail.explain`.
    """

    loaded: LoadedModel
    model_inputs: ModelInputs
    records: tuple[tuple[TargetRecord, ...], ...]
    methods: Mapping[str, Mapping[str, Any]]
    explain: Callable[..., Mapping[str, Any]] = field(repr=False)

    @cached_property
    def computed(self) -> tuple[WordRelevance, ...]:
        """All entries; prompts of equally many tokens share the passes of the text encoder."""
        places = [(b, _prompt_of(record.pinned)) for b, row in enumerate(self.records) for record in row]
        queries = [target.query for _, target in places]
        encoder, vectors = text_encoder(self.loaded.module, self.model_inputs, [b for b, _ in places], queries)
        texts = [self._tokens(target, encoder.model) for _, target in places]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for i, (_, tokens) in enumerate(texts):
            groups.setdefault(tuple((name, value.shape) for name, value in tokens.items()), []).append(i)
        found: dict[int, WordRelevance] = {}
        for rows in groups.values():
            for start in range(0, len(rows), MAX_PROMPTS):
                some = rows[start : start + MAX_PROMPTS]
                chosen = [(*texts[i], places[i][1].processor) for i in some]
                found |= dict(zip(some, self._words(encoder, vectors[some], chosen), strict=True))
        return tuple(found[i] for i in range(len(places)))

    @property
    def is_computed(self) -> bool:
        """Whether the entries were computed."""
        return "computed" in self.__dict__

    def __len__(self) -> int:
        return sum(map(len, self.records))

    @overload
    def __getitem__(self, index: int) -> WordRelevance: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[WordRelevance, ...]: ...
    def __getitem__(self, index: int | slice) -> WordRelevance | tuple[WordRelevance, ...]:
        return self.computed[index]

    def __iter__(self) -> Iterator[WordRelevance]:
        return iter(self.computed)

    def _words(
        self, encoder: TextEncoder, vectors: Tensor, texts: Sequence[tuple[str | None, dict[str, Tensor], Any]]
    ) -> list[WordRelevance]:
        """Words of some prompts of equally many tokens, each with its tokens and its processor."""
        names = [name for name in texts[0][1] if name in (IDS, "attention_mask")]
        inputs = {name: torch.cat([tokens[name] for _, tokens, _ in texts]) for name in names}
        encoded = [
            _encoded(text, tokens, None if text is None else find_tokenizer(self.loaded, processor))
            for text, tokens, processor in texts
        ]
        content = [[not one for one in read.content] for read, _ in encoded]
        special = torch.tensor(content, device=inputs[IDS].device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MapWarning)
            found = self.explain(
                encoder, {**inputs, "image_vectors": vectors, SPECIAL_TOKENS: special}, methods=self.methods,
                target=_first_score, of=IDS, roles={"image_vectors": "other"},
            )  # fmt: skip
        explanation = next(iter(found.values()))
        return [
            word_relevance(read, explanation.grid[i], seen, explanation.signed, "sum")
            for i, (read, seen) in enumerate(encoded)
        ]

    def _tokens(self, target: Prompt, model: nn.Module) -> tuple[str | None, dict[str, Tensor]]:
        """The prompt's first sentence and its tokens; None and the tokens of the call for a text given by number."""
        if isinstance(target.text, str):
            text = target.sentences(target.text)[0]
            tokenizer = find_tokenizer(self.loaded, target.processor)
            return text, tokenize(tokenizer, [text], model, self.model_inputs.tensors[0].device)
        found = {}
        for name in (IDS, "attention_mask"):
            value = self.model_inputs.called(name)
            if value is not None:
                found[name] = value[target.text : target.text + 1]
        if IDS not in found:
            raise NotApplicableError("the tokens of the texts were not found in the inputs: pass them as input_ids")
        return None, found


def prompt_records(words: PromptWords) -> list[dict[str, Any]]:
    """Words and scores of all prompts, as JSON values."""
    places = [(b, k) for b, row in enumerate(words.records) for k in range(len(row))]
    return [
        {"image": b, "target": k, "text": one.text, "words": list(one.words), "scores": one.scores[0].tolist()}
        for (b, k), one in zip(places, words, strict=True)
    ]


def has_prompts(records: tuple[tuple[TargetRecord, ...], ...] | None) -> bool:
    """Whether all targets are prompts, or contrasts of them."""
    return records is not None and all(
        isinstance(one.pinned, Prompt) or (isinstance(one.pinned, Contrast) and isinstance(one.pinned.first, Prompt))
        for row in records
        for one in row
    )


def _prompt_of(target: NamedTarget) -> Prompt:
    found = target.first if isinstance(target, Contrast) else target
    assert isinstance(found, Prompt)
    return found


def _first_score(output: Tensor) -> Tensor:
    return output[:, 0]


def _encoded(text: str | None, tokens: Mapping[str, Tensor], tokenizer: Any) -> tuple[EncodedText, list[bool]]:
    """A text with its tokens, and which of them are no padding; without a tokenizer, their numbers are the words."""
    ids = tokens[IDS][0].tolist()
    if text is not None and getattr(tokenizer, "is_fast", False):
        full = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True, truncation=True,
                         max_length=len(ids))  # fmt: skip
        count = len(full[IDS])
        names = tuple(tokenizer.convert_ids_to_tokens(ids))
        spans = [*((int(a), int(b)) for a, b in full["offset_mapping"]), *([(0, 0)] * (len(ids) - count))]
        content = [not s for s in full["special_tokens_mask"]] + [False] * (len(ids) - count)
        return _text(text, names, spans, content), [i < count for i in range(len(ids))]
    mask = tokens.get("attention_mask")
    count = len(ids) if mask is None else int(mask[0].sum())
    while count > 1 and mask is None and ids[count - 1] == 0:  # padding of open_clip
        count -= 1
    decode = getattr(tokenizer, "decode", None)
    names = tuple(str(i) if decode is None else str(decode([i])).strip() or str(i) for i in ids)
    content = [i < count and not (name.startswith("<") and name.endswith(">")) for i, name in enumerate(names)]
    spans, shown, at = [], [], 0
    for name, is_word in zip(names, content, strict=True):
        spans.append((at, at + len(name)) if is_word else (0, 0))
        if is_word:
            shown.append(name)
            at += len(name) + 1
    return _text(" ".join(shown), names, spans, content), [i < count for i in range(len(ids))]


def _text(text: str, tokens: tuple[str, ...], spans: list[tuple[int, int]], content: list[bool]) -> EncodedText:
    window = TokenWindow(0, {}, list(range(len(tokens))))
    return EncodedText(text, tokens, tuple(spans), tuple(content), (window,))
