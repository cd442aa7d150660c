"""Explain every token that a model writes after an image, a sound or the text of an encoder: its sources in these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.model_call import run_model
from vitrail.errors import InputError, NotApplicableError
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
from vitrail.text.prompt_tokens import continuation_pieces, encode_prompts, special_ids
from vitrail.text.tokens import Span, word_spans


def explain_call_generation(
    loaded: LoadedModel, inputs: Mapping[str, Any], method: str | None, processor: Any, count: int,
    continuation: str | Sequence[int] | None, score: str | None, options: Mapping[str, Any],
) -> GenerationExplanation:  # fmt: skip
    """Explain what a model writes after one example; see `vitrail.explain_generation`.

    Args:
        loaded: A vision-language model, or an encoder–decoder.
        inputs: Its arguments: what its processor or tokenizer returned for one example.
        method: A method's name.
        processor: The processor, or the tokenizer.
        count: Most tokens that are generated. Every step calls the whole model, since caches of such models differ.
        continuation: What is explained instead.
        score: Score of each token.
        options: Options of `vitrail.explain` and of the method.

    Raises:
        InputError: Nothing was generated.
    """
    model, tokenizer = loaded.module, getattr(processor, "tokenizer", processor)
    main, writes = "input_ids" if "input_ids" in inputs else None, is_encoder_decoder(model)
    call = to_model_inputs(dict(inputs), loaded, options.get("roles"), main, None)
    if writes:
        inputs = {**inputs, DECODER_IDS: decoder_start(model, inputs, call.batch)}
        call = to_model_inputs(inputs, loaded, options.get("roles"), main, None)
    names = ("input_ids", "attention_mask")
    prompt = None if main is None else encode_prompts({k: call.kwargs.get(k) for k in names}, tokenizer)[0]
    if continuation is None:
        end = getattr(tokenizer, "eos_token_id", None)
        ids = greedy_continuation(model, lambda ids: run_model(model, continued_call(call, prompt, ids)), count, end)
    else:
        ids = encoded_answer(continuation, tokenizer) if isinstance(continuation, str) else tuple(continuation)
    if not ids:
        raise InputError("the model wrote nothing after the prompt: it ends the text at once; pass continuation=…")
    before = () if prompt is None or writes else prompt.ids
    start = int(call.kwargs[DECODER_IDS].shape[1]) if writes else len(before)
    targets = [[TokenTarget(index, start + t - 1, score) for t, index in enumerate(ids)]]
    given = {name: value for name, value in continued_call(call, prompt, ids[:-1]).kwargs.items() if value is not None}
    found: Any = explain(loaded, given, method, processor=processor, target=targets, **options)
    return _assembled(found, before, ids, tokenizer, loaded.name)


def _assembled(
    found: Explanation, before: Sequence[int], ids: Sequence[int], tokenizer: Any, name: str
) -> GenerationExplanation:
    """Tokens of the text without image tokens, then all generated ones, with their relevance.

    Args:
        found: The explanation, with a target for each generated token.
        before: Tokens that the generated ones follow; none for an encoder–decoder, whose decoder is not explained.
        ids: The generated tokens.
        tokenizer: The tokenizer.
        name: The model's name.
    """
    assert found.named_targets is not None
    read, special = None if found.text is None else found.text[0], special_ids(tokenizer)
    shown = [t for t, index in enumerate(ids[:-1]) if index not in special] if before else []
    own = 0 if read is None else len(read.tokens) - len(shown)
    matrix, text, names, spans = torch.zeros(len(ids), own + len(ids)), "", tuple[str, ...](), list[Span]()
    if read is not None:
        matrix[:, :own] = read.token_scores[:, :own]
        matrix[:, [own + t for t in shown]] = read.token_scores[:, own:].float()
        names, spans = read.tokens[:own], list(read.token_spans[:own])
        text = read.text[: max((end for _, end in spans), default=0)]
    start = at = len(text)
    pieces = continuation_pieces(before, ids, tokenizer)
    if text and not before and not pieces[0].startswith(" "):
        pieces[0] = f" {pieces[0]}"  # the text of a decoder begins anew
    for index, piece in zip(ids, pieces, strict=True):
        spans.append((0, 0) if index in special else (at, at + len(piece)))
        at += len(piece)
    text += "".join(pieces)
    probabilities = torch.tensor([getattr(one.pinned, "probability", 0.0) for one in found.named_targets[0]]).double()
    grid, pixels = _picture(found)
    return GenerationExplanation(
        found, found.method, text, start, (*names, *tokenizer.convert_ids_to_tokens(list(ids))), tuple(spans), own,
        matrix, tuple(probabilities.log().tolist()), word_spans(text), found.signed, name, grid, pixels,
    )  # fmt: skip


def _picture(found: Explanation) -> tuple[Tensor | None, Tensor | None]:
    """Relevance of the cells of an image for each token, and the image; None for texts alone.

    A spectrogram is an image with time from left to right and high frequencies at the top.
    """
    if found.rgb_images is not None:
        return found.grid[0].float().cpu(), torch.from_numpy(found.rgb_images[0].copy())
    if found.signal is None:
        return None, None
    names = [axis.name for axis in found.axes]
    if set(names) != {"time", "frequency"}:
        raise NotApplicableError(
            f"generated words are shown beside texts, images and spectrograms, and the axes of this input are "
            f"{', '.join(names)}: explain each word with vitrail.explain(…, target=vitrail.targets.token(…))"
        )
    grid, signal = found.grid[0].float().cpu(), found.signal[0, 0].float().cpu()
    if names[0] == "time":
        grid, signal = grid.mT, signal.mT
    low, high = signal.min(), signal.max()
    shades = (255 * (signal - low) / (high - low).clamp_min(1e-12)).round().to(torch.uint8)
    return grid.flip(1), shades.flip(0)[..., None].expand(-1, -1, 3).contiguous()
