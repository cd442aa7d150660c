"""Random sets of patches, and a model's predictions for images from which all other patches are removed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import logits_of
from vitrail.capture.outputs import as_logits
from vitrail.capture.removal import TokenDropper, fill_patches, kept_mask
from vitrail.capture.structure import read_structure
from vitrail.errors import NotApplicableError, OptionError, TargetError

#: How patches are removed.
PATCH_REMOVALS = {
    "tokens": "their tokens are removed before the first block",
    "fill": "their pixels are set to 0 in the model's normalised space, the mean colour",
}


def kernel_sizes(players: int, count: int, generator: torch.Generator) -> list[int]:
    """Draw sizes of sets of patches from the Shapley kernel, stratified, so that the sizes of one call differ.

    The kernel gives a size m of 1 … S − 1 a probability proportional to 1 / (m (S − m)).

    Example:
        >>> kernel_sizes(16, 4, torch.Generator().manual_seed(0))
        [2, 6, 11, 15]
    """
    size = torch.arange(1, players, dtype=torch.float64)
    probability = 1 / (size * (players - size))
    return _stratified(probability, 1, count, generator)


def uniform_sizes(players: int, count: int, generator: torch.Generator) -> list[int]:
    """Draw sizes of sets of patches uniformly from 0 … S, stratified.

    Example:
        >>> uniform_sizes(16, 4, torch.Generator().manual_seed(0))
        [4, 7, 10, 16]
    """
    return _stratified(torch.ones(players + 1, dtype=torch.float64), 0, count, generator)


def _stratified(probability: Tensor, first: int, count: int, generator: torch.Generator) -> list[int]:
    offsets = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64).cpu()
    points = (torch.arange(count) + offsets) / count
    cumulative = (probability / probability.sum()).cumsum(0)
    indices = torch.searchsorted(cumulative, points).clamp_max(len(probability) - 1)
    return [int(i) + first for i in indices]


def split_patches(images: int, players: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a set of patches of one size for each image, and its complement, as sorted indices.

    Returns:
        Shapes (images, size) and (images, players − size).

    Example:
        >>> split_patches(1, 4, 1, torch.Generator().manual_seed(0))
        (tensor([[2]]), tensor([[0, 1, 3]]))
    """
    order = torch.rand(images, players, generator=generator, device=generator.device).argsort(1)
    return order[:, :size].sort(1).values, order[:, size:].sort(1).values


class PartialImages:
    """Predictions of a model, or of copies with other weights, for images with only some of their patches left.

    Args:
        model: The model to explain.
        images: Any valid input, shape (b, channels, height, width), on the model's device.
        removal: A key of ``PATCH_REMOVALS``, or "auto": "tokens" if the model works without any patch, else "fill".

    Attributes:
        removal: How patches are removed.
        structure: Structure of the model.

    Raises:
        NotApplicableError: The model has no grid of patches, or ``removal`` is "tokens" and it does not support it.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> model, images = tiny_vit(), torch.randn(2, 3, 32, 32)
        >>> partial = PartialImages(model, images)
        >>> partial.removal, partial.players, partial.logits(model, images, torch.tensor([[0, 5], [3, 4]])).shape
        ('tokens', 16, torch.Size([2, 5]))
    """

    def __init__(self, model: nn.Module, images: Tensor, removal: str = "auto") -> None:
        if removal not in ("auto", *PATCH_REMOVALS):
            raise OptionError(f"removal={removal!r} is not one of 'auto', {', '.join(map(repr, PATCH_REMOVALS))}")
        self.structure: ModelStructure = read_structure(model, ModelInputs((images[:1],)).onto(model))
        layout = self.structure.layout
        if self.structure.kind != "plain" or layout.plane is None or layout.area is not None:
            raise NotApplicableError(
                f"no explainer can be trained for {self.structure.model}: it needs attention between all patches of a "
                "grid that covers the image; use rise, occlusion or vit_cx"
            )
        self.grid = layout.plane
        self._dropper = None
        if removal == "tokens":
            self._dropper = TokenDropper(model, images[:1])
        elif removal == "auto":
            self._dropper = TokenDropper.or_none(model, images[:1])
        if self._dropper is not None and not self._dropper.supports_empty:
            if removal == "tokens":
                raise NotApplicableError(
                    f"{self.structure.model} averages its patches, so it cannot predict without any: use removal='fill'"
                )
            self._dropper = None
        self.removal = "fill" if self._dropper is None else "tokens"
        if self.classes_of(model, images[:1]) < 2:
            raise TargetError(f"{self.structure.model} has a single output: an explainer needs two classes or more")

    @property
    def players(self) -> int:
        """Number of patches, S."""
        return self.grid[0] * self.grid[1]

    def classes_of(self, model: nn.Module, images: Tensor) -> int:
        """Number of classes the model predicts."""
        with torch.no_grad():
            return int(self._scores(model(images)).shape[1])

    def logits(self, model: nn.Module, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Class logits of images with some patches kept, with gradients if they are enabled.

        Returns:
            Shape (b, classes).
        """
        if keep is None or keep.shape[1] == self.players:
            return self._scores(model(images))
        if self._dropper is not None:
            with self._dropper.dropping(keep):
                output = model(images)
            return self._scores(output)
        return self._scores(model(fill_patches(images, kept_mask(keep, self.players), self.grid)))

    def probabilities(self, model: nn.Module, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Class probabilities of images with some patches kept, without gradients, shape (b, classes)."""
        with torch.no_grad():
            return self.logits(model, images, keep).float().softmax(-1)

    def empty(self, model: nn.Module, images: Tensor) -> Tensor:
        """Class probabilities without any patch, shape (classes,); they do not depend on the image."""
        keep = torch.zeros(1, 0, dtype=torch.long, device=images.device)
        return self.probabilities(model, images[:1], keep)[0]

    def _scores(self, output: Any) -> Tensor:
        logits = as_logits(logits_of(output), self.structure.outputs)
        if logits is None or self.structure.outputs == "features":
            raise TargetError(
                f"{self.structure.model} returns no class scores: an explainer is trained on predicted classes"
            )
        return logits
