"""Removal of patches from one image, or of words from one text, for checks of maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.removal import TokenDropper, fill_patches, kept_mask
from vitrail.errors import InputError, OptionError
from vitrail.inputs.map_source import TextSource
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.scores.fills import FILLS, TOKENS, Normalisation, find_fill

#: The fill where tokens cannot be dropped.
DEFAULT_FILL = "blur"
#: Cells of the grid on models without patches.
DEFAULT_GRID = (14, 14)
#: How words can be removed.
WORD_REMOVALS = ("words", "mask")


def log_odds(log_probabilities: Tensor) -> Tensor:
    """Log-odds from log-probabilities, log(p / (1 − p)), exact near p = 1 up to the precision of float64.

    Example:
        >>> log_odds(torch.tensor([0.5, 0.75], dtype=torch.float64).log()).exp()
        tensor([1.0000, 3.0000], dtype=torch.float64)
    """
    values = log_probabilities.double().clamp_max(-1e-12)
    return values - torch.log(-torch.expm1(values))


class InputRemoval(ABC):
    """Evaluates a score of an input with some units (patches or words) removed.

    Attributes:
        by: How units are removed.
        count: Number of units.
        device: Device of the scores.
        batch_size: Most inputs in one forward pass.
        advance: Called with the number of inputs after each forward pass.
        forwards: Inputs evaluated so far.
    """

    by: str
    count: int
    device: torch.device
    batch_size: int
    advance: Callable[[int], None]
    forwards: int = 0

    @abstractmethod
    def output(self, keep: Tensor) -> Any:
        """The model's output with some units kept; ``keep`` has their indices in order, shape (n, m)."""

    def __call__(self, keep: Tensor, score: Callable[[Any], Tensor]) -> Tensor:
        """Evaluate a score with some units kept, for each of n selections of equal size.

        Args:
            keep: Indices of the units that are kept, in order, shape (n, m).
            score: From the model's output for some inputs to one number for each.

        Returns:
            Shape (n,), float64.
        """
        values = []
        for start in range(0, len(keep), self.batch_size):
            rows = keep[start : start + self.batch_size]
            values.append(score(self.output(rows)).detach().double().to(self.device))
            self.forwards += len(rows)
            self.advance(len(rows))
        return torch.cat(values)


class PatchRemoval(InputRemoval):
    """Runs a model on an image with some patches removed.

    Args:
        loaded: The model.
        image: Normalised for the model, shape (1, channels, height, width), or all inputs of a call for one example.
        grid: Rows and columns of patches.
        by: "tokens", the name of a fill, or None for tokens where the model supports it and the fill "blur" otherwise.
        batch_size: Most images in one forward pass.
        advance: Called with the number of images after each forward pass.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        image: Tensor | ModelInputs,
        grid: tuple[int, int],
        by: str | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        if by not in (None, TOKENS) and by not in FILLS:
            raise OptionError(f"removal={by!r} is not {TOKENS!r} or one of the fills {', '.join(FILLS)}")
        self.call = image if isinstance(image, ModelInputs) else ModelInputs((image,))
        pixels = self.call.image
        if pixels is None:
            raise InputError(f"patches are removed from images: {self.call.what}")
        self.module, self.image, self.grid = loaded.module, pixels, grid
        self.count, self.device = grid[0] * grid[1], pixels.device
        self.batch_size, self.advance = batch_size, advance
        self.dropper: TokenDropper | None = None
        if by == TOKENS:
            self.dropper = TokenDropper(loaded.module, self.call)
        elif by is None:
            self.dropper = TokenDropper.or_none(loaded.module, self.call, grid)
        self.by = TOKENS if self.dropper is not None else by or DEFAULT_FILL
        if self.dropper is None:
            known = loaded.preprocess
            normalisation = Normalisation(known.mean, known.std) if isinstance(known, Preprocess) else Normalisation()
            self.fill = find_fill(self.by).fill_image(pixels, normalisation, 0)

    def output(self, keep: Tensor) -> Any:
        """The model's output with some patches kept."""
        images = self.image.expand(len(keep), -1, -1, -1)
        rows = torch.zeros(len(keep), dtype=torch.long, device=self.device)
        if self.dropper is not None:
            return self.dropper(self.call.pick(rows, images), keep)
        filled = fill_patches(images, kept_mask(keep, self.count), self.grid, self.fill)
        with frozen(self.module), torch.no_grad():
            return self.call.pick(rows, filled).into(self.module)


class WordRemoval(InputRemoval):
    """Runs a model on a text with some words removed.

    Args:
        source: The model, tokenizer and texts.
        words: The words of the text.
        by: "words" to leave words out, "mask" to replace them by the tokenizer's mask token; None for "words".
        batch_size: Most texts in one forward pass.
        advance: Called with the number of texts after each forward pass.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        source: TextSource,
        words: Sequence[str],
        by: str | None = None,
        batch_size: int = 16,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        if by is not None and by not in WORD_REMOVALS:
            raise OptionError(
                f"removal={by!r} is not one of {', '.join(map(repr, WORD_REMOVALS))}, the ways to remove words"
            )
        self.source, self.words, self.by, self.count = source, tuple(words), by or "words", len(words)
        self.batch_size, self.advance = batch_size, advance
        self.mask = getattr(source.settings.tokenizer, "mask_token", None)
        if self.by == "mask" and not self.mask:
            raise OptionError("removal='mask' needs a tokenizer with a mask token: use removal='words'")

    def output(self, keep: Tensor) -> Any:
        """Logits with some words kept, shape (n, C)."""
        return self.source.predict([self._text(kept) for kept in keep.tolist()])

    def _text(self, kept: Sequence[int]) -> str:
        if self.by == "words":
            return " ".join(self.words[i] for i in kept)
        kept_words = set(kept)
        return " ".join(word if i in kept_words else str(self.mask) for i, word in enumerate(self.words))
