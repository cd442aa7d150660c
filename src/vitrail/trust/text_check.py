"""Check the word scores of texts: words are removed, and shifted orders are the null distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.inputs.map_source import TextSource
from vitrail.inputs.targets import class_scores
from vitrail.methods.cost import ModelSize
from vitrail.trust.check_run import SIGNIFICANT, CheckRun, CheckSettings
from vitrail.trust.null import shifted_orders
from vitrail.trust.removal import log_odds

#: How words can be removed.
REMOVALS = ("words", "mask")
#: In shorter texts, chance puts the one right word first more often than a significant result allows.
MIN_WORDS = round(1 / SIGNIFICANT)


class WordRemoval:
    """Runs a model on a text of which only some words are left.

    Args:
        source: The model, tokenizer and texts.
        words: The words of the text.
        by: "words" to leave words out, "mask" to put the tokenizer's mask in their place; None for "words".
        batch_size: Most texts in one forward pass.
        advance: Called with the number of texts after each forward pass.

    Attributes:
        by: What is used.
        count: Number of words.
        forwards: Texts evaluated so far.
    """

    def __init__(
        self,
        source: TextSource,
        words: Sequence[str],
        by: str | None = None,
        batch_size: int = 16,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        if by is not None and by not in REMOVALS:
            raise OptionError(f"removal={by!r} is not one of {', '.join(map(repr, REMOVALS))}, as a text needs")
        if len(words) < MIN_WORDS:
            raise InputError(
                f"a text of {len(words)} words is too short to be checked, pass at least {MIN_WORDS}: among fewer, "
                f"chance puts the one right word first in more than {100 * SIGNIFICANT:.0f} % of the orders"
            )
        self.source, self.words, self.by, self.count = source, tuple(words), by or "words", len(words)
        self.batch_size, self.advance, self.forwards = batch_size, advance, 0
        self.device = torch.device("cpu")
        self.mask = getattr(source.settings.tokenizer, "mask_token", None)
        if self.by == "mask" and not self.mask:
            raise OptionError("removal='mask' needs a tokenizer with a mask token: use removal='words'")

    def __call__(self, _: int, keep: Tensor, score: Callable[[Any], Tensor]) -> Tensor:
        """Evaluate a score with some words kept, for each of n selections of equal size; shape (n,), float64.

        Args:
            keep: Indices of the words that are kept, in order, shape (n, m).
            score: From logits, shape (b, C), to one number for each text.
        """
        values = []
        for start in range(0, len(keep), self.batch_size):
            texts = [self._text(row) for row in keep[start : start + self.batch_size].tolist()]
            values.append(score(self.source.predict(texts)).detach().double().cpu())
            self.forwards += len(texts)
            self.advance(len(texts))
        return torch.cat(values)

    def _text(self, kept: Sequence[int]) -> str:
        if self.by == "words":
            return " ".join(self.words[i] for i in kept)
        inside = set(kept)
        return " ".join(word if i in inside else str(self.mask) for i, word in enumerate(self.words))


class TextCheckRun(CheckRun):
    """Checks the word scores of one text and target."""

    unit = "words"

    def __init__(self, source: TextSource, first: Any, settings: CheckSettings, remove: WordRemoval) -> None:
        if first.targets is None:
            raise InputError("word scores are checked for classes: the target of these is a function")
        self.text = source.texts[settings.image]
        # A text may turn on one word, which every tenth order removes among a tenth of the words.
        budget = replace(settings.budget, levels=(*settings.budget.levels, 1 / remove.count))
        settings = replace(settings, budget=budget)
        self.own_source = source
        super().__init__(source, first, settings, remove)

    @property
    def inputs(self) -> list[str]:
        """The text, as a list of one."""
        return [self.text]

    def _values(self, explanation: Any, image: int | None = None, k: int | None = None) -> Tensor:
        found = explanation.text[self.image if image is None else image]
        scores: Tensor = found.scores[self.k if k is None else k]
        return scores.double().nan_to_num(0.0, 0.0, 0.0)

    def _copies(self, values: Tensor) -> Tensor:
        return shifted_orders(values, self.budget.copies, self.seed)

    def _control_maps(self) -> dict[str, Tensor]:
        return {"length of words": torch.tensor([float(len(word)) for word in self.remove.words], dtype=torch.float64)}

    def _score(self, output: Tensor) -> Tensor:
        scores = class_scores(output.double(), "logprob", self.groups)
        return log_odds(scores[:, self.targets[self.image, self.k].to(scores.device)])

    def _noisy(self) -> None:
        return None

    def _sample(self) -> Tensor:
        ids = self.own_source.settings.tokenizer(self.text, truncation=True, max_length=16)["input_ids"]
        return torch.tensor([ids])

    def _size(self) -> ModelSize:
        return ModelSize()._replace(grid=(1, self.remove.count))
