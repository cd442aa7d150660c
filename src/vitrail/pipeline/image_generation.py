"""Explain every token that a vision-language model writes: its sources in the words and in the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.errors import InputError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models.loaded import LoadedModel
from vitrail.pipeline.encoder_decoders import DECODER_IDS, decoder_start, is_encoder_decoder
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.generation_explanation import GenerationExplanation
from vitrail.pipeline.image_questions import continued_call
from vitrail.targets.token_context import encoded_answer
from vitrail.targets.token_target import TokenTarget
from vitrail.text.greedy_decoding import greedy_continuation
from vitrail.text.prompt_tokens import EncodedPrompt, continuation_pieces, encode_prompts, special_ids
from vitrail.text.tokens import word_spans


def explain_image_generation(
    loaded: LoadedModel, inputs: Mapping[str, Any], method: str | None, processor: Any, count: int,
    continuation: str | Sequence[int] | None, score: str | None, options: Mapping[str, Any],
) -> GenerationExplanation:  # fmt: skip
    """Explain what a model writes about one image; see `vitrail.explain_generation`.

    Args:
        loaded: The model.
        inputs: What its processor returned for one image and text.
        method: A method's name.
        processor: The processor, or the tokenizer.
        count: Most tokens that are generated.
        continuation: What is explained instead.
        score: Score of each token.
        options: Options of `vitrail.explain` and of the method.

    Raises:
        InputError: Nothing was generated.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    writes = is_encoder_decoder(loaded.module)
    if writes:
        inputs = {**inputs, DECODER_IDS: decoder_start(loaded.module, inputs, len(inputs["input_ids"]))}
    call = to_model_inputs(inputs, loaded, options.get("roles"), "input_ids", None)
    prompt = encode_prompts({k: call.kwargs.get(k) for k in ("input_ids", "attention_mask")}, tokenizer)[0]
    if continuation is None:
        ids = _written(loaded.module, call, prompt, count, getattr(tokenizer, "eos_token_id", None))
    else:
        ids = encoded_answer(continuation, tokenizer) if isinstance(continuation, str) else tuple(continuation)
    if not ids:
        raise InputError("the model wrote nothing after the prompt: it ends the text at once; pass continuation=…")
    start = int(call.kwargs[DECODER_IDS].shape[1]) if writes else len(prompt.ids)
    targets = [[TokenTarget(index, start + t - 1, score) for t, index in enumerate(ids)]]
    given = {name: value for name, value in continued_call(call, prompt, ids[:-1]).kwargs.items() if value is not None}
    found: Any = explain(loaded, given, method, processor=processor, target=targets, **options)
    return _assembled(found, prompt, ids, tokenizer, writes, loaded.name)


def _written(
    model: nn.Module, call: ModelInputs, prompt: EncodedPrompt, count: int, end: int | None
) -> tuple[int, ...]:
    """The likeliest tokens; each step calls the whole model, since caches of vision-language models differ."""
    return greedy_continuation(model, lambda ids: run_model(model, continued_call(call, prompt, ids)), count, end)


def _assembled(
    found: Explanation, prompt: EncodedPrompt, ids: Sequence[int], tokenizer: Any, writes: bool, name: str
) -> GenerationExplanation:
    """Tokens of the prompt without image tokens, then all generated ones, with their relevance."""
    assert found.text is not None
    assert found.named_targets is not None
    assert found.rgb_images is not None
    read, special = found.text[0], special_ids(tokenizer)
    # The decoder of an encoder–decoder is not explained: its earlier tokens have no relevance.
    shown = [] if writes else [t for t, index in enumerate(ids[:-1]) if index not in special]
    own = len(read.tokens) - len(shown)
    matrix = torch.zeros(len(ids), own + len(ids))
    matrix[:, :own] = read.token_scores[:, :own]
    matrix[:, [own + t for t in shown]] = read.token_scores[:, own:].float()
    spans = list(read.token_spans[:own])
    at = start = spans[-1][1] if spans else 0
    pieces = continuation_pieces(prompt.ids, ids, tokenizer)
    if pieces[0][:1] not in ("", " ") and writes:  # the decoder's text begins anew
        pieces[0] = f" {pieces[0]}"
    for index, piece in zip(ids, pieces, strict=True):
        spans.append((0, 0) if index in special else (at, at + len(piece)))
        at += len(piece)
    text = read.text[:start] + "".join(pieces)
    probabilities = [getattr(record.pinned, "probability", 0.0) for record in found.named_targets[0]]
    return GenerationExplanation(
        found, found.method, text, start, (*read.tokens[:own], *tokenizer.convert_ids_to_tokens(list(ids))),
        tuple(spans), own, matrix, tuple(float(p) for p in np.log(probabilities)), word_spans(text), found.signed, name,
        found.grid[0].float().cpu(), torch.from_numpy(found.rgb_images[0].copy()),
    )  # fmt: skip
