"""Removal of patches from one image: by dropping their tokens where the model allows it, by a fill otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.token_dropping import TokenDropper
from vitrail.errors import NotApplicableError, OptionError
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import Preprocess
from vitrail.scores.fills import FILLS, Normalisation, find_fill

TOKENS = "tokens"
#: The fill where tokens cannot be dropped.
DEFAULT_FILL = "blur"
#: Cells of the grid on models without patches.
DEFAULT_GRID = (14, 14)


def log_odds(log_probabilities: Tensor) -> Tensor:
    """Log-odds from log-probabilities, log(p / (1 − p)), exact near p = 1 up to the precision of float64.

    Example:
        >>> log_odds(torch.tensor([0.5, 0.75], dtype=torch.float64).log()).exp()
        tensor([1.0000, 3.0000], dtype=torch.float64)
    """
    values = log_probabilities.double().clamp_max(-1e-12)
    return values - torch.log(-torch.expm1(values))


class PatchRemoval:
    """Runs a model on an image of which only some patches are left.

    Args:
        loaded: The model.
        images: Normalised for the model, shape (b, channels, height, width).
        grid: Rows and columns of patches.
        by: "tokens", the name of a fill, or None for tokens where the model allows it and the fill "blur" otherwise.
        batch_size: Most images in one forward pass.
        advance: Called with the number of images after each forward pass.

    Attributes:
        by: What is used.
        count: Number of patches.
        forwards: Images evaluated so far.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        images: Tensor,
        grid: tuple[int, int],
        by: str | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        if by not in (None, TOKENS) and by not in FILLS:
            raise OptionError(f"removal={by!r} is not {TOKENS!r} or one of the fills {', '.join(FILLS)}")
        self.module, self.images, self.grid = loaded.module, images, grid
        self.count, self.device = grid[0] * grid[1], images.device
        self.batch_size, self.advance, self.forwards = batch_size, advance, 0
        self.dropper: TokenDropper | None = None
        if by in (None, TOKENS):
            try:
                dropper = TokenDropper(loaded.module, images)
                self.dropper = dropper if dropper.grid == grid else None
            except NotApplicableError:
                if by == TOKENS:
                    raise
        self.by = TOKENS if self.dropper is not None else by or DEFAULT_FILL
        if self.dropper is None:
            known = loaded.preprocess
            normalisation = Normalisation(known.mean, known.std) if isinstance(known, Preprocess) else Normalisation()
            self.fill_images = find_fill(self.by).fill_image(images, normalisation, 0).expand_as(images)

    def __call__(self, image: int, keep: Tensor, score: Callable[[Any], Tensor]) -> Tensor:
        """Evaluate a score with some patches kept, for each of n selections of equal size.

        Args:
            image: Which image.
            keep: Indices of the patches that are kept, shape (n, m).
            score: From the model's output for some inputs to one number for each.

        Returns:
            Shape (n,), float64.
        """
        values = []
        for start in range(0, len(keep), self.batch_size):
            rows = keep[start : start + self.batch_size]
            if self.dropper is not None:
                output = self.dropper(self.images[image : image + 1].expand(len(rows), -1, -1, -1), rows)
            else:
                output = self._filled(image, rows)
            values.append(score(output).detach().double())
            self.forwards += len(rows)
            self.advance(len(rows))
        return torch.cat(values)

    def _filled(self, image: int, keep: Tensor) -> Any:
        cells = torch.zeros(len(keep), self.grid[0] * self.grid[1], device=keep.device).scatter_(1, keep, 1.0)
        size = tuple(self.images.shape[2:])
        kept = F.interpolate(cells.view(-1, 1, *self.grid), size=size, mode="nearest") > 0
        mixed = torch.where(kept, self.images[image], self.fill_images[image])
        with frozen(self.module), torch.no_grad():
            return ModelInputs((mixed,)).into(self.module)
