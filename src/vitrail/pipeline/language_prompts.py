"""Explain prompts of language models: tokens and answers as targets, words and other units in the result.

Every prompt is one row of a batch, padded on the right. An answer is appended to its prompt, so targets with different
answers need rows of their own; their results are put together again. A contrast of answers is the map of the first
minus that of the second. For methods that are linear in the target, as gradients, relevance propagation and removal
are, this is the map of the difference of the log-probabilities.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.inputs import SPECIAL_TOKENS, TOKEN_UNITS
from vitrail.errors import MapWarning, ModelError, NotApplicableError, OptionError, TargetError
from vitrail.inputs.map_source import MapSource
from vitrail.methods.postprocess import is_constant, normalise
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.text_windows import spans_of
from vitrail.targets.bound_targets import Rows, TargetRecord, has_named_target
from vitrail.targets.contrasts import Contrast
from vitrail.targets.language_targets import TargetTerm, language_rows, read_positions, target_terms
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import OutputReader
from vitrail.text.language_model import attends_locally, check_length, context_limit, padded_inputs
from vitrail.text.prediction import DEFAULT_BATCH_SIZE
from vitrail.text.prompt_arguments import check_prompt_arguments
from vitrail.text.prompt_tokens import EncodedPrompt, encode_prompts
from vitrail.text.result import WordRelevance, word_relevance
from vitrail.text.text_units import unit_of_tokens, units_of_each
from vitrail.text.tokens import Span, TokenizerSettings

ExplainInputs = Callable[[dict[str, Any], Any], Mapping[str, Explanation]]
"""Function from the model's inputs and the target of each to explanations by method."""


@dataclass(frozen=True)
class PromptSettings:
    """How prompts are explained.

    Attributes:
        model: The model.
        tokenizer: The tokenizer settings.
        units: Units of the result, see `vitrail.explain`; None for words, with tokens as what methods remove.
        batch_size: Most rows in a forward pass; None for the default.
        keep: Whether intermediate results are kept.
    """

    model: nn.Module
    tokenizer: TokenizerSettings
    units: Any = None
    batch_size: int | None = None
    keep: bool = False


@dataclass(frozen=True)
class SequenceRow:
    """One row of a batch: a prompt, an appended answer and what is explained of it.

    Attributes:
        prompt: Index of the prompt.
        ids: Its tokens with those of the answer.
        targets: What is explained.
    """

    prompt: int
    ids: tuple[int, ...]
    targets: tuple[NamedTarget, ...]

    @property
    def positions(self) -> list[int]:
        """Positions whose scores are read."""
        return sorted({p for target in self.targets for p in read_positions(target, len(self.ids))})


def explain_prompts(
    prompts: Sequence[EncodedPrompt], settings: PromptSettings, target: Any, explain_inputs: ExplainInputs
) -> dict[str, Explanation]:
    """Explain prompts with one or more methods.

    Returns:
        Explanations by method; their maps are over the tokens of the prompts.
    """
    size = settings.batch_size or DEFAULT_BATCH_SIZE
    if size < 1:
        raise OptionError(f"batch_size={settings.batch_size} must be at least 1")
    limit = context_limit(settings.model, settings.tokenizer.window)
    for i, prompt in enumerate(prompts):
        check_length(len(prompt.ids), limit, f"prompt {i}")
    spans = _unit_spans(prompts, settings.units)
    if callable(target) and not has_named_target(target):
        rows = [SequenceRow(i, prompt.ids, ()) for i, prompt in enumerate(prompts)]
        found = _explain_rows(rows, prompts, spans, settings, size, explain_inputs, target)
        pieces = {label: [[one] for one in results] for label, results in found.items()}
        return {
            label: _joined(one, None, prompts, spans, settings, _seconds(found[label])) for label, one in pieces.items()
        }
    asked = language_rows(target, len(prompts), settings.tokenizer.tokenizer)
    terms = [[target_terms(one, len(prompt.ids)) for one in row] for row, prompt in zip(asked, prompts, strict=True)]
    rows, places = _rows(terms, prompts)
    for row in rows:
        check_length(len(row.ids), limit, f"prompt {row.prompt} with its answer")
    found = _explain_rows(rows, prompts, spans, settings, size, explain_inputs, None)
    _check_values(next(iter(found.values())), settings.model)
    return {
        label: _joined(_regrouped(results, places, terms, asked), asked, prompts, spans, settings, _seconds(results))
        for label, results in found.items()
    }


def _seconds(results: Sequence[Explanation]) -> float:
    return sum(one.seconds for one in results)


def _unit_spans(prompts: Sequence[EncodedPrompt], units: Any) -> list[tuple[Span, ...]]:
    each = units_of_each(units, len(prompts))
    return [spans_of(prompt.encoded, one) for one, prompt in zip(each, prompts, strict=True)]


Places = list[list[tuple[int, int]]]
"""For each prompt and target the first row of its terms, and which target of that row it is."""


