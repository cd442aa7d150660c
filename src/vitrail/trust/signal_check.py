"""Check maps of videos, sound, series and features: patches of the input are removed, as for images."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.errors import InputError
from vitrail.inputs.map_source import MapSource
from vitrail.scores.sensitivity import RADIUS, noise_samples
from vitrail.trust.check_run import CheckSettings
from vitrail.trust.image_check import ImageCheckRun
from vitrail.trust.null import moved_signals
from vitrail.trust.signal_removal import SignalRemoval

#: Fewest patches: among fewer, too many copies of a map lie on the map itself.
MIN_PATCHES = 20


class SignalCheckRun(ImageCheckRun):
    """Checks maps of one input over any axes, for one target."""

    def __init__(self, source: MapSource, first: Any, settings: CheckSettings, remove: SignalRemoval) -> None:
        if remove.count < MIN_PATCHES:
            raise InputError(
                f"the model has {remove.count} patches for this input, and a check needs at least {MIN_PATCHES}: the "
                "method occlusion measures the effect of each one"
            )
        super().__init__(source, first, settings, remove)  # type: ignore[arg-type]

    def _values(self, explanation: Any, image: int | None = None, k: int | None = None) -> Tensor:
        image, k = self.image if image is None else image, self.k if k is None else k
        values: Tensor = explanation.grid[image, k]
        if tuple(values.shape) != self.grid:
            values = cell_means(explanation.maps[image, k].float(), self.grid)
        return values.double().nan_to_num(0.0, 0.0, 0.0)

    def _copies(self, values: Tensor) -> Tensor:
        return moved_signals(values, self.budget.copies, self.seed)

    def _control_maps(self) -> dict[str, Tensor]:
        places = [(torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5 for n in self.grid]
        return {"centre": -sum(place.square() for place in torch.meshgrid(*places, indexing="ij"))}  # type: ignore[dict-item]

    def _noisy(self) -> ModelInputs:
        signal = self.call.signal
        assert signal is not None
        noisy = torch.cat([signal + noise for noise in noise_samples(signal, RADIUS, self.budget.draws, self.seed)])
        return self.call.pick(torch.zeros(len(noisy), dtype=torch.long, device=signal.device), noisy)


def cell_means(values: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Mean of a map over the cells of a grid, along each axis in turn.

    Example:
        >>> cell_means(torch.tensor([1.0, 3.0, 5.0, 7.0]), (2,))
        tensor([2., 6.])
    """
    for axis, cells in enumerate(grid):
        moved = values.movedim(axis, -1)
        pooled = F.adaptive_avg_pool1d(moved.reshape(1, -1, moved.shape[-1]), cells)
        values = pooled.view(*moved.shape[:-1], cells).movedim(-1, axis)
    return values
