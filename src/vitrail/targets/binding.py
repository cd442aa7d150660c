"""Bind named targets to a call: add their texts to it, embed images they compare with, and note what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.errors import TargetError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models.image_geometry import ImageGeometry
from vitrail.models.loaded import LoadedModel, processor_preprocess
from vitrail.models.preprocess import Preprocess
from vitrail.targets.bound_targets import BoundTargets, target_rows_of
from vitrail.targets.contrasts import Contrast
from vitrail.targets.embeddings import SimilarTo
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import CallContext, OutputReader, TextColumns
from vitrail.targets.text_call import IDS, add_texts, reads_texts
from vitrail.targets.token_context import TokenContext, tokenizer_of


def with_processor(loaded: LoadedModel, target: Any) -> LoadedModel:
    """The model with the preprocessing of a target's processor, where its own is unknown or a guess."""
    known = loaded.preprocess
    if known is not None and not (isinstance(known, Preprocess) and known.guessed):
        return loaded
    rows = target if isinstance(target, list | tuple) else [target]
    flat = [one for row in rows for one in (row if isinstance(row, list | tuple) else [row])]
    for one in flat:
        processor = getattr(one, "processor", None)
        images = getattr(processor, "image_processor", processor)
        if hasattr(images, "to_dict") and hasattr(images, "image_mean"):
            return replace(loaded, preprocess=processor_preprocess(images))
    return loaded


def bind_targets(
    target: Any,
    loaded: LoadedModel,
    model_inputs: ModelInputs,
    geometries: Sequence[ImageGeometry | None] | None = None,
    tokenizer: Any = None,
) -> tuple[LoadedModel, ModelInputs, BoundTargets]:
    """Bind the targets of a call to its model and inputs.

    Returns:
        The model that is called, its inputs with the texts of the targets, and the targets.
    """
    rows = target_rows_of(target, model_inputs.batch)
    different = tuple(dict.fromkeys(one for row in rows for one in row))
    read = reads_texts(loaded.module) and model_inputs.called(IDS) is None
    texts = tuple(dict.fromkeys(text for one in different if one.needs_texts or read for text in one.texts))
    processor = next((one.processor for one in different if one.processor is not None), None)
    embedded = {one: _with_embeddings(one, loaded) for one in different}
    rows = tuple(tuple(embedded[one] for one in row) for row in rows)
    columns: TextColumns | None = None
    if texts:
        loaded, model_inputs, columns = add_texts(loaded, model_inputs, texts, processor)
    if any(one.reads_positions for one in different):
        model_inputs = replace(model_inputs, fixed_positions=True)
    image = model_inputs.image
    size = None if image is None else (int(image.shape[-2]), int(image.shape[-1]))
    tokens = TokenContext.of(model_inputs, tokenizer_of(tokenizer))
    context = CallContext(loaded.module, loaded.classes, size, columns, tokens)
    return loaded, model_inputs, BoundTargets(rows, context, tuple(geometries or ()))


def _with_embeddings(target: NamedTarget, loaded: LoadedModel) -> NamedTarget:
    """The target, where images to compare with are replaced by their embeddings."""
    if isinstance(target, Contrast):
        others = None if target.against is None else tuple(_with_embeddings(one, loaded) for one in target.against)
        return replace(target, first=_with_embeddings(target.first, loaded), against=others)
    if not isinstance(target, SimilarTo) or target.embedding is not None:
        return target
    model_inputs = to_model_inputs(target.image, loaded)
    if model_inputs.batch != 1:
        raise TargetError(f"similar_to takes one image, and {model_inputs.batch} were given")
    with frozen(loaded.module), torch.no_grad():
        output = run_model(loaded.module, model_inputs)
    return target.with_embedding(OutputReader(output, CallContext(loaded.module)).image_embedding()[0])
