"""Removal of patches from one video, sound, series or row of features, for checks of maps."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.removal import TokenDropper, kept_mask
from vitrail.errors import OptionError
from vitrail.models.loaded import LoadedModel
from vitrail.scores.fills import TOKENS
from vitrail.trust.input_removal import InputRemoval

#: The fill where tokens cannot be dropped: the mean of each channel.
MEAN = "mean"


class SignalRemoval(InputRemoval):
    """Runs a model on an input with some patches removed, whatever axes the input has.

    Args:
        loaded: The model.
        call: All inputs of a call for one example.
        grid: Number of patches along each axis of the map.
        by: "tokens", "mean" (each channel's mean over the input), or None for tokens where the model supports it.
        batch_size: Most examples in one forward pass.
        advance: Called with the number of examples after each forward pass.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        call: ModelInputs,
        grid: tuple[int, ...],
        by: str | None = None,
        batch_size: int = 64,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        if by not in (None, TOKENS, MEAN):
            raise OptionError(f"removal={by!r} is not {TOKENS!r} or {MEAN!r}, the ways to remove patches of a signal")
        canvas, axes = call.canvas, call.axes
        assert canvas is not None
        assert axes is not None
        self.module, self.call, self.grid, self.canvas, self.axes = loaded.module, call, grid, canvas, axes
        self.count, self.device = prod(grid), canvas.device
        self.batch_size, self.advance = batch_size, advance
        self.dropper: TokenDropper | None = None
        if by == TOKENS:
            self.dropper = TokenDropper(loaded.module, call, any_axes=True)
        elif by is None:
            self.dropper = TokenDropper.or_none(loaded.module, call, grid, any_axes=True)
        self.by = MEAN if self.dropper is None else TOKENS
        self.fill = canvas.mean(tuple(range(2, canvas.dim())), keepdim=True)

    def output(self, keep: Tensor) -> Any:
        """The model's output with some patches kept."""
        rows = torch.zeros(len(keep), dtype=torch.long, device=self.device)
        if self.dropper is not None:
            return self.dropper(self.call.indexed(rows), keep)
        kept = spread_cells(kept_mask(keep, self.count).view(-1, *self.grid), tuple(self.canvas.shape[2:]))
        filled = torch.where(kept[:, None], self.canvas, self.fill)
        with frozen(self.module), torch.no_grad():
            return self.call.pick(rows, self.axes.restore(filled)).into(self.module)


def spread_cells(cells: Tensor, size: tuple[int, ...]) -> Tensor:
    """Spread the cells of grids, shape (n, grid …), over inputs, shape (n, size …).

    Example:
        >>> spread_cells(torch.tensor([[True, False]]), (5,))
        tensor([[ True,  True,  True, False, False]])
    """
    for axis, length in enumerate(size, start=1):
        index = torch.arange(length, device=cells.device) * cells.shape[axis] // length
        cells = cells.index_select(axis, index)
    return cells


def default_cells(call: ModelInputs) -> tuple[int, ...]:
    """Cells along each axis of an input whose patches are unknown: at most 14, or 64 of an input with one axis."""
    size = call.map_size or ()
    most = 64 if len(size) == 1 else 14
    return tuple(min(most, length) for length in size)
