"""The structure of models that write texts, on which requests are checked before they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.merged_stream import STREAM, StreamModel, find_merged_stream, stream_call
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.structure import read_structure
from vitrail.errors import ModelError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.pipeline.explain import explain
from vitrail.targets import token
from vitrail.targets.binding import bind_targets
from vitrail.targets.output_reader import CallContext, OutputReader

if TYPE_CHECKING:
    from vitrail.web.model import ServedModel

#: A question about any image.
QUESTION = "What is in the image?"


def read_token_structure(served: ServedModel, example: Any) -> tuple[ModelStructure, int, tuple[int, int] | None]:
    """Read the structure of a model that writes texts.

    Args:
        served: A language model, or a vision-language model.
        example: Any text, or pixels at the model's input size, shape (height, width, 3).

    Returns:
        The structure, the number of tokens in the vocabulary, and rows and columns of maps on images.

    Raises:
        ModelError: The image tokens of the model have no place on the image.
    """
    loaded, module = served.loaded, unwrap(served.loaded.module)
    if served.processor is None:
        inputs = served.model_inputs(example)
        _, inputs, bound = bind_targets(token(), loaded, inputs, tokenizer=served.tokenizer)
        return read_structure(module, inputs, None, bound), _vocabulary(module, inputs), None
    arguments = dict(served.processor(images=Image.fromarray(example), text=QUESTION, return_tensors="pt"))
    inputs = to_model_inputs(arguments, loaded, None, "input_ids")
    stream = find_merged_stream(module, inputs)
    if stream.owners is None:
        raise ModelError(f"the image tokens of {served.title} have no place on the image: use the Python API")
    called = StreamModel(module, stream.place).eval()
    given = to_model_inputs(
        stream_call(module, inputs, stream), type(loaded)(called, None, None, served.title), {STREAM: "patches"}, STREAM
    )
    _, given, bound = bind_targets(token(), type(loaded)(called, None, None, served.title), given)
    structure = read_structure(called, given, None, bound)
    found = explain(loaded, arguments, "random", processor=served.processor)
    return structure, _vocabulary(module, inputs), (int(found.grid.shape[-2]), int(found.grid.shape[-1]))


def _vocabulary(module: Any, inputs: ModelInputs) -> int:
    with frozen(module), torch.inference_mode():
        return int(OutputReader(run_model(module, inputs), CallContext(module)).token_scores().shape[-1])
