"""Random coalitions of patches, and a model's predictions on them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.capture.inputs import ModelInputs, logits_of
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.outputs import as_logits
from vitrail.capture.structure import read_structure
from vitrail.capture.token_dropping import TokenDropper
from vitrail.errors import NotApplicableError, OptionError, TargetError

#: How patches that are not in a coalition are hidden from a model.
MASKINGS = {
    "tokens": "their tokens are removed before the first block",
    "fill": "their pixels are set to 0 in the model's normalised space, the mean colour",
}


def kernel_sizes(players: int, count: int, generator: torch.Generator) -> list[int]:
    """Draw coalition sizes from the Shapley kernel, stratified, so that the sizes of one call differ.

    The kernel gives a size m of 1 … S − 1 a probability proportional to 1 / (m (S − m)).

    Args:
        players: Number of players S, at least 2.
        count: Number of sizes.
        generator: Source of the random numbers.

    Example:
        >>> kernel_sizes(16, 4, torch.Generator().manual_seed(0))
        [2, 6, 11, 15]
    """
    size = torch.arange(1, players, dtype=torch.float64)
    probability = 1 / (size * (players - size))
    return _stratified(probability, 1, count, generator)


def uniform_sizes(players: int, count: int, generator: torch.Generator) -> list[int]:
    """Draw coalition sizes uniformly from 0 … S, stratified.

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
    """Draw a coalition of one size for each image, and its complement, as sorted indices.

    Returns:
        Shapes (images, size) and (images, players − size).

    Example:
        >>> split_patches(1, 4, 1, torch.Generator().manual_seed(0))
        (tensor([[2]]), tensor([[0, 1, 3]]))
    """
    order = torch.rand(images, players, generator=generator, device=generator.device).argsort(1)
    return order[:, :size].sort(1).values, order[:, size:].sort(1).values


def membership(keep: Tensor, players: int) -> Tensor:
    """Turn indices of patches, shape (b, m), into zeros and ones, shape (b, players).

    Example:
        >>> membership(torch.tensor([[0, 2]]), 4)
        tensor([[1., 0., 1., 0.]])
    """
    return torch.zeros(len(keep), players, device=keep.device).scatter(1, keep, 1.0)


class CoalitionMasking:
    """Hides patches from a model, or from copies of it with other weights.

    Args:
        model: The model to explain.
        images: Any valid input, shape (b, channels, height, width), on the model's device.
        kind: A key of ``MASKINGS``, or "auto": remove tokens where the model works without any patch, else fill.

    Attributes:
        kind: How patches are hidden.
        structure: Structure of the model.

    Raises:
        NotApplicableError: The model has no grid of patches, or its tokens cannot be removed and ``kind`` is "tokens".

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> model, images = tiny_vit(), torch.randn(2, 3, 32, 32)
        >>> masking = CoalitionMasking(model, images)
        >>> masking.kind, masking.players, masking.logits(model, images, torch.tensor([[0, 5], [3, 4]])).shape
        ('tokens', 16, torch.Size([2, 5]))
    """

    def __init__(self, model: nn.Module, images: Tensor, kind: str = "auto") -> None:
        if kind not in ("auto", *MASKINGS):
            raise OptionError(f"masking={kind!r} is not one of 'auto', {', '.join(map(repr, MASKINGS))}")
        self.structure: ModelStructure = read_structure(model, ModelInputs((images[:1],)).onto(model))
        layout = self.structure.layout
        if self.structure.kind != "plain" or layout.grid is None or layout.area is not None:
            raise NotApplicableError(
                f"no explainer can be trained for {self.structure.model}: it needs attention between all patches of a "
                "grid that covers the image; use rise, occlusion or vit_cx"
            )
        self.grid = layout.grid
        self.kind, self._dropper = kind, None
        if kind != "fill":
            self._dropper = self._find_dropper(model, images, required=kind == "tokens")
            self.kind = "fill" if self._dropper is None else "tokens"
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
        """Class logits of images of which only some patches are visible, with gradients if they are enabled.

        Args:
            model: The model to explain or a copy of it.
            images: Normalised for the model, shape (b, channels, height, width).
            keep: Indices of the visible patches, shape (b, m); None for all.

        Returns:
            Shape (b, classes).
        """
        if keep is None or keep.shape[1] == self.players:
            return self._scores(model(images))
        if self._dropper is not None:
            with self._dropper.dropping(keep):
                output = model(images)
            return self._scores(output)
        visible = membership(keep, self.players).view(-1, 1, *self.grid).to(images.dtype)
        return self._scores(model(images * F.interpolate(visible, images.shape[-2:], mode="nearest")))

    def probabilities(self, model: nn.Module, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Class probabilities of partly visible images, without gradients, shape (b, classes)."""
        with torch.no_grad():
            return self.logits(model, images, keep).float().softmax(-1)

    def empty(self, model: nn.Module, images: Tensor) -> Tensor:
        """Class probabilities without any patch, shape (classes,); they do not depend on the image."""
        keep = torch.zeros(1, 0, dtype=torch.long, device=images.device)
        return self.probabilities(model, images[:1], keep)[0]

    def _scores(self, output: Any) -> Tensor:
        found = as_logits(logits_of(output), self.structure.outputs)
        if found is None or self.structure.outputs == "features":
            raise TargetError(
                f"{self.structure.model} returns no class scores: an explainer is trained on predicted classes"
            )
        return found

    @staticmethod
    def _find_dropper(model: nn.Module, images: Tensor, required: bool) -> TokenDropper | None:
        try:
            dropper = TokenDropper(model, images[:1])
        except NotApplicableError:
            if required:
                raise
            return None
        if dropper.supports_empty:
            return dropper
        if required:
            raise NotApplicableError(
                f"{dropper.structure.model} averages its patches, so it predicts nothing without any: masking='fill'"
            )
        return None
