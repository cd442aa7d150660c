"""Explain texts: run their windows through the model and merge the results of each text.

A text within the model's limit takes one forward pass. A longer text is split into overlapping windows; a token that is
in several windows gets the mean of its scores. The target is the same for all windows of a text: by default the class
with the highest mean of the windows' logits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.inputs import SPECIAL_TOKENS, TOKEN_UNITS
from vitrail.errors import InputError, MapWarning, OptionError
from vitrail.inputs.targets import Target, classes_of_each, resolve_target
from vitrail.methods.postprocess import is_constant, normalise
from vitrail.models.loaded import LoadedModel
from vitrail.pipeline.explanation import Explanation, number_groups_alike
from vitrail.text.prediction import DEFAULT_BATCH_SIZE, mean_by_text, padding_id_of, text_logits
from vitrail.text.result import WordRelevance, word_relevance
from vitrail.text.text_units import unit_of_tokens, unit_spans, units_of_each
from vitrail.text.tokens import (
    EncodedText,
    Span,
    TokenizerSettings,
    TokenWindow,
    encode_texts,
    pad_windows,
    special_tokens,
)

ExplainInputs = Callable[[dict[str, Tensor], Target], Mapping[str, Explanation]]
"""Function from the model's inputs and the target of each to explanations by method."""


def explain_texts(
    texts: Any,
    tokenizer: Any,
    loaded: LoadedModel,
    target: Target,
    explain_inputs: ExplainInputs,
    batch_size: int | None,
    keep: bool,
    units: Any = None,
) -> dict[str, Explanation]:
    """Explain texts with one or more methods.

    Args:
        texts: A text, or several.
        tokenizer: A fast Hugging Face tokenizer, or `TokenizerSettings`.
        loaded: The model.
        target: As `vitrail.explain` takes it; one for each text, not for each window.
        explain_inputs: Function that explains tokenized inputs.
        batch_size: Maximum number of windows in a forward pass.
        keep: Whether the methods keep intermediate results; this requires all windows in one forward pass.
        units: Units that are scored and removed, see `vitrail.explain`; None for words and tokens.

    Returns:
        Explanations by method.
    """
    settings = tokenizer if isinstance(tokenizer, TokenizerSettings) else TokenizerSettings(tokenizer)
    given = [texts] if isinstance(texts, str) else texts
    if not isinstance(given, Sequence) or not given:
        raise InputError("with a tokenizer, pass a text or a list of at least one text")
    if batch_size is not None and batch_size < 1:
        raise OptionError(f"batch_size={batch_size} must be at least 1")
    encoded = encode_texts(given, settings, loaded.module)
    windows = [window for one in encoded for window in one.windows]
    size = batch_size or DEFAULT_BATCH_SIZE
    targets = _resolve_targets(target, loaded, encoded, settings, size)
    order = sorted(range(len(windows)), key=lambda i: len(windows[i]))  # batches of similar lengths need less padding
    batches = [order[i : i + size] for i in range(0, len(order), size)]
    if keep and len(batches) > 1:
        raise OptionError(f"keep=True needs all {len(windows)} windows in one pass: pass batch_size={len(windows)}")
    padding_id = padding_id_of(settings)
    spans = [spans_of(one, each) for one, each in zip(encoded, units_of_each(units, len(encoded)), strict=True)]
    results: list[Mapping[str, Explanation]] = []
    for batch in batches:
        rows = [windows[i] for i in batch]
        batch_targets = [targets[w.text] for w in rows] if isinstance(targets, list) else targets
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MapWarning)  # a window may be constant where its text is not
            inputs = {**pad_windows(rows, padding_id), SPECIAL_TOKENS: special_tokens(rows)}
            if units is not None:
                inputs[TOKEN_UNITS] = _units_of_windows(rows, encoded, spans)
            results.append(explain_inputs(inputs, batch_targets))
    location = {i: (b, j) for b, batch in enumerate(batches) for j, i in enumerate(batch)}
    locations = [location[i] for i in range(len(windows))]
    return {
        label: _merge_windows([result[label] for result in results], locations, windows, encoded, settings, spans)
        for label in results[0]
    }


