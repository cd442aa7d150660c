"""The model and inputs that maps were computed from, kept with an explanation for its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.models.loaded import LoadedModel


@dataclass(frozen=True)
class MapSource:
    """The model and inputs that maps were computed from, as far as checking them needs it.

    Attributes:
        loaded: The model.
        model_inputs: What it was called with.
        structure: What was found in it.
        target: The target if it was a function, otherwise None.
        explain: From images, methods with options and targets to explanations, as `vitrail.explain` gives them.
    """

    loaded: LoadedModel
    model_inputs: ModelInputs
    structure: ModelStructure
    target: Callable[[Any], Tensor] | None
    explain: Callable[..., Mapping[str, Any]]


@dataclass(frozen=True)
class TextSource:
    """The model and texts that word scores were computed from, as far as checking them needs it.

    Attributes:
        loaded: The model.
        texts: The texts.
        settings: The tokenizer settings.
        predict: From texts to logits, shape (B, C).
        explain: From texts, methods with options and targets to explanations, as `vitrail.explain` gives them.
        target: None; the targets of texts that can be checked are classes.
    """

    loaded: LoadedModel
    texts: tuple[str, ...]
    settings: Any
    predict: Callable[[Sequence[str]], Tensor]
    explain: Callable[..., Mapping[str, Any]]
    target: None = None


@dataclass(frozen=True)
class PromptSource:
    """The language model and prompts that scores were computed from, needed for checks.

    Attributes:
        loaded: The model.
        prompts: The tokenized prompts.
        settings: The tokenizer settings.
        structure: What was found in the model.
        explain: From prompts, methods with options and targets to explanations, as `vitrail.explain` gives them.
        target: None; the targets are in the explanation.
    """

    loaded: LoadedModel
    prompts: tuple[Any, ...]
    settings: Any
    structure: ModelStructure
    explain: Callable[..., Mapping[str, Any]]
    target: None = None


@dataclass(frozen=True)
class QuestionSource:
    """The vision-language model and questions that scores were computed from, needed for checks.

    Attributes:
        loaded: The model.
        questions: What it was called with, one example each.
        streams: For each example, the source of the explanation of its stream, and its row there.
        covers: For each example, the share of each position of its stream in each unit, shape (units, positions): the
            cells of the image first, then the words.
        structure: What was found in the model.
        target: The target of the streams if it was a function or is named, otherwise None.
        explain: From calls, methods with options and targets to explanations, as `vitrail.explain` gives them.
    """

    loaded: LoadedModel
    questions: tuple[ModelInputs, ...]
    streams: tuple[tuple[MapSource, int], ...]
    covers: tuple[Tensor, ...]
    structure: ModelStructure
    target: Callable[[Any], Tensor] | None
    explain: Callable[..., Mapping[str, Any]]


CheckSource = MapSource | TextSource | PromptSource | QuestionSource
"""What an explanation is checked on."""
