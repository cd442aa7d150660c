"""Explain encoder–decoders: the words, patches or sound that the encoder reads, for words that the decoder writes.

The decoder reads its start token and, for an answer of several tokens, the tokens before the one that is scored. What
is explained is the encoder's input.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.frozen import unwrap
from vitrail.capture.inputs import SPECIAL_TOKENS, TOKEN_UNITS
from vitrail.errors import InputError, MapWarning, NotApplicableError, OptionError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.methods.postprocess import is_constant, normalise, upsample
from vitrail.models.loaded import LoadedModel
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.language_prompts import answer_difference
from vitrail.pipeline.request import Request
from vitrail.pipeline.results import with_checks
from vitrail.pipeline.text_windows import spans_of
from vitrail.targets.bound_targets import has_named_target
from vitrail.targets.language_targets import TargetTerm, language_rows, target_terms
from vitrail.text.language_model import padded_inputs
from vitrail.text.prompt_tokens import EncodedPrompt, encode_prompts
from vitrail.text.result import word_relevance
from vitrail.text.text_units import unit_of_tokens, units_of_each
from vitrail.text.tokens import Span, TokenizerSettings

Explain = Callable[[LoadedModel, Any, Request], dict[str, Explanation]]
"""`vitrail.explain` of a model, inputs and a request, as results by method."""

DECODER_IDS = "decoder_input_ids"
_DECODER_MASK = "decoder_attention_mask"


@dataclass(frozen=True)
class _DecoderCall:
    """A call: examples, tokens that are appended to those of the decoder, and what is explained of each."""

    examples: tuple[int, ...]
    forced: tuple[int, ...]
    terms: tuple[tuple[TargetTerm, ...], ...]


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether a model writes with a decoder that attends to an encoder, as its config states."""
    module = unwrap(model)
    config = getattr(module, "config", None)
    writes = getattr(module, "can_generate", None)
    return bool(getattr(config, "is_encoder_decoder", False)) and callable(writes) and bool(writes())


def explain_encoder_decoder(
    loaded: LoadedModel, inputs: Any, request: Request, explain: Explain
) -> dict[str, Explanation]:
    """Explain what an encoder reads for words that its decoder writes.

    Raises:
        InputError: Texts were given without a tokenizer, or the start token of the decoder is unknown.
    """
    given, prompts = encoder_inputs(loaded.module, inputs, request.tokenizer)
    _refuse_other_calls(given, loaded.module)
    spans = _unit_spans(prompts, request.units)
    if prompts is not None and request.units is not None:
        units = [unit_of_tokens(p.encoded.spans, own) for p, own in zip(prompts, spans or (), strict=True)]
        given[TOKEN_UNITS] = _by_column(prompts, units)
    if prompts is not None and request.check:
        raise NotApplicableError(
            "the words that an encoder reads cannot be checked: check=True is for the prompts of decoders, and for "
            "images and sounds of encoders"
        )
    main = "input_ids" if prompts is not None else None
    model_inputs = to_model_inputs(
        {k: v for k, v in given.items() if k not in (SPECIAL_TOKENS, TOKEN_UNITS)}, loaded, request.roles,
        request.of or main, request.reading,
    )  # fmt: skip
    count = model_inputs.batch
    start = decoder_start(loaded.module, given, count)
    given = {name: value for name, value in given.items() if name != "labels"}  # of the loss alone
    tokenizer = getattr(request.tokenizer, "tokenizer", request.tokenizer)
    inner = replace(request, of=request.of or main, check=False, units=None)
    if callable(request.target) and not has_named_target(request.target):
        results = explain(loaded, {**given, DECODER_IDS: start}, inner)
        return {label: _with_text(e, prompts, request, spans) for label, e in results.items()}
    asked = language_rows(request.target, count, tokenizer)
    written = given.get(_DECODER_MASK)
    if isinstance(written, Tensor) and bool(written.bool().all()):
        given = {name: value for name, value in given.items() if name != _DECODER_MASK}
        written = None
    terms = [[target_terms(one, start.shape[1]) for one in row] for row in asked]

    if written is not None and any(term.forced for row in terms for one in row for term in one):
        raise InputError(
            f"{DECODER_IDS} are padded, and the answer would be written after the padding: pass the examples one by "
            f"one, without {_DECODER_MASK}"
        )

    def run(call: _DecoderCall) -> dict[str, Explanation]:
        rows = torch.tensor(call.examples)
        arguments = {name: value[rows] if _by_example(value, count) else value for name, value in given.items()}
        forced = torch.tensor([call.forced] * len(rows), dtype=start.dtype).view(len(rows), -1)
        arguments[DECODER_IDS] = torch.cat([start[rows], forced.to(start.device)], 1)
        target = [[term.target for term in row] for row in call.terms]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MapWarning)
            return explain(loaded, arguments, replace(inner, target=target))

    found: dict[str, list[Explanation]] = {}
    if any(len({term.forced for one in row for term in one}) > 1 for row in terms):
        parts = [_by_terms(i, row, asked[i], run) for i, row in enumerate(terms)]
    else:
        parts = [run(call) for call in _calls(terms)]
    for part in parts:
        for label, e in part.items():
            found.setdefault(label, []).append(e)
    results = {label: _with_text(_joined(parts), prompts, request, spans) for label, parts in found.items()}
    source = next(iter(results.values())).source
    if not request.check:
        return results
    if source is None:
        raise NotApplicableError("answers that differ cannot be checked together: explain each in a call of its own")
    return with_checks(results, source, request)


