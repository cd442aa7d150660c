"""Check the word scores of texts: words are removed, and shifted orders are the null distribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.inputs.map_source import TextSource
from vitrail.inputs.targets import class_scores
from vitrail.methods.cost import ModelSize
from vitrail.trust.check_run import SIGNIFICANT, CheckRun, CheckSettings
from vitrail.trust.input_removal import WordRemoval, log_odds
from vitrail.trust.null import shifted_orders

#: In shorter texts, chance puts the one right word first more often than a significant result allows.
MIN_WORDS = round(1 / SIGNIFICANT)


class WordCheckRun(CheckRun):
    """Checks scores of words: of a text or of a prompt."""

    unit = "words"

    def _values(self, explanation: Any, image: int | None = None, k: int | None = None) -> Tensor:
        text = explanation.text[self.image if image is None else image]
        scores: Tensor = text.scores[self.k if k is None else k]
        return scores.double().nan_to_num(0.0, 0.0, 0.0)

    def _copies(self, values: Tensor) -> Tensor:
        return shifted_orders(values, self.budget.copies, self.seed)

    def _noisy(self) -> None:
        return None


class TextCheckRun(WordCheckRun):
    """Checks the word scores of one text and target."""

    def __init__(self, source: TextSource, first: Any, settings: CheckSettings, remove: WordRemoval) -> None:
        if first.targets is None:
            raise InputError("word scores are checked for classes: the target of these is a function")
        if remove.count < MIN_WORDS:
            raise InputError(
                f"a text of {remove.count} words is too short to be checked, pass at least {MIN_WORDS}: among fewer, "
                f"chance puts the one right word first in more than {100 * SIGNIFICANT:.0f} % of the orders"
            )
        self.words = remove.words
        self.text = source.texts[settings.image]
        # One word may decide a text, and a random order has it in the first tenth in one case of ten.
        budget = replace(settings.budget, levels=(*settings.budget.levels, 1 / remove.count))
        settings = replace(settings, budget=budget)
        self.text_source = source
        super().__init__(source, first, settings, remove)

    @property
    def inputs(self) -> list[str]:
        """The text, as a list of one."""
        return [self.text]

    def _control_maps(self) -> dict[str, Tensor]:
        return {"length of words": torch.tensor([float(len(word)) for word in self.words], dtype=torch.float64)}

    def _score(self, output: Tensor) -> Tensor:
        scores = class_scores(output.double(), "logprob", self.groups, self.scores)
        return log_odds(scores[:, self.targets[self.image, self.k].to(scores.device)])

    def _sample(self) -> Tensor:
        ids = self.text_source.settings.tokenizer(self.text, truncation=True, max_length=16)["input_ids"]
        return torch.tensor([ids])

    def _size(self) -> ModelSize:
        return ModelSize()._replace(grid=(1, self.remove.count))
