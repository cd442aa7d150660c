"""Check the scores of prompts: words or other units are removed, and shifted orders are the null distribution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.inputs.map_source import PromptSource
from vitrail.methods.cost import ModelSize, size_of
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.token_target import TokenTarget
from vitrail.text.prompt_scorer import PromptScorer
from vitrail.text.text_units import unit_of_tokens
from vitrail.trust.check_run import CheckSettings
from vitrail.trust.input_removal import InputRemoval
from vitrail.trust.text_check import MIN_WORDS, WordCheckRun


class UnitRemoval(InputRemoval):
    """Evaluates a target of a language model with some units of the prompt removed by "mask" or "replace"."""

    device = torch.device("cpu")

    def __init__(
        self,
        source: PromptSource,
        explanation: Any,
        image: int,
        k: int,
        by: str | None = None,
        batch_size: int = 16,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        if explanation.named_targets is None:
            raise InputError("scores of prompts are checked for tokens and answers: the target of these is a function")
        prompt, text = source.prompts[image], explanation.text[image]
        target = explanation.named_targets[image][k].pinned
        self.scorer = PromptScorer(source.loaded.module, prompt, target, source.settings, by)
        self.by, self.words, self.count = self.scorer.removal, text.words, len(text.words)
        self.batch_size, self.advance = batch_size, advance
        self.owner = torch.tensor(unit_of_tokens(prompt.encoded.spans, text.spans))
        # Special tokens stay, as they do in the methods that remove words.
        self.owner[~torch.tensor(prompt.encoded.content)] = -1

    def relevance(self, explanation: Any, image: int, k: int) -> Tensor:
        """Scores of the units in an explanation, shape (units,)."""
        scores: Tensor = explanation.text[image].scores[k]
        return scores.double().cpu()

    def score(self, output: Tensor) -> Tensor:
        """The values themselves."""
        return output

    def output(self, keep: Tensor) -> Tensor:
        """Values of the target with some units kept, shape (n,)."""
        kept = torch.zeros(len(keep), self.count + 1, dtype=torch.bool)
        kept.scatter_(1, keep.cpu(), True)
        kept[:, -1] = True  # tokens of no unit
        return self.scorer(kept[:, self.owner])


class PromptCheckRun(WordCheckRun):
    """Checks the scores of one prompt and target."""

    def __init__(self, source: PromptSource, first: Any, settings: CheckSettings, remove: UnitRemoval) -> None:
        if remove.count < MIN_WORDS:
            raise InputError(
                f"a prompt of {remove.count} words is too short to be checked: use at least {MIN_WORDS} words, or "
                "units='tokens'. Among fewer, chance puts the one right word first too often"
            )
        self.prompt_source, self.units = source, remove
        levels = (*settings.budget.levels, 1 / remove.count)  # one word may decide
        super().__init__(source, first, replace(settings, budget=replace(settings.budget, levels=levels)), remove)

    @property
    def inputs(self) -> list[Any]:
        """The prompt, as a list of one."""
        return [self.prompt_source.prompts[self.image]]

    def _control_maps(self) -> dict[str, Tensor]:
        position = torch.arange(self.units.count, dtype=torch.float64)
        return {"length of words": torch.tensor([float(len(w)) for w in self.units.words]).double(), "last": position}

    def _score(self, output: Tensor) -> Tensor:
        return output

    @property
    def _has_probabilities(self) -> bool:
        return isinstance(self.named, TokenTarget)

    def _shown(self, scores: Tensor) -> Tensor:
        return scores.exp() if self._has_probabilities else scores  # the scorer gives log-probabilities

    def _other_class(self, first: Any) -> int | NamedTarget | None:  # noqa: ARG002
        return self.units.scorer.other()

    def _sample(self) -> Tensor:
        return torch.tensor([self.prompt_source.prompts[self.image].ids[:16]])

    def _size(self) -> ModelSize:
        return size_of(self.prompt_source.structure)
