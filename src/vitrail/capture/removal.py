"""Remove patches from images or tokens from texts: for Shapley values, scores, checks and comparisons.

Patches or tokens are removed in one of three ways:

- "tokens": `TokenDropper` removes the tokens of patches before the first block; `drop_tokens` shortens a text. Fewer
  tokens make the forward pass cheaper, and no fill is needed.
- "mask": no token attends to them, in any block: `attention_without`, or the attention mask of a text, `mask_tokens`.
- "fill": `fill_patches` replaces their pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.attention import AttentionMode
from vitrail.capture.forward import forward_pass
from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.output_tensors import any_output
from vitrail.capture.structure import read_structure
from vitrail.errors import ModelError, NotApplicableError

REMOVALS = ("tokens", "mask", "fill")

_FORWARD_ERRORS = (RuntimeError, ValueError, AssertionError, IndexError, TypeError)


def kept_mask(keep: Tensor, count: int) -> Tensor:
    """Turn indices of kept patches, shape (b, m), into a mask, shape (b, count).

    Example:
        >>> kept_mask(torch.tensor([[0, 2]]), 4)
        tensor([[ True, False,  True, False]])
    """
    return torch.zeros(len(keep), count, dtype=torch.bool, device=keep.device).scatter(1, keep, True)


def kept_indices(kept: Tensor) -> Tensor:
    """Turn a mask whose rows keep equally many patches, shape (b, S), into indices, shape (b, m).

    Example:
        >>> kept_indices(torch.tensor([[True, False, True, False]]))
        tensor([[0, 2]])
    """
    return kept.nonzero()[:, 1].view(len(kept), -1)


def fill_patches(images: Tensor, kept: Tensor, grid: tuple[int, int], fill: Tensor | float = 0.0) -> Tensor:
    """Replace the pixels of patches that are not kept.

    Args:
        images: Shape (b, channels, height, width).
        kept: Which patches are kept, shape (b, rows · columns).
        grid: Rows and columns of patches.
        fill: The replacement: a number in the model's normalised space (0 is the mean colour), or images.

    Example:
        >>> fill_patches(torch.ones(1, 1, 2, 4), torch.tensor([[True, False]]), (1, 2))[0, 0]
        tensor([[1., 1., 0., 0.],
                [1., 1., 0., 0.]])
    """
    down, across = (
        torch.arange(n, device=kept.device) * cells // n for n, cells in zip(images.shape[2:], grid, strict=True)
    )
    pixels = kept.view(-1, 1, *grid)[:, :, down][..., across]
    return torch.where(pixels, images, fill)


def attention_without(model: nn.Module, inputs: ModelInputs, structure: ModelStructure, kept: Tensor) -> Any:
    """Run a model whose tokens do not attend to the patches that are not kept.

    Args:
        model: The model.
        inputs: A batch of b images.
        structure: Structure of the model.
        kept: Which patches are kept, shape (b, S).

    Raises:
        ModelError: An attention layer of the model is not between all tokens of an image.
    """
    tokens = torch.tensor(structure.layout.patch_tokens(structure.tokens), device=kept.device)
    present = torch.ones(len(kept), structure.tokens, dtype=torch.bool, device=kept.device)
    present[:, tokens[tokens >= 0]] = kept[:, tokens >= 0]

    def edit(A: Tensor) -> Tensor:
        if A.dim() != 4 or A.shape[0] != len(present):
            raise ModelError(
                f"the attention of {structure.model} over {len(kept)} images has shape {tuple(A.shape)}: it has "
                "several examples in one sequence, so that patches cannot be masked in it; use occlusion or rise"
            )
        masked = A * present[:, None, None, present.shape[1] - A.shape[-1] :]
        return masked / masked.sum(-1, keepdim=True).clamp_min(torch.finfo(A.dtype).tiny)

    edits = dict.fromkeys(range(len(structure.layers)), edit)
    with forward_pass(model, inputs, structure, [{}], edits) as one:
        return one.output


def all_tokens(kept: Tensor, prefix: int, tokens: int) -> Tensor:
    """Extend a mask of the tokens of a text after its prefix, shape (b, S), to all tokens; the others are kept."""
    return F.pad(kept, (prefix, tokens - prefix - kept.shape[1]), value=True)


def drop_tokens(inputs: ModelInputs, kept: Tensor) -> ModelInputs:
    """Shorten texts to the tokens that are kept, equally many in each; ``kept`` has shape (b, tokens).

    Raises:
        NotApplicableError: There is an attention mask for pairs of tokens.
    """
    mask = inputs.kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() > 2:
        raise NotApplicableError(
            "tokens are not left out beside an attention_mask for pairs of tokens: use removal='mask' or removal='fill'"
        )
    index = kept_indices(kept if inputs.valid is None else kept & inputs.valid)

    def shorten(tensor: Tensor) -> Tensor:
        return tensor.gather(1, index) if tensor.shape == kept.shape else tensor

    return inputs.changed(shorten)


def mask_tokens(model: nn.Module, inputs: ModelInputs, kept: Tensor) -> ModelInputs:
    """Remove tokens of texts by the attention mask; ``kept`` has shape (b, tokens).

    Raises:
        NotApplicableError: The model has no attention mask, or one for pairs of tokens that is added to the scores.
    """
    if "attention_mask" not in signature(model.forward).parameters:
        raise NotApplicableError(f"{type(model).__name__} takes no attention_mask: use removal='fill'")
    mask: Tensor = inputs.kwargs.get("attention_mask", torch.ones_like(kept, dtype=torch.long))
    if mask.dim() > 2 and (mask.dtype != torch.bool or (mask.shape[0], mask.shape[-1]) != kept.shape):
        raise NotApplicableError(
            f"tokens cannot be removed by an attention_mask of shape {tuple(mask.shape)} and {mask.dtype}: pass one of "
            f"shape {tuple(kept.shape)} or a boolean one for pairs of tokens, or use removal='fill'"
        )
    # Of a mask for pairs of tokens, shape (b, …, queries, keys), the keys are removed.
    rows = kept.view(kept.shape[0], *(1,) * (mask.dim() - 2), kept.shape[1])
    return replace(inputs, kwargs={**inputs.kwargs, "attention_mask": mask * rows.to(mask)})


class TokenDropper:
    """Runs an unmodified model on some of an image's patches, by removing the tokens of the others.

    At a fraction f of S patches, ``S - round(S * f)`` patch tokens and all other tokens (CLS, registers) enter the
    first block, each with its own position embedding. The tensor to which the first attention branch is added is the
    residual stream, and tokens are removed from the output of the call that returned it. Two trial passes on one image
    check that the model supports this: it must run with one patch fewer, which models with positions inside the
    attention or with merged windows do not, and its output must not change when the patches are permuted. On models of
    several streams of tokens, such as a detector with a decoder, tokens of the stream that is explained are removed.

    Args:
        model: The user's model; it is not changed.
        images: Any valid images, shape (b, channels, height, width), on the model's device, or all inputs of a call.
            The first example is used for the trial passes.
        layout: Prefix, grid and readout, where they cannot be detected.
        any_axes: Whether videos, sound and series are accepted beside images.

    Raises:
        NotApplicableError: The model does not support token dropping.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> dropper = TokenDropper(tiny_vit(), images)
        >>> dropper.patches, dropper(images, torch.tensor([[0, 5], [3, 4]])).shape
        (16, torch.Size([2, 5]))
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor | ModelInputs,
        layout: Layout | None = None,
        any_axes: bool = False,
    ) -> None:
        self.model = unwrap(model)
        model_inputs = _as_inputs(images).select(slice(0, 1)).onto(self.model)
        if model_inputs.image is None and not (any_axes and model_inputs.signal is not None):
            raise NotApplicableError("token dropping needs images: pass a tensor of shape (b, channels, height, width)")
        self.structure = read_structure(self.model, model_inputs, layout)
        grid = self.structure.layout.grid if any_axes else self.structure.layout.plane
        if self.structure.kind not in ("plain", "streams") or grid is None:
            raise self._not_applicable(f"its attention is {self.structure.kind}")
        table = self.structure.layout.table
        if self.structure.streams is not None and table is not None and min(table) < 0:
            raise self._not_applicable("its tokens are no patches of a grid")
        if layout is None and self.structure.order_by_image:
            raise self._not_applicable("the order of its tokens depends on the image")
        self.grid: tuple[int, ...] = grid
        self.prefix = self.structure.layout.prefix or 0
        self._call_index = self._find_call(model_inputs)

    @property
    def patches(self) -> int:
        """Number of patches, S."""
        return prod(self.grid)

    @property
    def supports_empty(self) -> bool:
        """Whether the model can predict from its prefix tokens alone, without any patch."""
        readout = self.structure.layout.readout
        if isinstance(readout, tuple):
            return all(i < self.prefix for i in readout)
        return self.prefix > 0 and readout not in ("mean", "cls+mean")

    @classmethod
    def or_none(
        cls,
        model: nn.Module,
        images: Tensor | ModelInputs,
        grid: tuple[int, ...] | None = None,
        any_axes: bool = False,
    ) -> TokenDropper | None:
        """The dropper of a model, or None if the model does not support it or has patches of another grid."""
        try:
            dropper = cls(model, images, any_axes=any_axes)
        except NotApplicableError:
            return None
        return dropper if grid in (None, dropper.grid) else None

    def __call__(self, images: Tensor | ModelInputs, keep: Tensor) -> Any:
        """Run the model on some patches of each image.

        Args:
            images: Normalised for the model, shape (b, channels, height, width), or all inputs of a call.
            keep: Indices of the patches to keep, shape (b, m).
        """
        with frozen(self.model), torch.no_grad(), self.dropping(keep):
            return _as_inputs(images).into(self.model)

    @contextmanager
    def dropping(self, keep: Tensor) -> Iterator[None]:
        """Let the model, or a copy of it with other weights, run on some patches of each image, once.

        Nothing is frozen here, so that a copy can be trained on parts of images.

        Args:
            keep: Indices of the patches to keep, shape (b, m).
        """
        if keep.shape[1] == 0 and not self.supports_empty:
            raise self._not_applicable("it averages its patches and none is left, so levels must stay below 100 %")
        with self._mode(keep, self._call_index):
            yield

    def _run(self, model_inputs: ModelInputs, keep: Tensor, call_index: int) -> Any:
        with frozen(self.model), torch.no_grad(), self._mode(keep, call_index):
            return model_inputs.into(self.model)

    @contextmanager
    def _mode(self, keep: Tensor, call_index: int) -> Iterator[None]:
        layout, tokens = self.structure.layout, self.structure.tokens
        prefix = torch.arange(self.prefix, device=keep.device).expand(len(keep), -1)
        suffix = torch.arange(tokens - layout.suffix, tokens, device=keep.device).expand(len(keep), -1)
        patches = keep + self.prefix
        if layout.table is not None:
            patches = torch.tensor(layout.table, device=keep.device)[keep]
        mode = _TokenDropMode(torch.cat([prefix, patches, suffix], 1), call_index, self.structure)
        with mode:
            yield
        if not mode.done:
            raise ModelError(
                "the model's calls differ from those on the trial image: token dropping needs a fixed graph"
            )

    def _find_call(self, model_inputs: ModelInputs) -> int:
        """Index of the result, among those of the stream's shape, to drop tokens from: the last that works."""
        streams = self.structure.streams
        call = self.structure.layers[0 if streams is None else streams.first].call
        attention = AttentionMode({"dX": frozenset({call})}, model_inputs.batch)
        recorded = _StreamResults(self.structure, model_inputs.batch)
        with frozen(self.model), torch.no_grad():
            try:
                with attention, recorded:
                    unperturbed = any_output(model_inputs.into(self.model)).float()
            except ModelError as error:
                raise self._not_applicable(str(error)) from error
        stream = attention.nodes.get(("dX", call))
        for index in [i for i, result in enumerate(recorded.results) if result is stream][::-1]:
            if self._supports_dropping(model_inputs, unperturbed, index):
                return index
        raise self._not_applicable("its output depends on the order of its tokens after the position embedding")

    def _supports_dropping(self, model_inputs: ModelInputs, unperturbed: Tensor, call_index: int) -> bool:
        """Whether the model runs with one patch fewer and is invariant to the order of its patches."""
        images = model_inputs.tensors[0] if model_inputs.image is None else model_inputs.image
        every = torch.arange(self.patches, device=images.device)[None]
        order = torch.randperm(self.patches, generator=torch.Generator().manual_seed(0)).to(images.device)
        try:
            self._run(model_inputs, every[:, : max(1, self.patches - 1)], call_index)
            permuted = any_output(self._run(model_inputs, every[:, order], call_index)).float()
        except _FORWARD_ERRORS:
            return False
        tolerance = 1e-3 if images.dtype in (torch.float32, torch.float64) else 5e-2
        return bool((permuted - unperturbed).abs().max() <= tolerance * unperturbed.abs().max().clamp_min(1e-6))

    def _not_applicable(self, reason: str) -> NotApplicableError:
        return NotApplicableError(
            f"tokens of {self.structure.model} cannot be dropped: {reason}; use a fill such as black, mean or blur"
        )


