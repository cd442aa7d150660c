"""Probabilities of the targets of a request, from the output of the model for changed copies of one input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.outputs import class_logits
from vitrail.capture.score_function import class_probabilities
from vitrail.errors import InputError, ModelError
from vitrail.inputs.user_inputs import to_model_inputs
from vitrail.models import LoadedModel
from vitrail.targets.binding import bind_targets
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import OutputReader
from vitrail.targets.token_target import TokenTarget
from vitrail.trust.input_removal import DEFAULT_GRID, InputRemoval, PatchRemoval
from vitrail.trust.signal_removal import SignalRemoval, default_cells
from vitrail.web.explained_calls import question_call, token_context
from vitrail.web.page_targets import PageTarget, RequestedTarget
from vitrail.web.served_model import ServedModel

#: The fill for patches of an image about which a question is asked: image tokens of a text cannot be dropped.
QUESTION_FILL = "mean"


@dataclass(frozen=True, eq=False)
class TargetScores:
    """How to evaluate the targets of a request with some patches of the input removed.

    Attributes:
        remove: Evaluates the model with some patches kept.
        grid: Number of patches along each axis of the model's grid.
        read: From an output for n inputs to probabilities, shape (n, targets).
    """

    remove: InputRemoval
    grid: tuple[int, ...]
    read: Callable[[Any], Tensor]


def target_scores(
    served: ServedModel, raw_input: Any, targets: Sequence[RequestedTarget],
    advance: Callable[[int], None] = lambda _: None,
) -> TargetScores:  # fmt: skip
    """Prepare the evaluation of targets with some patches removed, as in the check.

    Prompts have their shares in a softmax over those given, boxes and regions the probability of their label, which is
    decided on the whole image.
    """
    loaded, call = served.loaded, _call(served, raw_input, targets)
    named = [target.named(served) for target in targets if isinstance(target, PageTarget)]
    if not named:
        classes = [int(target) for target in targets if isinstance(target, int)]
        return TargetScores(*_removal(served, loaded, call, advance), lambda output: _classes(served, output, classes))
    loaded, call, bound = bind_targets([named], loaded, call, tokenizer=served.tokenizer if served.processor else None)
    with frozen(loaded.module), torch.no_grad():
        whole = OutputReader(run_model(loaded.module, call), bound.context)
    pinned = [one.pin(whole, 0) for one in named]

    def read(output: Any) -> Tensor:
        reader = OutputReader(output, bound.context)
        found = torch.stack([target_probability(one, reader) for one in pinned], 1).double()
        return found.softmax(1) if served.target_kind == "prompt" else found

    return TargetScores(*_removal(served, loaded, call, advance), read)


def target_probability(pinned: NamedTarget, output: OutputReader) -> Tensor:
    """The probability of a pinned target for each input of a call, shape (n,); for a prompt its score.

    Raises:
        InputError: The target is a value without a probability, such as a depth.
    """
    label = getattr(pinned, "label", None)
    if isinstance(pinned, TokenTarget):
        return replace(pinned, score="logprob").values(output).exp()
    if pinned.kind == "box" and isinstance(label, int):
        found = output.query_probabilities()
        if found is not None:
            return found[:, pinned.query, label]  # type: ignore[attr-defined]
    if pinned.kind == "region":
        if output.query_masks() is not None:
            return pinned.values(output).sigmoid()
        scores = output.dense().float()
        if scores.shape[1] < 2 or not isinstance(label, int):
            raise InputError("this output has no probabilities: the check compares its values")
        shares = scores.softmax(1)
        return (shares[:, label] * pinned.weights(shares)).flatten(1).sum(1)  # type: ignore[attr-defined,no-any-return]
    return pinned.values(output)


def _call(served: ServedModel, raw_input: Any, targets: Sequence[RequestedTarget]) -> ModelInputs:
    if served.processor is None:
        return served.model_inputs(raw_input)
    context = token_context(targets)
    arguments = question_call(served, raw_input, context.text or "", context.written)
    images = next(name for name, value in arguments.items() if value.is_floating_point())
    return to_model_inputs(arguments, served.loaded, None, images)


def _classes(served: ServedModel, output: Any, classes: list[int]) -> Tensor:
    logits = class_logits(served.loaded.module, output)
    if logits is None:
        raise ModelError("the model returned no class scores for an input with removed patches")
    return class_probabilities(served.loaded.module, logits, served.loaded.scores)[:, classes]


def _removal(
    served: ServedModel, loaded: LoadedModel, call: ModelInputs, advance: Callable[[int], None]
) -> tuple[InputRemoval, tuple[int, ...]]:
    if served.media != "image":
        cells = served.structure.layout.grid or default_cells(call)
        return SignalRemoval(loaded, call, cells, None, served.batch_size, advance), cells
    plane = served.image_grid or served.structure.layout.plane or DEFAULT_GRID
    by = None if served.processor is None else QUESTION_FILL
    return PatchRemoval(loaded, call, plane, by, served.batch_size, advance), plane
