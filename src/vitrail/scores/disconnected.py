"""DiFull and DiPart: vision transformers in which the cells of a grid cannot influence each other [rao2022towards].

Each cell has a class token of its own, and attention is limited to the cell. In DiFull the head reads the class token
of one cell, so that relevance in any other cell is wrong. In DiPart it reads the mean of all class tokens: every cell
adds to the score of every class, but no cell depends on another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.frozen import frozen
from vitrail.capture.layout import Layout
from vitrail.capture.tensor_difference import relative_difference
from vitrail.errors import InputError, NotApplicableError, OptionError

#: Largest difference between a model's own pass and that of a cell, as a share of the largest value; on a GPU, where
#: products may be in TF32, and in half precision.
TOLERANCE, GPU_TOLERANCE, HALF_TOLERANCE = 1e-3, 1e-2, 5e-2


class DisconnectedGrid(nn.Module):
    """A timm vision transformer applied to a grid of n × n images, each of the model's own input size.

    The tokens are the n² class tokens, then the patches of the grid row by row. Every cell has the model's position
    embedding, so the output for one cell alone is exactly the model's output for the image in it.

    Args:
        model: A timm ``VisionTransformer`` with one class token that the head reads; it is shared, not copied.
        n: Cells in a row and in a column.
        cell: The cell whose class token the head reads (DiFull), counted row by row; None for all (DiPart).

    Raises:
        NotApplicableError: The model is of another kind, or computes its tokens in another way than timm: its own pass
            over one image is compared with that of a cell.

    Example:
        >>> from timm import create_model
        >>> model = create_model("vit_tiny_patch16_224", img_size=32, depth=2).eval()
        >>> images = torch.randn(4, 3, 32, 32)
        >>> grid = torch.cat([torch.cat([*images[:2]], 2), torch.cat([*images[2:]], 2)], 1)
        >>> with torch.no_grad():
        ...     torch.allclose(DisconnectedGrid(model, cell=2)(grid[None]), model(images[2:3]), atol=1e-4)
        True
    """

    def __init__(self, model: nn.Module, n: int = 2, cell: int | None = None) -> None:
        super().__init__()
        _check(model)
        if n < 1 or (cell is not None and not 0 <= cell < n * n):
            raise OptionError(f"cell={cell} is not a cell of a grid of {n} × {n}: choose 0 to {n * n - 1}, or None")
        self.model: Any
        self.add_module("model", model)
        self.n, self.cell = n, cell
        rows, columns = self.model.patch_embed.grid_size
        owner = torch.arange(n * n).view(n, n).repeat_interleave(rows, 0).repeat_interleave(columns, 1).flatten()
        owner = torch.cat([torch.arange(n * n), owner])
        self.attention_mask: Tensor
        self.register_buffer("attention_mask", owner[:, None] == owner, persistent=False)
        self._compare_with_model()

    @property
    def layout(self) -> Layout:
        """The layout of its tokens, to be passed to `vitrail.explain`."""
        rows, columns = self.model.patch_embed.grid_size
        read = tuple(range(self.n**2)) if self.cell is None else (self.cell,)
        return Layout(prefix=self.n**2, grid=(self.n * rows, self.n * columns), readout=read)

    def forward(self, grids: Tensor) -> Tensor:
        """Return the logits of grids of shape (B, channels, n·height, n·width)."""
        model, n = self.model, self.n
        height, width = model.patch_embed.img_size
        if tuple(grids.shape[2:]) != (n * height, n * width):
            raise InputError(f"expected grids of {n * height} × {n * width} pixels, got {tuple(grids.shape[2:])}")
        rows, columns = model.patch_embed.grid_size
        # Patches do not overlap, so the patch embedding of the grid is that of its cells.
        patches = model.patch_embed.norm(model.patch_embed.proj(grids).flatten(2).transpose(1, 2))
        at_patches, at_class = self._positions()
        tiled = at_patches.view(rows, columns, -1).repeat(n, n, 1).flatten(0, 1)
        class_tokens = (model.cls_token + at_class).expand(len(grids), n * n, -1)
        x = torch.cat([class_tokens, patches + tiled], 1)
        x = model.norm_pre(x)
        for block in model.blocks:
            x = block(x, attn_mask=self.attention_mask)
        x = model.norm(x)[:, : n * n]
        # One token is sliced, not indexed, so that the head reads it as it reads a class token.
        read = x.mean(1) if self.cell is None else x[:, self.cell : self.cell + 1].mean(1)
        logits: Tensor = model.head(model.fc_norm(read))
        return logits

    def _compare_with_model(self) -> None:
        """Refuse a model whose own pass over images gives other outputs than their cells of a grid.

        Such a model has a forward pass of its own, hooks or layers that the grid leaves out, or blocks that take no
        mask. What the head reads is compared as well, as a head may be constant.
        """
        name, model = type(self.model).__name__, self.model
        try:
            difference = self._largest_difference()
        except (RuntimeError, TypeError, AttributeError, ValueError, IndexError) as error:
            reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else 'no message'}"
            raise NotApplicableError(
                f"disconnected grids need a model that computes its tokens as timm's VisionTransformer does, and "
                f"{name} cannot be run on the cells of a grid ({reason})"
            ) from error
        weight = next(model.parameters())
        half = weight.dtype in (torch.float16, torch.bfloat16)
        limit = HALF_TOLERANCE if half else GPU_TOLERANCE if weight.is_cuda else TOLERANCE
        if not difference <= limit:
            raise NotApplicableError(
                f"disconnected grids compute tokens as timm's VisionTransformer does, and {name} computes them "
                f"otherwise: its own output for an image and that for the same image in a cell differ by "
                f"{100 * difference:.2g} % (a forward pass of its own, hooks, further layers, or blocks without a mask)"
            )

    def _largest_difference(self) -> float:
        """Largest difference between the model's own pass over random images and that over a grid of them."""
        model, n = self.model, self.n
        weight, (height, width) = next(model.parameters()), model.patch_embed.img_size
        channels = model.patch_embed.proj.in_channels
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(n * n, channels, height, width, generator=generator).to(weight)
        grid = images.view(n, n, channels, height, width).permute(2, 0, 3, 1, 4).reshape(1, channels, n * height, -1)
        self.attention_mask = self.attention_mask.to(weight.device)
        with frozen(model), torch.no_grad(), fast.without_autocast(weight.device):
            read, alone = _head_inputs(model, model, images)
            read_of_grid, of_grid = _head_inputs(self, model, grid)
        pairs = ((read_of_grid, read), (of_grid, alone))
        chosen = [
            (found, own.mean(0, keepdim=True) if self.cell is None else own[self.cell, None]) for found, own in pairs
        ]
        return max(float(relative_difference(found, own)) for found, own in chosen)

    def _positions(self) -> tuple[Tensor, Tensor | float]:
        """Position embeddings of the patches, shape (S, d), and of the class token."""
        embedding = self.model.pos_embed[0]
        if len(embedding) == self.model.patch_embed.num_patches:
            return embedding, 0.0
        return embedding[1:], embedding[:1]


def _head_inputs(called: nn.Module, model: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """What the head of a model reads in a call, and what the call returns."""
    seen: list[Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        output = called(images)
    finally:
        handle.remove()
    if len(seen) != 1 or not isinstance(output, Tensor):
        raise ValueError(f"its head was called {len(seen)} times, and it returned a {type(output).__name__}")
    return seen[0], output


def _check(model: nn.Module) -> None:
    needed = ("patch_embed", "cls_token", "pos_embed", "blocks", "norm", "fc_norm", "head", "norm_pre")
    missing = [name for name in needed if getattr(model, name, None) is None]
    embed = getattr(model, "patch_embed", None)
    missing += [f"patch_embed.{name}" for name in ("img_size", "grid_size", "proj", "norm") if not hasattr(embed, name)]
    prefix, pool = getattr(model, "num_prefix_tokens", None), getattr(model, "global_pool", None)
    if missing or prefix != 1 or pool != "token":
        why = f"it has no {missing[0]}" if missing else f"it has {prefix} prefix tokens and global_pool={pool!r}"
        raise NotApplicableError(
            f"disconnected grids need a timm VisionTransformer whose head reads its one class token, and {why}"
        )
