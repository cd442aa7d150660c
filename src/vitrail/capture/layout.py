"""Where the patches stand among the tokens, and which tokens the head reads."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, sqrt

import torch
from torch import Tensor

from vitrail.errors import ModelError

READOUTS = {
    "cls": "the CLS token",
    "distilled": "the mean of the CLS and distillation tokens",
    "mean": "the mean of the patches",
    "cls+mean": "the CLS token and the mean of the patches, side by side",
    "all": "the mean of all tokens",
    "pool": "an attention pool",
}


@dataclass(frozen=True)
class Layout:
    """What a user can say of a model that Vitrail does not know; anything left None is found out.

    Attributes:
        prefix: Number of tokens before the patches (CLS, distillation, registers).
        grid: Patches per column and per row.
        readout: One of ``READOUTS``, or the indices of the tokens the head averages.

    Example:
        >>> Layout(prefix=1, grid=(14, 14), readout="cls").tokens
        197
    """

    prefix: int | None = None
    grid: tuple[int, int] | None = None
    readout: str | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.readout, str) and self.readout not in READOUTS:
            raise ModelError(f"unknown readout {self.readout!r}: choose from {', '.join(READOUTS)}, or give indices")

    @property
    def tokens(self) -> int | None:
        """Number of tokens, if both parts are known."""
        if self.prefix is None or self.grid is None:
            return None
        return self.prefix + self.grid[0] * self.grid[1]

    def weights(self, queries: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The readout as a vector r over the queries of the last block, shape (queries,).

        Example:
            >>> Layout(prefix=1, grid=(1, 2), readout="cls+mean").weights(3, torch.device("cpu"), torch.float32)
            tensor([1.0000, 0.5000, 0.5000])
        """
        prefix = self.prefix or 0
        if isinstance(self.readout, tuple) and not all(0 <= i < queries for i in self.readout):
            raise ModelError(f"readout {self.readout} names a token that is not there: the model has {queries}")
        r = torch.zeros(queries, device=device, dtype=dtype)
        if isinstance(self.readout, tuple):
            r[list(self.readout)] = 1 / len(self.readout)
        elif self.readout == "distilled":
            r[:2] = 0.5
        elif self.readout in ("mean", "cls+mean"):
            r[prefix:] = 1 / (queries - prefix)
            if self.readout == "cls+mean":
                r[0] = 1
        elif self.readout in ("all", "pool"):
            r[:] = 1 / queries
        else:
            r[0] = 1
        return r

    def describe(self) -> str:
        """The readout in words."""
        if isinstance(self.readout, tuple):
            shown = ", ".join(map(str, self.readout[:6])) + (", …" if len(self.readout) > 6 else "")
            return f"token {shown}" if len(self.readout) == 1 else f"the mean of tokens {shown}"
        return READOUTS[self.readout or "cls"]


def read_layout(
    given: Layout, tokens: int, image: tuple[int, int] | None, convolved: tuple[int, int] | None, stated: int | None
) -> Layout:
    """Find prefix and grid, preferring what the user gave, then the patch embedding, then the library's own word.

    Args:
        given: What the user said.
        tokens: Number of tokens n in the blocks.
        image: Height and width of the input, or None for text.
        convolved: Spatial size of the patch-embedding convolution's output, or None if none was seen.
        stated: The number of prefix tokens the library says the model has, or None.

    Example:
        >>> read_layout(Layout(), 201, (224, 224), (14, 14), None)
        Layout(prefix=5, grid=(14, 14), readout=None)
        >>> read_layout(Layout(), 99, (224, 448), None, None)
        Layout(prefix=1, grid=(7, 14), readout=None)
    """
    prefix, grid = given.prefix, given.grid
    if grid is None and convolved is not None and 0 <= tokens - convolved[0] * convolved[1] <= max(16, tokens // 4):
        grid = convolved
    if image is None:
        return Layout(prefix, None, given.readout)
    known = prefix if prefix is not None else stated
    if grid is None and (convolved is None or known is not None):
        guesses = (known,) if known is not None else (0, 1, 2, 5)
        grid = next((g for guess in guesses if (g := grid_of(tokens - guess, image)) is not None), None)
    if grid is None:
        seen = f"a patch embedding of {convolved[0]}×{convolved[1]}" if convolved else "no patch embedding"
        raise ModelError(
            f"the patch grid was not found: {tokens} tokens for a {image[0]}×{image[1]} image, and {seen} seen; does "
            "the model drop or merge patches? If not, give layout=vitrail.Layout(prefix=…, grid=(rows, columns))"
        )
    found = tokens - grid[0] * grid[1]
    if prefix is not None and prefix != found:
        raise ModelError(
            f"the layout does not fit: {prefix} prefix tokens and a {grid[0]}×{grid[1]} grid make "
            f"{prefix + grid[0] * grid[1]} tokens, the model has {tokens}"
        )
    if found < 0:
        raise ModelError(f"a {grid[0]}×{grid[1]} grid has more patches than the model's {tokens} tokens")
    return Layout(found, grid, given.readout)


def grid_of(patches: int, image: tuple[int, int]) -> tuple[int, int] | None:
    """The grid with square patches that tiles the image, if there is one."""
    if patches <= 0:
        return None
    rows = isqrt(round(patches * image[0] / image[1]))
    for gh in (rows, rows + 1):
        if gh and patches % gh == 0 and image[0] % gh == 0 and image[1] % (patches // gh) == 0:
            gw = patches // gh
            if image[0] // gh == image[1] // gw:
                return gh, gw
    return None


def read_readout(reach: Tensor, prefix: int) -> str | tuple[int, ...] | None:
    """Which tokens the head reads, from how strongly its output depends on each of them in the last block.

    Args:
        reach: Norm of the output's gradient at each token of the last attention's output, shape (n,).
        prefix: Number of prefix tokens.

    Returns:
        A name of ``READOUTS``, token indices, or None where nothing is read (a head of zeros).

    Example:
        >>> read_readout(torch.tensor([2.0, 0.0, 0.0]), prefix=1)
        'cls'
        >>> read_readout(torch.tensor([0.0, 1.0, 1.2]), prefix=1)
        'mean'
    """
    top = float(reach.max())
    if not top > 0:
        return None
    live = (reach > top * 1e-12).tolist()
    rows = tuple(i for i, alive in enumerate(live) if alive)
    patches = reach[prefix:]
    if all(live[prefix:]) and len(patches) > 1:
        if not any(live[:prefix]):
            return "mean"
        # A token that is read by itself weighs as much as all patches of a mean together.
        return "cls+mean" if float(reach[0]) > sqrt(len(patches)) * float(patches.median()) else "all"
    if rows == (0,):
        return "cls"
    return "distilled" if rows == (0, 1) and prefix >= 2 else rows
