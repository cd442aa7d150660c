"""The structure of models that write texts, on which requests are checked before they run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from vitrail.models import LoadedModel
from vitrail.pipeline.explain import explain
from vitrail.targets import token
from vitrail.targets.binding import bind_targets
from vitrail.targets.output_reader import CallContext, OutputReader

#: A question about any image.
QUESTION = "What is in the image?"


def read_text_structure(loaded: LoadedModel, inputs: ModelInputs, tokenizer: Any) -> tuple[ModelStructure, int]:
    """Read the structure of a language model, and the number of tokens in its vocabulary."""
    module = unwrap(loaded.module)
    _, inputs, bound = bind_targets(token(), loaded, inputs, tokenizer=tokenizer)
    return read_structure(module, inputs, None, bound), _vocabulary(module, inputs)


def read_question_structure(
    loaded: LoadedModel, processor: Any, pixels: Any
) -> tuple[ModelStructure, int, tuple[int, int]]:
    """Read the structure of a vision-language model.

    Returns:
        The structure, the number of tokens in the vocabulary, and rows and columns of maps on images.
    """
    module = unwrap(loaded.module)
    arguments = dict(processor(images=Image.fromarray(pixels), text=QUESTION, return_tensors="pt"))
    inputs = to_model_inputs(arguments, loaded, None, "input_ids")
    stream = find_merged_stream(module, inputs)
    if stream.owners is None:
        raise ModelError(f"the image tokens of {loaded.name} have no place on the image: use the Python API")
    called = replace(loaded, module=StreamModel(module, stream.place).eval(), preprocess=None)
    given = to_model_inputs(stream_call(module, inputs, stream), called, {STREAM: "patches"}, STREAM)
    _, given, bound = bind_targets(token(), called, given)
    structure = read_structure(called.module, given, None, bound)
    found = explain(loaded, arguments, "random", processor=processor)
    return structure, _vocabulary(module, inputs), (int(found.grid.shape[-2]), int(found.grid.shape[-1]))


def _vocabulary(module: Any, inputs: ModelInputs) -> int:
    with frozen(module), torch.inference_mode():
        return int(OutputReader(run_model(module, inputs), CallContext(module)).token_scores().shape[-1])
