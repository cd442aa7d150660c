"""Evaluate a model again on perturbed inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.kept_pass import ForwardPass
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import fields_of
from vitrail.capture.recorded_forward import recorded_scores
from vitrail.capture.verify import gradients
from vitrail.errors import NotApplicableError
from vitrail.methods.propagation_cache import PropagationCache
from vitrail.models.class_group import ClassGroup

#: Side of a cell in pixels, or in bins of a spectrogram, where a model's own patches are unknown.
PATCH = 16
#: Cells of a series whose patches are unknown.
SERIES_CELLS = 64
#: From the output for some images, and which inputs they were made from, shape (N,), to all K targets, shape (N, K).
Scorer = Callable[[Any, Tensor, str], Tensor]


@dataclass(frozen=True)
class InputProbe:
    """A model, its inputs and the targets, to be evaluated again with perturbed inputs.

    Attributes:
        model: The user's model, unwrapped.
        model_inputs: The inputs, on its device.
        structure: What it is made of.
        scorer: The targets as a function of the model's output.
        count: Number of targets an input, K.
        classes: Class indices of the targets, shape (b, K), C + i for ``groups[i]``; None where the target is a
            function.
        groups: Groups of classes among the targets.
        score: "logit", "prob" or "logprob": what is read off for a class.
        k: Index of the current target, for methods that handle targets one by one.
        max_batch: Maximum number of images in one forward pass.
        seen: The pass over the inputs as they are, where there was one that methods may read off again.
        shared: The pass whose trace a method reads, with its graph.
        notes: Where a method puts intermediate results, or None where they are not kept.
        advance: Called with the number of images just evaluated, for progress.
        propagations: Keeps the last forward pass under relevance rules for the next method with the same rules.
        removal_scorer: The same as ``scorer`` for methods that remove parts of the input; None where it is the same.
    """

    model: nn.Module
    model_inputs: ModelInputs
    structure: ModelStructure
    scorer: Scorer
    count: int
    classes: Tensor | None = None
    groups: tuple[ClassGroup, ...] = ()
    score: str = "prob"
    k: int = 0
    max_batch: int = 32
    seen: ForwardPass | None = None
    shared: ForwardPass | None = None
    notes: dict[str, list[Any]] | None = None
    advance: Callable[[int], None] = field(default=lambda _: None)
    propagations: PropagationCache = field(default_factory=PropagationCache)
    removal_scorer: Scorer | None = None

    @property
    def images(self) -> Tensor:
        """The images as the model takes them, shape (b, channels, height, width)."""
        image = self.model_inputs.image
        if image is None:
            raise NotApplicableError(f"this method changes the pixels of images, and {self.model_inputs.what}")
        return image.detach()

    @property
    def canvas(self) -> Tensor:
        """Images, or other inputs on axes, with the channels first: (b, channels, axes of the map …)."""
        canvas = self.model_inputs.canvas
        if canvas is None:
            raise NotApplicableError(
                f"this method changes images, videos, spectrograms, series or features, and {self.model_inputs.what}"
            )
        return canvas.detach()

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of cells along each axis of the canvas: of the patches where these are known.

        Otherwise cells of 16 pixels or bins, one frame of a video, one variable, one feature, and 64 cells of a series.
        """
        if self.structure.layout.grid is not None:
            return self.structure.layout.grid
        axes, size = self.model_inputs.axes, self.model_inputs.map_size
        if axes is None or size is None:
            return (14, 14)
        found = []
        for name, length in zip(axes.names, size, strict=True):
            if name in ("variables", "features") or (name == "time" and len(size) == 3):
                found.append(length)
            elif name == "time" and "frequency" not in axes.names:
                found.append(min(length, SERIES_CELLS))
            else:
                found.append(ceil(length / PATCH))
        return tuple(found)

    @property
    def inputs(self) -> Tensor:
        """What can be changed little by little: the canvas, or the vectors of a text's tokens, shape (b, n, d)."""
        words, patches = self.model_inputs.words, self.model_inputs.patches
        if words is None:
            return self.canvas if patches is None else patches.detach()
        if self.seen is not None and self.seen.leaf is not None:
            return self.seen.leaf.detach()
        with torch.no_grad():
            vectors = self.embedding_layer(words)
        vectors = vectors[0] if isinstance(vectors, tuple) else vectors
        if not isinstance(vectors, Tensor) or vectors.shape[:-1] != words.shape:
            raise NotApplicableError(
                f"this method changes the vectors of words, and the embedding layer of {self.structure.model} returns "
                f"{fields_of(vectors)}, not one vector a word"
            )
        return vectors

    @property
    def embedding_layer(self) -> nn.Module:
        """The layer that turns a text's words into vectors."""
        find = getattr(self.model, "get_input_embeddings", None)
        try:
            layer = None if find is None else find()
        except NotImplementedError:  # transformers' way to say that there is none
            layer = None
        if not isinstance(layer, nn.Module):
            raise NotApplicableError(
                f"this method changes the vectors of words, and {self.structure.model} does not name the layer that "
                "makes them: it has no get_input_embeddings()"
            )
        return layer

    @property
    def batch(self) -> int:
        """Number of inputs."""
        return self.model_inputs.batch

    def of(self, k: int) -> Self:
        """The same for another target."""
        return replace(self, k=k)

    def note(self, name: str, value: Any) -> None:
        """Keep an intermediate result, where these are kept."""
        if self.notes is not None:
            self.notes.setdefault(name, []).append(value)

    def pieces(self, count: int) -> Iterator[slice]:
        """``count`` images in pieces of at most ``max_batch``."""
        for start in range(0, count, self.max_batch):
            yield slice(start, min(start + self.max_batch, count))

    def fed(self, images: Tensor, owner: Tensor) -> ModelInputs:
        """Model inputs with other images (canvases) or word embeddings; all else comes from each one's own input."""
        if self.model_inputs.words is not None:
            return self.model_inputs.embedded(owner, self.embedding_layer, images)
        axes = self.model_inputs.axes
        return self.model_inputs.pick(owner, images if axes is None else axes.restore(images))

    def scores(self, images: Tensor, owner: Tensor | int = 0, precision: torch.dtype | None = None) -> Tensor:
        """All targets of perturbed images, shape (N, K), without gradients; one forward pass, so mind N.

        Args:
            images: Images, shape (N, channels, height, width), or other canvases.
            owner: Which input each was made from, shape (N,), or one for all.
            precision: Run the model in this precision by autocast instead of its own.
        """
        owner = self._owner(owner, len(images))
        cast = nullcontext() if precision is None else torch.autocast(images.device.type, precision)
        recorded = None
        if precision is None and self.classes is not None and self.model_inputs.only_image:
            recorded = recorded_scores(self.model, self.structure, images)
        if recorded is not None:
            values = self.scorer(recorded, owner, self.score)
        else:
            with frozen(self.model), torch.inference_mode(), cast, fast.with_split_products(images.device):
                output = run_model(self.model, self.fed(images, owner))
                values = self.scorer(output, owner, self.score)
        self.advance(len(images))
        return values.clone() if values.is_inference() else values

    def unchanged(self) -> Tensor:
        """All targets of the inputs as they are, shape (b, K), without gradients; no forward if they were seen."""
        owner = torch.arange(self.batch, device=self.model_inputs.tensors[0].device)
        if self.seen is None:
            return torch.cat([self.scores(self.inputs[p], owner[p]) for p in self.pieces(self.batch)])
        with torch.no_grad():
            return self.scorer(self.seen.output, owner, self.score).detach()

    def gradient(self, images: Tensor, owner: Tensor | int = 0) -> Tensor:
        """Gradient of the current target at perturbed images, in the shape of the images."""
        owner = self._owner(owner, len(images))
        with frozen(self.model):
            leaf = images.detach().clone().requires_grad_()
            with fast.with_split_products(images.device):
                output = run_model(self.model, self.fed(leaf, owner))
            value = self.scorer(output, owner, self.score)[:, self.k]
            (found,) = gradients(value.sum(), [leaf], keep=False)
        if found is None:
            raise self._without_gradient()
        self.advance(len(images))
        return found

    def own_gradients(self) -> list[Tensor]:
        """Gradient of each target at the inputs as they are, in the shape of the inputs; targets share the forward."""
        if self.seen is not None and self.seen.leaf is not None:
            return self._target_gradients(self.seen.output, self.seen.leaf, 0)
        parts = []
        for piece in self.pieces(self.batch):
            leaf = self.inputs[piece].detach().clone().requires_grad_()
            owner = torch.arange(piece.start, piece.stop, device=leaf.device)
            with frozen(self.model), fast.with_split_products(leaf.device):
                output = run_model(self.model, self.fed(leaf, owner))
            parts.append(self._target_gradients(output, leaf, piece.start))
        return [torch.cat(found) for found in zip(*parts, strict=True)]

    def _target_gradients(self, output: Any, leaf: Tensor, first: int) -> list[Tensor]:
        """Gradients of all targets at a leaf, given the output for the inputs from the first one on."""
        owner = torch.arange(first, first + len(leaf), device=leaf.device)
        with frozen(self.model):
            values = self.scorer(output, owner, self.score)
            found = [gradients(values[:, k].sum(), [leaf], keep=k + 1 < self.count)[0] for k in range(self.count)]
        self.advance(self.count * len(leaf))
        if any(one is None for one in found):
            raise self._without_gradient()
        return [one for one in found if one is not None]

    def _without_gradient(self) -> NotApplicableError:
        return NotApplicableError(
            f"the output of {self.structure.model} has no gradient at its input (quantised layers, or a forward "
            "pass under no_grad): use occlusion or rise"
        )

    def _owner(self, owner: Tensor | int, count: int) -> Tensor:
        if isinstance(owner, Tensor):
            return owner
        return torch.full((count,), owner, dtype=torch.long, device=self.model_inputs.tensors[0].device)
