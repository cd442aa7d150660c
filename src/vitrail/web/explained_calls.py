"""What `vitrail.explain` takes for a model of the page: images, signals, texts, and questions about images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitrail.text.prompt_tokens import EncodedPrompt, encode_prompts, with_continuation
from vitrail.web.model_kind import signal_tensor
from vitrail.web.page_targets import PageTarget, RequestedTarget
from vitrail.web.served_model import ServedModel


def token_context(targets: Sequence[RequestedTarget] | None) -> PageTarget:
    """The question and the tokens before the targets, which all targets of a request share."""
    named = [target for target in targets or () if isinstance(target, PageTarget)]
    return named[0] if named else PageTarget("token")


def explained_call(
    served: ServedModel, raw_inputs: Sequence[Any], targets: Sequence[RequestedTarget] | None
) -> tuple[Any, dict[str, Any]]:
    """The inputs and further arguments of `vitrail.explain`."""
    if served.media != "image":
        return torch.cat([signal_tensor(one, served.loaded) for one in raw_inputs]), {}
    context = token_context(targets)
    if served.processor is not None:
        return question_call(served, raw_inputs[0], context.text or "", context.written), {
            "processor": served.processor
        }
    if served.reading is None:
        return [Image.fromarray(pixels) for pixels in raw_inputs], {"preprocess": served.preprocess_resized}
    given: list[Any] = list(raw_inputs)
    if served.target_kind == "token":
        given = [read_prompt(served, text, context.written) for text in raw_inputs]
    return given, {"tokenizer": served.reading}


def read_prompt(served: ServedModel, text: str, written: Sequence[int]) -> EncodedPrompt:
    """The tokens of a prompt, with those that the model wrote after it."""
    prompt = encode_prompts(text, served.reading)[0]
    return with_continuation(prompt, written, served.tokenizer) if written else prompt


def question_call(served: ServedModel, pixels: Any, question: str, written: Sequence[int]) -> dict[str, Any]:
    """The arguments of a vision-language model for a question about an image, with the words of the answer so far."""
    given = dict(served.processor(images=Image.fromarray(pixels), text=question, return_tensors="pt"))
    ids = given["input_ids"]
    more = torch.tensor([list(written)], dtype=ids.dtype).view(1, -1)
    for name, tensor in given.items():
        if isinstance(tensor, Tensor) and tensor.shape == ids.shape:
            fill = 1 if name == "attention_mask" else 0
            added = more if name == "input_ids" else torch.full_like(more, fill)
            given[name] = torch.cat([tensor, added.to(tensor.dtype)], 1)
    device = next((parameter.device for parameter in served.loaded.module.parameters()), None)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in given.items()}