def _rows(
    terms: list[list[tuple[TargetTerm, ...]]], prompts: Sequence[EncodedPrompt]
) -> tuple[list[SequenceRow], Places]:
    """The rows of all prompts, and where each target is: one row a prompt, or one a term where answers differ."""
    alike = all(len({t.forced for one in row for t in one}) == 1 and all(len(one) == 1 for one in row) for row in terms)
    rows: list[SequenceRow] = []
    places: Places = []
    for i, (row, prompt) in enumerate(zip(terms, prompts, strict=True)):
        own = []
        if alike:
            own = [(len(rows), k) for k in range(len(row))]
            rows.append(SequenceRow(i, prompt.ids + row[0][0].forced, tuple(one[0].target for one in row)))
        else:
            for one in row:
                own.append((len(rows), 0))
                rows += [SequenceRow(i, prompt.ids + term.forced, (term.target,)) for term in one]
        places.append(own)
    return rows, places


def _explain_rows(
    rows: Sequence[SequenceRow], prompts: Sequence[EncodedPrompt], spans: Sequence[tuple[Span, ...]],
    settings: PromptSettings, size: int, explain_inputs: ExplainInputs, function: Any,
) -> dict[str, list[Explanation]]:  # fmt: skip
    """The explanation of each row by each method."""
    batches = _batches([len(row.ids) for row in rows], size, attends_locally(settings.model))
    if settings.keep and len(batches) > 1:
        raise OptionError(f"keep=True needs all {len(rows)} rows in one pass: pass batch_size={len(rows)}")
    tokenizer = settings.tokenizer.tokenizer
    padding = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
    found: dict[str, list[Explanation]] = {}
    for batch in batches:
        chosen = [rows[i] for i in batch]
        kept = None if function is not None else [row.positions for row in chosen]
        inputs = padded_inputs(settings.model, [row.ids for row in chosen], int(padding), kept)
        longest = inputs["input_ids"].shape[1]
        special = [_padded([not c for c in prompts[r.prompt].encoded.content], longest, True) for r in chosen]
        inputs[SPECIAL_TOKENS] = torch.tensor(special)
        if settings.units is not None:
            units = [unit_of_tokens(prompts[r.prompt].encoded.spans, spans[r.prompt]) for r in chosen]
            inputs[TOKEN_UNITS] = torch.tensor([_padded(row, longest, -1) for row in units])
        target = [list(row.targets) for row in chosen] if function is None else function
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MapWarning)  # a row may be constant where the result is not
            results = explain_inputs(inputs, target)
        for label, result in results.items():
            if result.grid.shape[-1] != longest:
                raise NotApplicableError(
                    f"{label} has a map of {result.grid.shape[-1]} tokens, and the prompt has {longest}: which of them "
                    f"are the words is unknown, as where {type(settings.model).__name__} puts learned tokens in front "
                    "of a text (prompt tuning); use gradient_x_input"
                )
            each = found.setdefault(label, [result] * len(rows))
            limited = _causal(result, chosen)
            for j, i in enumerate(batch):
                each[i] = _row_of(limited, j, len(batch))
    return found


def _batches(lengths: Sequence[int], size: int, alike: bool) -> list[list[int]]:
    """Indices of rows in batches of similar lengths, which need less padding.

    Args:
        lengths: Number of tokens of each row.
        size: Most rows of a batch.
        alike: Whether all rows of a batch have the same length: a token of padding whose window holds nothing but
            padding attends to nothing, and its values are no numbers.
    """
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    groups = [[i for i in order if lengths[i] == n] for n in sorted(set(lengths))] if alike else [order]
    return [group[i : i + size] for group in groups for i in range(0, len(group), size)]


def _check_values(results: Sequence[Explanation], model: nn.Module) -> None:
    """Refuse targets whose values are not finite."""
    for result in results:
        for record in (result.named_targets or ((),))[0]:
            sides = (
                (record.pinned.first, *(record.pinned.against or ()))
                if isinstance(record.pinned, Contrast)
                else (record.pinned,)
            )
            values = [getattr(one, "probability", None) for one in sides] + [
                getattr(one, "total", None) for one in sides
            ]
            if any(value is not None and not isfinite(value) for value in values):
                raise ModelError(
                    f"the scores of {type(model).__name__} are not finite (NaN or infinite): check its weights and "
                    "precision, and whether it takes padded prompts (batch_size=1 uses no padding)"
                )


def _causal(result: Explanation, rows: Sequence[SequenceRow]) -> Explanation:
    """No relevance after the position of a target, for models that mix words elsewhere than in masked attention."""
    source = result.source
    if not isinstance(source, MapSource) or not rows[0].targets:
        return result
    structure = source.structure
    if structure.layers and not (structure.kind == "unseen" and structure.causal):
        return result
    grid = result.grid.clone()
    for b, row in enumerate(rows):
        for k, target in enumerate(row.targets):
            grid[b, k, max(read_positions(target, len(row.ids))) + 1 :] = 0
    return replace(result, grid=grid)


def _padded(values: Sequence[Any], length: int, fill: Any) -> list[Any]:
    return [*values, *[fill] * (length - len(values))]


