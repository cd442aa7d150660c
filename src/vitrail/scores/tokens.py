"""Removing patches by leaving their tokens out, inside an unmodified model.

A transformer does not need every patch: a token that is not there attends to nothing and is attended by nothing, and no
fill has to be invented for it. So at a fraction f of S patches, ``S - round(S * f)`` tokens and the prefix (CLS and its
like) go on into the first block, each with the position embedding it had.

Where that is, is found by what the model computes, not by names: the tensor that the first attention's branch is added
to is the stream, and the call that made it is where tokens are taken out. Two trials on one picture then show whether
the model bears it. With one patch less it must still run, which models that add a position inside their attention, or
merge windows, do not; and with the patches in another order it must give the same answer. A model that fails is
refused.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitrail.capture.attention import AttentionMode
from vitrail.capture.frozen import frozen, unwrap
from vitrail.capture.inputs import ModelInputs, any_output
from vitrail.capture.layout import Layout
from vitrail.capture.structure import ModelStructure, read_structure
from vitrail.errors import InputError, ModelError, NotApplicableError
from vitrail.scores.ranks import Order, window

_BREAKS = (RuntimeError, ValueError, AssertionError, IndexError, TypeError)


def patch_means(maps: Tensor, grid: tuple[int, int]) -> Tensor:
    """Mean relevance of each patch: (N, height, width) to (N, rows, columns).

    Example:
        >>> patch_means(torch.arange(8.0).view(1, 2, 4), (1, 2))
        tensor([[[2.5000, 4.5000]]])
    """
    if maps.shape[-2] % grid[0] or maps.shape[-1] % grid[1]:
        raise InputError(f"maps of {maps.shape[-2]}×{maps.shape[-1]} do not divide into {grid[0]}×{grid[1]} patches")
    return F.avg_pool2d(maps[:, None].float(), (maps.shape[-2] // grid[0], maps.shape[-1] // grid[1]))[:, 0]


def kept(ranks: Tensor, count: int, order: Order) -> Tensor:
    """Patches that stay when ``count`` are removed, in raster order: ranks (N, S) to indices (N, S − count).

    Example:
        >>> kept(torch.tensor([[2, 0, 3, 1]]), 1, "morf"), kept(torch.tensor([[2, 0, 3, 1]]), 1, "lerf")
        (tensor([[0, 2, 3]]), tensor([[0, 1, 3]]))
    """
    low, high = window(count, ranks.shape[-1], order)
    by_rank = ranks.argsort(-1)
    stay = torch.cat([by_rank[:, :low], by_rank[:, high:]], 1)
    return stay.sort(-1).values


class TokenDrop:
    """A model that can be run with some of its patches left out.

    Args:
        model: The user's model; it is left as it was.
        images: Some input, shape (b, channels, height, width), on the model's device; the first is tried on.
        layout: Prefix, grid and readout, where they cannot be found out.

    Raises:
        NotApplicableError: The model does not bear it.

    Example:
        >>> from vitrail.testing import tiny_vit
        >>> images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> drop = TokenDrop(tiny_vit(), images)
        >>> drop.patches, drop(images, torch.tensor([[0, 5], [3, 4]])).shape
        (16, torch.Size([2, 5]))
    """

    def __init__(self, model: nn.Module, images: Tensor, layout: Layout | None = None) -> None:
        self.model = unwrap(model)
        model_inputs = ModelInputs((images[:1],)).onto(self.model)
        if model_inputs.image is None:
            raise NotApplicableError("only images have patches to leave out: give a tensor of four axes")
        self.structure = read_structure(self.model, model_inputs, layout)
        if self.structure.kind != "plain" or self.structure.layout.grid is None:
            raise self._refusal(f"its attention is {self.structure.kind}")
        self.grid = self.structure.layout.grid
        self.prefix = self.structure.layout.prefix or 0
        self._site = self._find(model_inputs)

    @property
    def patches(self) -> int:
        """Number of patches, S."""
        return self.grid[0] * self.grid[1]

    @property
    def may_be_empty(self) -> bool:
        """Whether the model can answer from its prefix alone, all patches gone."""
        readout = self.structure.layout.readout
        if isinstance(readout, tuple):
            return all(i < self.prefix for i in readout)
        return self.prefix > 0 and readout not in ("mean", "cls+mean")

    def __call__(self, images: Tensor, keep: Tensor) -> Any:
        """What the model says with only some patches.

        Args:
            images: Shape (b, channels, height, width), as the model takes them.
            keep: Indices of the patches that stay, shape (b, m).
        """
        if keep.shape[1] == 0 and not self.may_be_empty:
            raise self._refusal("it reads the mean of its patches, and none is left; stop below 100 %")
        return self._run(images, keep, self._site)

    def _run(self, images: Tensor, keep: Tensor, site: int) -> Any:
        layout, tokens = self.structure.layout, self.structure.tokens
        prefix = torch.arange(self.prefix, device=keep.device).expand(len(keep), -1)
        suffix = torch.arange(tokens - layout.suffix, tokens, device=keep.device).expand(len(keep), -1)
        patches = keep + self.prefix
        if layout.table is not None:
            patches = torch.tensor(layout.table, device=keep.device)[keep].sort(1).values
        mode = _Drop(torch.cat([prefix, patches, suffix], 1), site, self.structure)
        with frozen(self.model), torch.no_grad(), mode:
            output = self.model(images)
        if not mode.done:
            raise ModelError("the model took another path than on the trial picture: its calls depend on the input")
        return output

    # -- where and whether -----------------------------------------------------------------------------------------

    def _find(self, model_inputs: ModelInputs) -> int:
        """Which call makes the stream; of several that return the same tensor, the last one that works."""
        call, images = self.structure.layers[0].call, model_inputs.tensors[0]
        attention = AttentionMode({"dX": frozenset({call})}, model_inputs.batch)
        seen = _Record()
        with frozen(self.model), torch.no_grad():
            try:
                with attention, seen:
                    plain = any_output(model_inputs.into(self.model)).float()
            except ModelError as error:
                raise self._refusal(str(error)) from error
        stream = attention.nodes.get(("dX", call))
        for site in [i for i, result in enumerate(seen.results) if result is stream][::-1]:
            if self._bears(images, plain, site):
                return site
        raise self._refusal("its answer depends on where tokens stand after its position embedding")

    def _bears(self, images: Tensor, plain: Tensor, site: int) -> bool:
        every = torch.arange(self.patches, device=images.device)[None]
        turned = every[:, torch.randperm(self.patches, generator=torch.Generator().manual_seed(0)).to(images.device)]
        try:
            self._run(images, every[:, : max(1, self.patches - 1)], site)
            other = any_output(self._run(images, turned, site)).float()
        except _BREAKS:
            return False
        near = 1e-3 if images.dtype in (torch.float32, torch.float64) else 5e-2
        return bool((other - plain).abs().max() <= near * plain.abs().max().clamp_min(1e-6))

    def _refusal(self, why: str) -> NotApplicableError:
        return NotApplicableError(
            f"patches of {self.structure.model} cannot be left out: {why}; use a fill such as black, mean or blur"
        )


class _Record(TorchFunctionMode):
    """Every tensor a model's own calls return, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.results.append(result)
        return result


class _Drop(TorchFunctionMode):
    """Gathers tokens out of what one call returns."""

    def __init__(self, keep: Tensor, site: int, structure: ModelStructure) -> None:
        super().__init__()
        self.done = False
        self._keep, self._site, self._structure, self._seen = keep, site, structure, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.done or not isinstance(result, Tensor):
            return result
        self._seen += 1
        if self._seen <= self._site:
            return result
        self.done = True
        axis = 0 if self._structure.tokens_first else 1
        if result.dim() != 3 or result.shape[axis] != self._structure.tokens:
            raise ModelError(f"the stream was not where it was on the trial picture: {tuple(result.shape)}")
        keep = self._keep.T if axis == 0 else self._keep
        return result.gather(axis, keep[..., None].expand(*keep.shape, result.shape[2]))
