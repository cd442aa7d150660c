"""What a language model or a vision-language model writes, and the likeliest tokens at one of its positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.text.greedy_decoding import greedy_tokens
from vitrail.text.language_model import check_length, context_limit
from vitrail.text.prompt_tokens import continuation_pieces, encode_prompts
from vitrail.web.explained_calls import question_call, token_context
from vitrail.web.page_targets import PageTarget
from vitrail.web.served_model import ServedModel

#: Most tokens that are generated.
MAX_WRITTEN = 24
#: Tokens that are listed at a position.
LISTED = 10


def next_tokens(served: ServedModel, raw_input: Any, asked: Sequence[PageTarget]) -> dict[str, Any]:
    """List what a model writes, and the likeliest tokens at one position.

    Returns:
        ``top``: the likeliest tokens, most probable first; ``asked``; ``written``: what the model writes greedily after
        the prompt or question; ``before``: the text that it has read at the position.
    """
    context = token_context(asked)
    start = _start(served, raw_input, context.text)
    written = _written(served, raw_input, context.text, start)
    along = _scores(served, raw_input, context.text, written)[len(start) - 1 :].double().softmax(-1)
    here = along
    if context.written != written[: len(context.written)]:  # a link may name tokens that the model does not write
        here = _scores(served, raw_input, context.text, context.written)[len(start) - 1 :].double().softmax(-1)
    probabilities = here[len(context.written)]

    def entry(index: int, before: tuple[int, ...], probability: Tensor) -> dict[str, Any]:
        target = PageTarget("token", context.text, token=index, written=before)
        return {"index": None, "target": target.to_json(), "name": target.name(served),
                "probability": float(probability), "corners": None}  # fmt: skip

    best = probabilities.topk(min(LISTED, len(probabilities))).indices.tolist()
    named = [one.token for one in asked if one.token is not None]
    text = raw_input if served.processor is None else (context.text or "")
    return {
        "top": [entry(index, context.written, probabilities[index]) for index in best],
        "asked": [entry(index, context.written, probabilities[index]) for index in named],
        "written": [entry(index, written[:t], along[t][index]) for t, index in enumerate(written)],
        "before": text + "".join(continuation_pieces(start, context.written, served.tokenizer)),
        "classes": served.class_count,
    }  # fmt: skip


def _start(served: ServedModel, raw_input: Any, question: str | None) -> tuple[int, ...]:
    """Tokens of the prompt, or of the question with its image."""
    if served.processor is not None:
        return tuple(question_call(served, raw_input, question or "", ())["input_ids"][0].tolist())
    ids = encode_prompts(raw_input, served.reading)[0].ids
    limit = context_limit(served.loaded.module, None if served.reading is None else served.reading.window)
    check_length(len(ids) + 1, limit, "the prompt")
    return ids


def _written(served: ServedModel, raw_input: Any, question: str | None, start: tuple[int, ...]) -> tuple[int, ...]:
    """The likeliest token at each step, until the model ends the text."""
    end, module = getattr(served.tokenizer, "eos_token_id", None), unwrap(served.loaded.module)
    limit = context_limit(module, None if served.reading is None else served.reading.window)
    count = MAX_WRITTEN if limit is None else max(0, min(MAX_WRITTEN, limit - len(start)))
    if served.processor is None:
        return greedy_tokens(module, start, count, end)
    found: list[int] = []
    while len(found) < count:
        index = int(_scores(served, raw_input, question, found)[-1].argmax())
        if index == end:
            break
        found.append(index)
    return tuple(found)


def _scores(served: ServedModel, raw_input: Any, question: str | None, written: Sequence[int]) -> Tensor:
    """Scores of the next token at each position, shape (positions, vocabulary)."""
    module = unwrap(served.loaded.module)
    if served.processor is not None:
        inputs = ModelInputs((), question_call(served, raw_input, question or "", written))
    else:
        ids = (*encode_prompts(raw_input, served.reading)[0].ids, *written)
        inputs = ModelInputs((), {"input_ids": torch.tensor([ids])}).onto(module)
    with frozen(module), torch.inference_mode():
        return OutputReader(run_model(module, inputs), CallContext(module)).token_scores()[0].float().cpu()