def _row_of(result: Explanation, index: int, rows: int) -> Explanation:
    """The explanation of one row of a batch; the seconds are divided among the rows."""
    here = slice(index, index + 1)
    records = None if result.named_targets is None else result.named_targets[here]
    parts = {name: getattr(result, name)[here] for name in ("maps", "grid", "constant")}
    return replace(result, **parts, named_targets=records, seconds=result.seconds / rows)


def _regrouped(
    results: Sequence[Explanation], places: Places, terms: list[list[tuple[TargetTerm, ...]]], asked: Rows
) -> list[list[Explanation]]:
    """For each prompt the explanations of its targets, each with one target."""
    found = []
    for b, row in enumerate(places):
        own = []
        for k, (first, column) in enumerate(row):
            count = len(terms[b][k])
            if count == 1:
                own.append(_with_asked(_target_of(results[first], column), asked[b][k]))
            else:
                own.append(answer_difference(results[first : first + count], asked[b][k]))
        found.append(own)
    return found


def _target_of(result: Explanation, column: int) -> Explanation:
    here = slice(column, column + 1)
    records = None if result.named_targets is None else (result.named_targets[0][here],)
    parts = {name: getattr(result, name)[:, here] for name in ("maps", "grid", "constant")}
    return replace(result, **parts, named_targets=records)


def _with_asked(result: Explanation, asked: NamedTarget) -> Explanation:
    assert result.named_targets is not None
    return replace(result, named_targets=((replace(result.named_targets[0][0], asked=asked),),))


def answer_difference(results: Sequence[Explanation], asked: NamedTarget) -> Explanation:
    """The map of the first answer minus those of the others, weighted as in the gradient of their log-sum-exp."""
    records = [one.named_targets[0][0] for one in results if one.named_targets is not None]
    values = torch.tensor([getattr(one.pinned, "total", 0.0) for one in records[1:]], dtype=torch.float64)
    weights = values.softmax(0).to(results[0].grid)
    if not isinstance(asked, Contrast):
        raise TargetError(f"{asked} has several terms and is no contrast")
    length = min(one.grid.shape[-1] for one in results)
    others = [w * one.grid[..., :length] for w, one in zip(weights, results[1:], strict=True)]
    grid = results[0].grid[..., :length] - torch.stack(others).sum(0)
    pinned = replace(asked, first=records[0].pinned, against=tuple(one.pinned for one in records[1:]))
    record = TargetRecord(asked, pinned, pinned.title(OutputReader(None)))
    return replace(results[0], grid=grid, maps=grid, named_targets=((record,),), signed=True)


def _joined(
    pieces: Sequence[Sequence[Explanation]], asked: Rows | None, prompts: Sequence[EncodedPrompt],
    spans: Sequence[tuple[Span, ...]], settings: PromptSettings, seconds: float,
) -> Explanation:  # fmt: skip
    """One explanation of all prompts from those of their targets."""
    first = pieces[0][0]
    signed = any(one.signed for row in pieces for one in row)
    count = len(pieces[0]) if asked is not None else first.grid.shape[1]
    width = max(prompt.width for prompt in prompts)
    grid = first.grid.new_zeros(len(prompts), count, width)
    maps, constant = torch.zeros_like(grid), first.constant.new_zeros(len(prompts), count)
    texts: list[WordRelevance] = []
    for b, (row, prompt) in enumerate(zip(pieces, prompts, strict=True)):
        scores: Tensor = torch.cat([one.grid[0, :, : len(prompt.ids)] for one in row])
        columns = torch.tensor(prompt.columns, device=grid.device)
        content = torch.tensor(prompt.encoded.content, device=grid.device)
        scores = scores.masked_fill(~content, 0.0)
        grid[b][:, columns] = scores
        maps[b][:, columns[content]] = normalise(scores[:, content], signed=signed, axes=1)
        constant[b] = is_constant(scores[:, content], axes=1)[:, 0]
        seen = [True] * len(prompt.ids)
        reduction = settings.tokenizer.reduction
        texts.append(word_relevance(prompt.encoded, scores, seen, signed, reduction, spans[b]))
    records = None
    if asked is not None:
        records = tuple(
            tuple(one.named_targets[0][0] for one in row if one.named_targets is not None) for row in pieces
        )
    return replace(
        first, maps=maps.float(), grid=grid, constant=constant, text=tuple(texts), named_targets=records,
        seconds=seconds, signed=signed, targets=None, logits=None,
    )  # fmt: skip


def encoded_prompts(model: nn.Module, inputs: Any, tokenizer: Any) -> tuple[list[EncodedPrompt], TokenizerSettings]:
    """The prompts of a call, and the tokenizer settings."""
    settings = tokenizer if isinstance(tokenizer, TokenizerSettings) else TokenizerSettings(tokenizer)
    if isinstance(inputs, Mapping) and inputs.get("input_ids") is not None:
        check_prompt_arguments(model, inputs)
    return encode_prompts(inputs, settings), settings
