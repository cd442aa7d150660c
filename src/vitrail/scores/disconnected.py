"""DiFull and DiPart: vision transformers in which the cells of a grid cannot influence each other [rao2022towards].

Each cell has a class token of its own, and attention is limited to the cell. In DiFull the head reads the class token
of one cell, so that relevance in any other cell is wrong. In DiPart it reads the mean of all class tokens: every cell
adds to the score of every class, but no cell depends on another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.capture.layout import Layout
from vitrail.errors import InputError, NotApplicableError, OptionError


class DisconnectedGrid(nn.Module):
    """A timm vision transformer applied to a grid of n × n images, each of the model's own input size.

    The tokens are the n² class tokens, then the patches of the grid row by row. Every cell has the model's position
    embedding, so the output for one cell alone is exactly the model's output for the image in it.

    Args:
        model: A timm ``VisionTransformer`` with one class token that the head reads; it is shared, not copied.
        n: Cells in a row and in a column.
        cell: The cell whose class token the head reads (DiFull), counted row by row; None for all (DiPart).

    Raises:
        NotApplicableError: The model is of another kind.

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

    def _positions(self) -> tuple[Tensor, Tensor | float]:
        """Position embeddings of the patches, shape (S, d), and of the class token."""
        embedding = self.model.pos_embed[0]
        if len(embedding) == self.model.patch_embed.num_patches:
            return embedding, 0.0
        return embedding[1:], embedding[:1]


def _check(model: nn.Module) -> None:
    needed = ("patch_embed", "cls_token", "pos_embed", "blocks", "norm", "fc_norm", "head", "norm_pre")
    missing = [name for name in needed if getattr(model, name, None) is None]
    prefix, pool = getattr(model, "num_prefix_tokens", None), getattr(model, "global_pool", None)
    if missing or prefix != 1 or pool != "token":
        why = f"it has no {missing[0]}" if missing else f"it has {prefix} prefix tokens and global_pool={pool!r}"
        raise NotApplicableError(
            f"disconnected grids need a timm VisionTransformer whose head reads its one class token, and {why}"
        )