def _as_inputs(images: Tensor | ModelInputs) -> ModelInputs:
    return images if isinstance(images, ModelInputs) else ModelInputs((images,))


def _has_stream_shape(result: Any, structure: ModelStructure, batch: int) -> bool:
    """Whether a result may be the residual stream.

    Only such results are counted: a patch embedding may be computed by a convolution here and by a product there. With
    as many images as tokens, results that have the images in front of the tokens are none.
    """
    if not isinstance(result, Tensor) or result.dim() != 3:
        return False
    if structure.tokens_first:
        return result.shape[0] == structure.tokens and result.shape[1] in (1, batch)
    return result.shape[1] == structure.tokens


class _StreamResults(TorchFunctionMode):
    """Records every tensor of the stream's shape that the model's calls return, in order."""

    def __init__(self, structure: ModelStructure, batch: int) -> None:
        super().__init__()
        self._structure, self._batch, self.results = structure, batch, list[Tensor]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if _has_stream_shape(result, self._structure, self._batch):
            self.results.append(result)
        return result


class _TokenDropMode(TorchFunctionMode):
    """Drops tokens from one of the results that have the stream's shape."""

    def __init__(self, keep: Tensor, call_index: int, structure: ModelStructure) -> None:
        super().__init__()
        self.done = False
        self._keep, self._call_index, self._structure, self._calls = keep, call_index, structure, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.done or not _has_stream_shape(result, self._structure, len(self._keep)):
            return result
        self._calls += 1
        if self._calls <= self._call_index:
            return result
        self.done = True
        axis = 0 if self._structure.tokens_first else 1
        keep = self._keep.T if axis == 0 else self._keep
        return result.gather(axis, keep[..., None].expand(*keep.shape, result.shape[2]))