def spans_of(encoded: EncodedText, units: Any) -> tuple[Span, ...]:
    """Characters of the units of one text; its words by default."""
    content = [span for span, here in zip(encoded.spans, encoded.content, strict=True) if here]
    text = encoded.text
    if units is None or isinstance(units, str):  # a special token, as a chat template has them, is no part of a word
        for (start, end), here in zip(encoded.spans, encoded.content, strict=True):
            text = text if here or start == end else text[:start] + " " * (end - start) + text[end:]
    return unit_spans(text, "words" if units is None else units, content)


def _units_of_windows(
    windows: Sequence[TokenWindow], encoded: Sequence[EncodedText], spans: Sequence[Sequence[Span]]
) -> Tensor:
    """The unit of each token of some windows, −1 for none, shape (b, n)."""
    longest = max(map(len, windows))
    rows = []
    for window in windows:
        units = unit_of_tokens(encoded[window.text].spans, spans[window.text])
        rows.append([*(units[p] if p >= 0 else -1 for p in window.positions), *[-1] * (longest - len(window))])
    return torch.tensor(rows)


def _resolve_targets(
    target: Target, loaded: LoadedModel, encoded: Sequence[EncodedText], settings: TokenizerSettings, size: int
) -> Target:
    """A list of target classes for each text, or the target itself if it is the same for every window."""
    if callable(target):
        return target
    if target is not None and not (isinstance(target, str) and target[:3] == "top" and target[3:].isdigit()):
        return classes_of_each(target, len(encoded), loaded.classes)
    if all(len(one.windows) == 1 for one in encoded):
        return target
    return resolve_target(target, text_logits(loaded.module, encoded, settings, size), len(encoded)).rows()


def _merge_windows(
    results: Sequence[Explanation],
    locations: Sequence[tuple[int, int]],
    windows: Sequence[TokenWindow],
    encoded: Sequence[EncodedText],
    settings: TokenizerSettings,
    spans: Sequence[Sequence[Span]],
) -> Explanation:
    """Merge the explanations of windows into one explanation of all texts."""
    results = number_groups_alike(results)
    first = results[0]
    targets_per_text, longest = first.grid.shape[1], max(len(one.tokens) for one in encoded)
    grid = first.grid.new_zeros(len(encoded), targets_per_text, longest)
    times = first.grid.new_zeros(len(encoded), longest)
    for window, (b, j) in zip(windows, locations, strict=True):
        inside = torch.tensor([i for i, p in enumerate(window.positions) if p >= 0], device=grid.device)
        positions = torch.tensor([p for p in window.positions if p >= 0], device=grid.device)
        grid[window.text, :, positions] += results[b].grid[j][:, inside]
        times[window.text, positions] += 1
    grid = grid / times.clamp_min(1)[:, None]
    maps, constant = torch.zeros_like(grid), first.constant.new_zeros(len(encoded), targets_per_text)
    texts: list[WordRelevance] = []
    for i, one in enumerate(encoded):
        seen = times[i, : len(one.tokens)] > 0
        scores = grid[i, :, : len(one.tokens)]
        maps[i, :, : len(one.tokens)][:, seen] = normalise(scores[:, seen], signed=first.signed, axes=1)
        constant[i] = is_constant(scores[:, seen], axes=1)[:, 0]
        texts.append(word_relevance(one, scores, seen.tolist(), first.signed, settings.reduction, spans[i]))

    def by_window(name: str) -> Tensor | None:
        values = [getattr(result, name) for result in results]
        if values[0] is None:
            return None
        return torch.stack([values[b][j] for b, j in locations])

    logits, targets = by_window("logits"), by_window("targets")
    first_windows = torch.tensor([next(i for i, w in enumerate(windows) if w.text == t) for t in range(len(encoded))])
    return replace(
        first, maps=maps.float(), grid=grid, constant=constant, text=tuple(texts),
        seconds=sum(e.seconds for e in results),
        logits=None if logits is None else mean_by_text(logits, windows, len(encoded)),
        targets=None if targets is None else targets[first_windows.to(targets.device)],
    )  # fmt: skip
