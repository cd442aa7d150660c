"""Explain every token that a language model writes: a matrix of generated tokens by tokens of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vitrail.capture.frozen import gradients_enabled
from vitrail.capture.inputs import SPECIAL_TOKENS
from vitrail.errors import InputError, OptionError
from vitrail.inputs.map_source import PromptSource
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models import LoadedModel
from vitrail.pipeline.call_generation import explain_call_generation
from vitrail.pipeline.encoder_decoders import encoder_inputs, is_encoder_decoder
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation
from vitrail.pipeline.generation_explanation import GenerationExplanation
from vitrail.pipeline.image_questions import is_image_question
from vitrail.pipeline.language_prompts import encoded_prompts
from vitrail.pipeline.prepared_model import unwrapped_model
from vitrail.pipeline.text_windows import spans_of
from vitrail.targets.token_context import encoded_answer
from vitrail.targets.token_target import TokenTarget
from vitrail.text.greedy_decoding import greedy_tokens
from vitrail.text.language_model import check_length, context_limit
from vitrail.text.prompt_tokens import EncodedPrompt, is_chat, with_continuation
from vitrail.text.text_units import divided_at
from vitrail.text.tokens import TokenizerSettings


@gradients_enabled()
def explain_generation(
    model: nn.Module | LoadedModel,
    prompt: Any,
    method: str | None = None,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    max_new_tokens: int = 40,
    continuation: str | Sequence[Any] | None = None,
    score: str | None = None,
    units: Any = None,
    batch_size: int | None = None,
    **options: Any,
) -> GenerationExplanation | list[GenerationExplanation]:
    """Explain every token that a language model writes after a prompt.

    One forward pass over the prompt and the continuation serves all tokens; methods with gradients take a backward pass
    for each, and methods that remove parts of the text evaluate all tokens at once. Several prompts run in one batch.

    Args:
        model: The model, or what ``load`` returned.
        prompt: A text, or a chat as a list of messages; or a list of these. For a vision-language model, and for an
            encoder–decoder of images or sound, what its processor returned.
        method: A method's name, as for `vitrail.explain`.
        tokenizer: The model's fast tokenizer, or `vitrail.text.TokenizerSettings`.
        processor: The processor of a vision-language model; the same as ``tokenizer``.
        max_new_tokens: Most tokens that are generated, greedily: the likeliest token at each step.
        continuation: A text, or token ids, that is explained instead of what the model would generate; one for each of
            several prompts.
        score: What is explained of each token: its log-odds, "logodds", its "logit" or its log-probability, "logprob",
            see `vitrail.targets.token`.
        units: Sources of the words, see `vitrail.explain`; words by default.
        batch_size: Most texts in a forward pass.
        **options: Options of the method.

    Returns:
        The explanation, or a list of them for a list of prompts.

    Raises:
        InputError: A prompt is empty or too long, or nothing was generated.
    """
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise OptionError(f"max_new_tokens={max_new_tokens!r} must be an integer of at least 1")
    loaded = unwrapped_model(model, None)
    tokenizer = processor if tokenizer is None else tokenizer
    if tokenizer is None:
        raise InputError(
            "the words of a language model are read by its tokenizer: pass tokenizer=…, or processor=… for a question "
            "about an image"
        )
    if is_image_question(prompt) or is_encoder_decoder(loaded.module):
        options["batch_size"] = batch_size
        return _of_calls(loaded, prompt, method, tokenizer, max_new_tokens, continuation, score, units, options)
    encoded, settings = encoded_prompts(loaded.module, prompt, tokenizer)
    single = isinstance(prompt, str) or is_chat(prompt)
    given = [continuation] if single else [None] * len(encoded) if continuation is None else list(continuation)
    if len(given) != len(encoded) or (not single and isinstance(continuation, str)):
        raise InputError(f"{len(encoded)} prompts need a list of as many continuations, or continuation=None")
    texts = [
        _continued(loaded.module, one, text, settings, max_new_tokens) for one, text in zip(encoded, given, strict=True)
    ]
    most = max(len(ids) for ids, *_ in texts)
    targets = [
        # Every prompt has as many targets: the last one is repeated, and left out of the result.
        [TokenTarget(ids[min(t, len(ids) - 1)], start + min(t, len(ids) - 1) - 1, score) for t in range(most)]
        for (ids, *_), start in zip(texts, (len(one.ids) for one in encoded), strict=True)
    ]
    found = explain(
        loaded, [read for _, _, read in texts], method, tokenizer=settings, target=targets, batch_size=batch_size,
        units=units, **options,
    )  # fmt: skip
    results = [
        _of_prompt(found, b, encoded[b], ids, whole, units is not None, loaded.name)
        for b, (ids, whole, _) in enumerate(texts)
    ]
    return results[0] if single else results


def _of_calls(
    loaded: LoadedModel, inputs: Any, method: str | None, processor: Any, count: int, continuation: Any,
    score: str | None, units: Any, options: dict[str, Any],
) -> GenerationExplanation | list[GenerationExplanation]:  # fmt: skip
    """Explain questions about images, or inputs of an encoder–decoder, one after the other."""
    if units is not None:
        raise OptionError(
            f"units={units!r}: the sources are words for prompts with an image or for an encoder; leave units out"
        )
    arguments = dict(inputs) if is_image_question(inputs) else encoder_inputs(loaded.module, inputs, processor)[0]
    arguments.pop(SPECIAL_TOKENS, None)
    main = "input_ids" if "input_ids" in arguments else None
    call = to_model_inputs(arguments, loaded, options.get("roles"), main, None)
    single = call.batch == 1 and not isinstance(inputs, list | tuple)
    given = [continuation] if single else [None] * call.batch if continuation is None else list(continuation)
    if len(given) != call.batch or (not single and isinstance(continuation, str)):
        raise InputError(f"{call.batch} prompts need a list of as many continuations, or continuation=None")
    found = []
    for i, text in enumerate(given):
        kept = call.select(slice(i, i + 1)).kwargs
        own = {name: value for name, value in kept.items() if value is not None}
        found.append(explain_call_generation(loaded, own, method, processor, count, text, score, options))
    return found[0] if single else found


def _continued(
    model: nn.Module, prompt: EncodedPrompt, continuation: Any, settings: TokenizerSettings, most: int
) -> tuple[tuple[int, ...], EncodedPrompt, EncodedPrompt]:
    """Tokens after a prompt, the prompt with them, and with all but the last, which no score depends on."""
    limit, inner = context_limit(model, settings.window), settings.tokenizer
    check_length(len(prompt.ids), limit, "the prompt")
    if continuation is None:
        room = most if limit is None else min(most, limit - len(prompt.ids) + 1)
        ids = greedy_tokens(model, prompt.ids, room, getattr(inner, "eos_token_id", None))
    else:
        ids = encoded_answer(continuation, inner) if isinstance(continuation, str) else tuple(map(int, continuation))
    if not ids:
        raise InputError("the model wrote nothing after the prompt: it ends the text at once; pass continuation=…")
    check_length(len(prompt.ids) + len(ids) - 1, limit, "the prompt with its continuation")
    return ids, with_continuation(prompt, ids, inner), with_continuation(prompt, ids[:-1], inner)


def _of_prompt(
    found: Explanation, b: int, prompt: EncodedPrompt, ids: Sequence[int], whole: EncodedPrompt, units: bool, name: str
) -> GenerationExplanation:
    """The part of one prompt."""
    assert found.text is not None
    assert found.named_targets is not None
    count, here = len(ids), slice(b, b + 1)
    matrix = found.grid.new_zeros(count, len(whole.ids), dtype=torch.float32)
    matrix[:, : len(whole.ids) - 1] = found.grid[b, :count, : len(whole.ids) - 1]
    spans = tuple(
        s if content else (0, 0) for s, content in zip(whole.encoded.spans, whole.encoded.content, strict=True)
    )
    sources = found.text[b].spans if units else spans_of(whole.encoded, None)
    sources = divided_at(sources, whole.encoded.text, len(prompt.encoded.text))
    probabilities = [getattr(record.pinned, "probability", 0.0) for record in found.named_targets[b][:count]]
    log_probabilities = tuple(torch.tensor(probabilities, dtype=torch.float64).log().tolist())
    source = found.source
    if isinstance(source, PromptSource):
        source = replace(source, prompts=source.prompts[here])
    own = replace(
        found, source=source, maps=found.maps[here, :count], grid=found.grid[here, :count], text=found.text[here],
        constant=found.constant[here, :count], named_targets=(found.named_targets[b][:count],),
    )  # fmt: skip
    return GenerationExplanation(
        own, found.method, whole.encoded.text, len(prompt.encoded.text), whole.encoded.tokens, spans, len(prompt.ids),
        matrix.cpu(), log_probabilities, tuple(sources), found.signed, name,
    )  # fmt: skip
