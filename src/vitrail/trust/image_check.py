"""Check maps of images: patches are removed; shifted, rotated and flipped copies are the null distribution."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.output_tensors import any_output
from vitrail.capture.outputs import class_logits
from vitrail.errors import InputError, ModelError, TargetError
from vitrail.inputs.map_source import MapSource
from vitrail.inputs.targets import class_scores
from vitrail.methods.cost import ModelSize, size_of
from vitrail.scores.sensitivity import RADIUS, noise_samples
from vitrail.targets.bound_targets import BoundTargets
from vitrail.targets.named_target import NamedTarget
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.trust.check_run import CheckRun, CheckSettings
from vitrail.trust.input_removal import PatchRemoval, log_odds
from vitrail.trust.null import moved_maps


def patch_values(explanation: Any, image: int, k: int, grid: tuple[int, int]) -> Tensor:
    """A map as relevance of patches, shape (rows, columns): the method's grid if it has this size, else pixel means."""
    values: Tensor = explanation.grid[image, k]
    if tuple(values.shape) != grid:
        values = F.adaptive_avg_pool2d(explanation.maps[image, k][None, None].float(), grid)[0, 0]
    return values.double().nan_to_num(0.0, 0.0, 0.0)


class ImageCheckRun(CheckRun):
    """Checks maps of one image and target."""

    def __init__(self, source: MapSource, first: Any, settings: CheckSettings, remove: PatchRemoval) -> None:
        self.grid, self.structure, self.call = remove.grid, source.structure, remove.call
        self.other_title = ""
        super().__init__(source, first, settings, remove)

    @property
    def inputs(self) -> ModelInputs:
        """The image, with the other inputs of its call."""
        return self.call

    def _values(self, explanation: Any, image: int | None = None, k: int | None = None) -> Tensor:
        at = self.image if image is None else image, self.k if k is None else k
        return patch_values(explanation, *at, self.grid)

    def _copies(self, values: Tensor) -> Tensor:
        return moved_maps(values, self.budget.copies, self.seed)

    def _control_maps(self) -> dict[str, Tensor]:
        rows, columns = self.grid
        y, x = ((torch.arange(n, dtype=torch.float64) + 0.5) / n - 0.5 for n in (rows, columns))
        return {"centre": -(y[:, None].square() + x[None].square())}

    def _score(self, output: Any) -> Tensor:
        if self.named is not None:
            return self.named.values(self._reader(output))
        if self.source.target is not None:
            values = self._target_values(output)
            return values if values.dim() == 1 else values[:, self.k]
        logits = class_logits(self.source.loaded.module, output)
        if logits is None:
            raise ModelError("the model returned no class scores for an image with removed patches")
        scores = class_scores(logits.double(), "logprob", self.groups, self.scores)
        return log_odds(scores[:, self.targets[self.image, self.k]])

    def _reader(self, output: Any) -> OutputReader:
        target = self.source.target
        return OutputReader(output, target.context if isinstance(target, BoundTargets) else CallContext())

    def _other_class(self, first: Any) -> int | NamedTarget | None:
        if self.named is None:
            return super()._other_class(first)
        reader = self._reader(self.remove.output(torch.arange(self.remove.count, device=self.remove.device)[None]))
        try:
            other = next(iter(self.named.others(reader, 0, 1)), None)
            self.other_title = "" if other is None else other.title(reader)
        except TargetError:
            return None
        return other

    def _name(self, index: int | NamedTarget) -> str:
        return self.other_title if isinstance(index, NamedTarget) else super()._name(index)

    def _target_values(self, output: Any) -> Tensor:
        """The values of the target function for copies of one image."""
        assert self.source.target is not None
        try:
            values: Any = self.source.target(output)
            reason = None if isinstance(values, Tensor) and len(values) == len(any_output(output)) else "another number"
        except (RuntimeError, IndexError, ValueError) as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if reason is not None:
            raise InputError(
                "checks call the target function with copies of one image, and it did not return one value for each "
                f"({reason}): a function that reads values of the whole batch, such as its labels, cannot be checked"
            )
        return values  # type: ignore[no-any-return]

    def _noisy(self) -> ModelInputs:
        image = self.call.image
        assert image is not None
        noisy = torch.cat([image + noise for noise in noise_samples(image, RADIUS, self.budget.draws, self.seed)])
        return self.call.pick(torch.zeros(len(noisy), dtype=torch.long, device=image.device), noisy)

    def _sample(self) -> ModelInputs:
        return self.call

    def _size(self) -> ModelSize:
        return size_of(self.structure)