def _refuse_other_calls(given: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse arguments that stand for what the encoder reads, or for what the decoder writes."""
    kind = type(unwrap(model)).__name__
    if given.get("encoder_outputs") is not None:
        raise InputError(
            f"encoder_outputs has what the encoder of {kind} has computed, and its input is explained: leave "
            "encoder_outputs out, and pass the text, image or sound"
        )
    if given.get("labels") is not None and given.get(DECODER_IDS) is None:
        raise InputError(
            f"labels are turned into what the decoder of {kind} reads: leave them out, and pass a dict with "
            f"{DECODER_IDS}, or target=vitrail.targets.answer(…) with a text"
        )


def _unit_spans(prompts: Sequence[EncodedPrompt] | None, units: Any) -> list[tuple[Span, ...]] | None:
    """Characters of the units of each text; None where the encoder reads no texts."""
    if prompts is None:
        if units is not None:
            raise OptionError(f"units={units!r} are parts of a text, and the encoder reads none: leave units out")
        return None
    each = units_of_each(units, len(prompts))
    return [spans_of(prompt.encoded, one) for one, prompt in zip(each, prompts, strict=True)]


def _by_column(prompts: Sequence[EncodedPrompt], units: Sequence[Sequence[int]]) -> Tensor:
    """The unit of each token where it stands in the call, −1 for none, shape (texts, tokens)."""
    found = torch.full((len(prompts), max(prompt.width for prompt in prompts)), -1)
    for i, (prompt, own) in enumerate(zip(prompts, units, strict=True)):
        found[i, list(prompt.columns)] = torch.tensor(own)
    return found


def _by_example(value: Any, count: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and len(value) == count


def encoder_inputs(model: nn.Module, inputs: Any, tokenizer: Any) -> tuple[dict[str, Any], list[EncodedPrompt] | None]:
    """The arguments for the encoder, and its texts where it reads texts."""
    if isinstance(inputs, Mapping):
        given = dict(inputs)
        ids = given.get("input_ids")
        if not isinstance(ids, Tensor) or tokenizer is None:
            return given, None
        names = ("input_ids", "attention_mask")
        return given, encode_prompts({k: given.get(k) for k in names}, getattr(tokenizer, "tokenizer", tokenizer))
    if isinstance(inputs, Tensor):
        name = str(getattr(unwrap(model), "main_input_name", "input_ids"))
        return {name: inputs}, None
    if tokenizer is None:
        raise InputError("texts need the tokenizer of the model: pass tokenizer=…, or a dict of tensors")
    settings = tokenizer if isinstance(tokenizer, TokenizerSettings) else TokenizerSettings(tokenizer)
    prompts = encode_prompts(inputs, settings)
    padding = getattr(settings.tokenizer, "pad_token_id", None) or 0
    given = padded_inputs(model, [prompt.ids for prompt in prompts], int(padding))
    special = [[not c for c in p.encoded.content] for p in prompts]
    longest = max(map(len, special))
    given[SPECIAL_TOKENS] = torch.tensor([[*row, *[True] * (longest - len(row))] for row in special])
    return given, prompts


def decoder_start(model: nn.Module, given: Mapping[str, Any], count: int) -> Tensor:
    """What the decoder has written: what was given, or its start token."""
    stated = given.get(DECODER_IDS)
    if isinstance(stated, Tensor):
        return stated
    module: Any = unwrap(model)
    configs = (getattr(module, "generation_config", None), getattr(module, "config", None))
    named = [getattr(c, name, None) for c in configs for name in ("decoder_start_token_id", "bos_token_id")]
    first = next((one for one in named if isinstance(one, int)), None)
    if first is None:
        raise InputError(
            f"the config of {type(module).__name__} states no decoder_start_token_id: pass a dict with "
            "decoder_input_ids, what the decoder has written so far"
        )
    device = next((v.device for v in given.values() if isinstance(v, Tensor)), torch.device("cpu"))
    return torch.full((count, 1), first, dtype=torch.long, device=device)


def _calls(terms: Sequence[Sequence[tuple[TargetTerm, ...]]]) -> list[_DecoderCall]:
    """The calls that some targets need: one where nothing is appended, else one for each example."""
    appended = [row[0][0].forced for row in terms]
    own = tuple(tuple(one[0] for one in row) for row in terms)
    if len(set(appended)) == 1:
        return [_DecoderCall(tuple(range(len(terms))), appended[0], own)]
    return [_DecoderCall((i,), appended[i], (own[i],)) for i in range(len(terms))]


def _by_terms(
    example: int, row: Sequence[tuple[TargetTerm, ...]], asked: Sequence[Any],
    run: Callable[[_DecoderCall], dict[str, Explanation]],
) -> dict[str, Explanation]:  # fmt: skip
    """Targets of one example whose answers differ, each in a call of its own; a contrast is a difference of maps."""
    found: dict[str, list[Explanation]] = {}
    for terms, target in zip(row, asked, strict=True):
        own = [run(_DecoderCall((example,), term.forced, ((term,),))) for term in terms]
        for label, first in own[0].items():
            result = first if len(own) == 1 else answer_difference([part[label] for part in own], target)
            if result.grid.dim() == 4 and len(own) > 1:
                size = (int(first.maps.shape[-2]), int(first.maps.shape[-1]))
                result = replace(result, maps=normalise(upsample(result.grid, size), signed=True).float())
            found.setdefault(label, []).append(result)
    return {label: _side_by_side(targets) for label, targets in found.items()}


def _side_by_side(targets: Sequence[Explanation]) -> Explanation:
    """One explanation of several targets of one example."""
    joined = {name: torch.cat([getattr(e, name) for e in targets], 1) for name in ("maps", "grid", "constant")}
    records = tuple(record for e in targets for record in (e.named_targets or ((),))[0])
    seconds, signed = sum(e.seconds for e in targets), any(e.signed for e in targets)
    return replace(targets[0], **joined, named_targets=(records,), signed=signed, seconds=seconds, source=None)  # type: ignore[arg-type]


def _joined(parts: Sequence[Explanation]) -> Explanation:
    """One explanation from those of single examples."""
    first = parts[0]
    if len(parts) == 1:
        return first
    joined = {name: torch.cat([getattr(e, name) for e in parts]) for name in ("maps", "grid", "constant")}
    for name in ("images", "signal"):
        if getattr(first, name) is not None:
            joined[name] = torch.cat([getattr(e, name) for e in parts])
    records = tuple(row for e in parts for row in e.named_targets or ())
    seconds = sum(e.seconds for e in parts)
    return replace(first, **joined, named_targets=records or None, logits=None, seconds=seconds, source=None)  # type: ignore[arg-type]


def _with_text(
    explanation: Explanation, prompts: Sequence[EncodedPrompt] | None, request: Request,
    spans: Sequence[tuple[Span, ...]] | None,
) -> Explanation:  # fmt: skip
    """The explanation with the words of the encoder's texts, or their other units, where it read texts."""
    if prompts is None or spans is None or explanation.images is not None or explanation.grid.dim() != 3:
        return explanation
    grid = explanation.grid.clone()
    maps, constant, texts = torch.zeros_like(grid), explanation.constant.clone(), []
    reduction = getattr(request.tokenizer, "reduction", "sum")
    for i, prompt in enumerate(prompts):
        columns = torch.tensor(prompt.columns, device=grid.device)
        content = torch.tensor(prompt.encoded.content, device=grid.device)
        scores = grid[i][:, columns].masked_fill(~content, 0.0)
        grid[i] = 0.0
        grid[i][:, columns] = scores
        maps[i][:, columns[content]] = normalise(scores[:, content], signed=explanation.signed, axes=1)
        constant[i] = is_constant(scores[:, content], axes=1)[:, 0]
        seen = [True] * len(prompt.ids)
        texts.append(word_relevance(prompt.encoded, scores, seen, explanation.signed, reduction, spans[i]))
    return replace(explanation, grid=grid, maps=maps.float(), constant=constant, text=tuple(texts), source=None)
