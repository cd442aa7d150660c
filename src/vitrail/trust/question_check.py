"""Check the scores of questions about images: cells of the image and words are removed from the decoder's stream.

A question of few words keeps them: chance puts the one right word first too often. Cells alone are then removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.merged_stream import image_names
from vitrail.capture.removal import kept_mask
from vitrail.errors import InputError, OptionError
from vitrail.inputs.map_source import QuestionSource
from vitrail.scores.sensitivity import RADIUS, noise_samples
from vitrail.targets.bound_targets import BoundTargets
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.targets.token_target import TokenTarget
from vitrail.trust.check_run import CheckSettings
from vitrail.trust.image_check import ImageCheckRun
from vitrail.trust.input_removal import InputRemoval
from vitrail.trust.null import moved_maps, shifted_orders
from vitrail.trust.text_check import MIN_WORDS

#: How units are removed: their vectors become the mean of those of the image tokens, or of the words.
MEAN = "mean"


class QuestionRemoval(InputRemoval):
    """Runs a vision-language model on one example with some cells of the image and some words removed.

    An image token that stands for several cells, as one of an overview, is removed with more than half of them.
    """

    by = MEAN

    def __init__(
        self,
        source: QuestionSource,
        explanation: Any,
        image: int,
        k: int,
        by: str | None = None,
        batch_size: int = 16,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        if by not in (None, MEAN):
            raise OptionError(f"removal={by!r} is not {MEAN!r}, the way to remove image tokens and words")
        stream, row = source.streams[image]
        self.call, cover = source.questions[image], source.covers[image]
        self.module, self.stream_call = stream.loaded.module, stream.model_inputs.select(slice(row, row + 1))
        vectors = self.stream_call.numbers
        assert vectors is not None
        words = len(explanation.text[image].words)
        self.cells = len(cover) - words
        sides = (cover[: self.cells], cover[self.cells :])
        self.cover = cover if words >= MIN_WORDS or not self.cells else sides[0]
        self.vectors, self.device, self.count = vectors, vectors.device, len(self.cover)
        self.grid = tuple(explanation.grid.shape[2:])
        self.batch_size, self.advance = batch_size, advance
        self.mean = torch.zeros_like(vectors)
        for side in sides:
            here = side.sum(0) > 0
            self.mean[:, here] = vectors[:, here].mean(1, keepdim=True) if bool(here.any()) else 0
        named = explanation.named_targets
        self.target = None if named is None else named[image][k].pinned.for_removal()
        bound = stream.target
        self.context = bound.context if isinstance(bound, BoundTargets) else CallContext(self.module)

    def relevance(self, explanation: Any, image: int, k: int) -> Tensor:
        """Scores of the cells and words that can be removed, shape (units,)."""
        cells = explanation.grid[image, k].flatten()[: self.cells]
        both = torch.cat([cells, explanation.text[image].scores[k].to(cells)])[: self.count]
        return both.double().nan_to_num(0.0, 0.0, 0.0).cpu()

    def score(self, output: Any) -> Tensor:
        """Values of a named target; those of a token are log-probabilities."""
        if self.target is None:
            raise InputError("scores of questions are compared for tokens and answers, as targets of vitrail.targets")
        return self.target.values(OutputReader(output, self.context))  # type: ignore[no-any-return]

    def output(self, keep: Tensor) -> Any:
        """The model's output with some units kept."""
        removed = (~kept_mask(keep, self.count)).to(self.cover) @ self.cover > 0.5
        changed = torch.where(removed[..., None], self.mean, self.vectors)
        rows = torch.zeros(len(keep), dtype=torch.long, device=self.device)
        with frozen(self.module), torch.no_grad():
            return self.stream_call.pick(rows, changed).into(self.module)


class QuestionCheckRun(ImageCheckRun):
    """Checks the scores of one example and target."""

    def __init__(self, source: QuestionSource, first: Any, settings: CheckSettings, remove: QuestionRemoval) -> None:
        if remove.count < MIN_WORDS:
            raise InputError(
                f"{remove.count} cells of the image or words are too few to be checked: use at least {MIN_WORDS}. "
                "Among fewer, chance puts the right one first too often"
            )
        self.units = remove
        self.unit = "words" if not remove.cells else "patches" if remove.count == remove.cells else "patches and words"
        super().__init__(source, first, settings, remove)  # type: ignore[arg-type]

    def _values(self, explanation: Any, image: int | None = None, k: int | None = None) -> Tensor:
        return self.units.relevance(explanation, self.image if image is None else image, self.k if k is None else k)

    def _copies(self, values: Tensor) -> Tensor:
        cells, count = self.units.cells, self.budget.copies
        both = [moved_maps(values[:cells].view(self.grid), count, self.seed).flatten(1)] if cells else []
        both += [shifted_orders(values[cells:], count, self.seed)] if len(values) > cells else []
        return torch.cat(both, 1)

    def _control_maps(self) -> dict[str, Tensor]:
        rows, columns = self.grid
        y, x = ((torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5 for n in (rows, columns))
        centre = -(y[:, None].square() + x[None].square()).flatten()[: self.units.cells]
        words = torch.zeros(self.units.count - self.units.cells, dtype=torch.float64)
        return {"centre": torch.cat([centre, words - 1])} | (
            {"words": torch.cat([centre, words + 1])} if len(words) else {}
        )

    def _score(self, output: Any) -> Tensor:
        return super()._score(output) if self.units.target is None else self.units.score(output)

    @property
    def _has_probabilities(self) -> bool:
        return isinstance(self.named, TokenTarget)

    def _shown(self, scores: Tensor) -> Tensor:
        return scores.exp() if self._has_probabilities else scores  # those of a token are log-probabilities

    def _reader(self, output: Any) -> OutputReader:
        return OutputReader(output, self.units.context)

    def _noisy(self) -> ModelInputs:
        name = image_names(self.call)[0]
        copies = self.call.indexed(torch.zeros(self.budget.draws, dtype=torch.long, device=self.units.device))
        pixels: Tensor = copies.kwargs[name]
        noise = torch.cat(list(noise_samples(pixels, RADIUS, len(pixels), self.seed)))
        return copies.swap(pixels, pixels + noise)
