"""Where the patches stand among the tokens, where they lie in the image, and which tokens the head reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt, prod, sqrt

import numpy as np
import torch
from torch import Tensor

from vitrail import fast
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
class Area:
    """The part of an input that the patch grid covers, in entries (pixels, frames); it may end beyond the input.

    Attributes:
        start: First entry along each axis of the map; of an image the first row and column.
        size: Size of the whole grid along each axis.
    """

    start: tuple[int, ...]
    size: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The tokens of a model; anything left None is measured.

    Attributes:
        prefix: Number of tokens before the patches (CLS, distillation, registers).
        grid: Number of patches along each axis of the map: rows and columns for images, time, rows and columns for
            videos, time alone for waveforms.
        readout: One of ``READOUTS``, or the indices of the tokens the head averages.
        suffix: Number of tokens after the patches.
        table: Token of each grid cell, row by row; −1 for a cell without token. None where the patches stand row by
            row after the prefix.
        area: What the grid covers, or None for the whole input.

    Example:
        >>> Layout(prefix=1, grid=(14, 14), readout="cls").tokens
        197
    """

    prefix: int | None = None
    grid: tuple[int, ...] | None = None
    readout: str | tuple[int, ...] | None = None
    suffix: int = 0
    table: tuple[int, ...] | None = None
    area: Area | None = None

    def __post_init__(self) -> None:
        if isinstance(self.readout, str) and self.readout not in READOUTS:
            raise ModelError(f"unknown readout {self.readout!r}: choose from {', '.join(READOUTS)}, or give indices")
        if self.table is not None and self.grid is not None and len(self.table) != prod(self.grid):
            raise ModelError(
                f"the token table has {len(self.table)} entries, a {by(self.grid)} grid needs {prod(self.grid)}: give "
                "one token for each cell, −1 for none"
            )

    @property
    def plane(self) -> tuple[int, int] | None:
        """Rows and columns of the patches of an image; None where they are unknown or the grid has no two axes."""
        return (self.grid[0], self.grid[1]) if self.grid is not None and len(self.grid) == 2 else None

    @property
    def tokens(self) -> int | None:
        """Number of tokens, if both prefix and grid are known."""
        if self.prefix is None or self.grid is None:
            return None
        if self.table is not None:
            return self.prefix + sum(t >= 0 for t in self.table) + self.suffix
        return self.prefix + prod(self.grid) + self.suffix

    def patch_tokens(self, tokens: int) -> tuple[int, ...]:
        """The token of each patch, row by row; −1 for a cell without token.

        Example:
            >>> Layout(prefix=1, grid=(1, 2), suffix=1).patch_tokens(4)
            (1, 2)
        """
        if self.table is not None:
            return self.table
        return tuple(range(self.prefix or 0, tokens - self.suffix))

    def patches(self, values: Tensor, axis: int = -1) -> Tensor:
        """The entries of the patches along an axis that holds all tokens, row by row; zero for cells without token."""
        if self.table is None:
            start = self.prefix or 0
            return values.narrow(axis, start, values.shape[axis] - start - self.suffix)
        index = index_tensor(self.table, values.device)
        found = values.index_select(axis, index.clamp_min(0))
        if min(self.table) >= 0:
            return found
        shape = [1] * values.dim()
        shape[axis] = -1
        return found * (index >= 0).to(found.dtype).view(shape)

    def weights(self, queries: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """The readout as a vector r over the queries of the last block, shape (queries,).

        Example:
            >>> Layout(prefix=1, grid=(1, 2), readout="cls+mean").weights(3, torch.device("cpu"), torch.float32)
            tensor([1.0000, 0.5000, 0.5000])
        """
        if isinstance(self.readout, tuple) and not all(0 <= i < queries for i in self.readout):
            raise ModelError(f"readout {self.readout} names a token that does not exist: the model has {queries}")
        r = torch.zeros(queries, device=device, dtype=dtype)
        if isinstance(self.readout, tuple):
            r.index_fill_(0, index_tensor(self.readout, device), 1 / len(self.readout))
        elif self.readout == "distilled":
            r[:2] = 0.5
        elif self.readout in ("mean", "cls+mean"):
            patches = tuple(t for t in self.patch_tokens(queries) if t >= 0)
            r.index_fill_(0, index_tensor(patches, device), 1 / len(patches))
            if self.readout == "cls+mean":
                r[:1] = 1
        elif self.readout in ("all", "pool"):
            r[:] = 1 / queries
        else:
            r[:1] = 1  # r[0] would be copied from the CPU, for which a GPU waits
        return r

    def describe(self) -> str:
        """The readout in words."""
        if isinstance(self.readout, tuple):
            shown = ", ".join(map(str, self.readout[:6])) + (", …" if len(self.readout) > 6 else "")
            return f"token {shown}" if len(self.readout) == 1 else f"the mean of tokens {shown}"
        return READOUTS[self.readout or "cls"]


def by(sizes: tuple[int, ...]) -> str:
    """Sizes for messages.

    Example:
        >>> by((8, 14, 14))
        '8×14×14'
    """
    return "×".join(map(str, sizes))


def index_tensor(indices: tuple[int, ...], device: torch.device) -> Tensor:
    """Indices on a device; kept, because copying them there makes a GPU wait."""
    found = _index_tensor(indices, device)
    fast.keep(found)
    return found


@lru_cache(maxsize=256)
def _index_tensor(indices: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(indices, dtype=torch.long, device=device)


def count_layout(
    given: Layout, tokens: int, image: tuple[int, int] | None, convolved: tuple[int, int] | None, stated: int | None
) -> Layout:
    """Prefix and grid by counting tokens, where they cannot be measured.

    Args:
        given: What the user said.
        tokens: Number of tokens n in the blocks.
        image: Height and width of the input, or None for text.
        convolved: Spatial size of the patch-embedding convolution's output, or None if none was seen.
        stated: The number of prefix tokens the library says the model has, or None.

    Example:
        >>> count_layout(Layout(), 201, (224, 224), (14, 14), None)
        Layout(prefix=5, grid=(14, 14), readout=None, suffix=0, table=None, area=None)
    """
    prefix, grid = given.prefix, given.plane
    if grid is None and convolved is not None and 0 <= tokens - convolved[0] * convolved[1] <= max(16, tokens // 4):
        grid = convolved
    if image is None:
        return replace(given, grid=None)
    known = prefix if prefix is not None else stated
    if grid is None and (convolved is None or known is not None):
        guesses = (known,) if known is not None else (0, 1, 2, 5)
        grid = next((g for guess in guesses if (g := grid_of(tokens - guess - given.suffix, image)) is not None), None)
    if grid is None:
        seen = f"a patch embedding of {convolved[0]}×{convolved[1]}" if convolved else "no patch embedding"
        raise ModelError(
            f"the patch grid was not found: {tokens} tokens for a {image[0]}×{image[1]} image, and {seen} seen; does "
            "the model drop or merge patches? If not, give layout=vitrail.Layout(prefix=…, grid=(rows, columns))"
        )
    found = tokens - grid[0] * grid[1] - given.suffix if given.table is None else prefix or 0
    if prefix is not None and prefix != found:
        raise ModelError(
            f"the layout does not fit: {prefix} prefix tokens and a {grid[0]}×{grid[1]} grid make "
            f"{prefix + grid[0] * grid[1] + given.suffix} tokens, the model has {tokens}"
        )
    if found < 0:
        raise ModelError(f"a {grid[0]}×{grid[1]} grid has more patches than the model's {tokens} tokens")
    return replace(given, prefix=found, grid=grid)


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


def measured_layout(owners: Tensor, tokens: int) -> Layout | None:
    """Prefix, suffix, grid, table and area from the token that each entry of the input belongs to.

    Args:
        owners: Token of each entry, in the shape of a map: (height, width) for images, (time, height, width) for
            videos, (time,) for waveforms; −1 for entries of no token.
        tokens: Number of tokens n.

    Returns:
        None where the patches lie on no grid.

    Example:
        >>> measured_layout(torch.tensor([[1, 1, 2, 2]] * 2), tokens=3)
        Layout(prefix=1, grid=(1, 2), readout=None, suffix=0, table=None, area=None)
        >>> measured_layout(torch.tensor([[1, 1, 0, 0, -1]] * 2), tokens=3)
        Layout(prefix=0, grid=(1, 2), readout=None, suffix=1, table=(1, 0), area=Area(start=(0, 0), size=(2, 4)))
        >>> measured_layout(torch.tensor([0, 0, 0, 1, 1, 1]), tokens=2)
        Layout(prefix=0, grid=(2,), readout=None, suffix=0, table=None, area=None)
    """
    size = tuple(int(n) for n in owners.shape)
    count, *sums = _sums_by_token(owners, tokens)
    if not bool(count.any()):
        return None
    centres = [total / count for total in sums]
    seen = (count > 0.2 * count[count > 0].median()).nonzero()[:, 0]
    lines = [_lines(centre[seen]) for centre in centres]
    grid = tuple(len(line) for line in lines)
    cells = torch.zeros_like(seen)
    for centre, line in zip(centres, lines, strict=True):
        cells = cells * len(line) + _nearest(centre[seen], line)
    if len(set(cells.tolist())) != len(cells) or len(cells) < 0.25 * prod(grid):
        return None
    table = [-1] * prod(grid)
    for cell, token in zip(cells.tolist(), seen.tolist(), strict=True):
        table[cell] = token
    prefix, suffix = min(seen.tolist()), tokens - 1 - max(seen.tolist())
    regular = table == list(range(prefix, tokens - suffix))
    starts = [_start(line, length) for line, length in zip(lines, size, strict=True)]
    if 1 in grid and not bool((owners >= 0).all()):
        starts = _extents(starts, owners, seen, grid)
    area = Area(
        tuple(first for first, _ in starts), tuple(pitch * n for (_, pitch), n in zip(starts, grid, strict=True))
    )
    whole = area == Area((0,) * len(size), size)
    return Layout(prefix, grid, None, suffix, None if regular else tuple(table), None if whole else area)


def _extents(
    starts: list[tuple[int, int]], owners: Tensor, seen: Tensor, grid: tuple[int, ...]
) -> list[tuple[int, int]]:
    """First entry and pitch along each axis; where one patch covers an axis, its own entries, not the whole axis."""
    inside = torch.isin(owners.cpu(), seen.cpu()).nonzero()
    low, high = inside.amin(0).tolist(), inside.amax(0).tolist()
    return [(low[axis], high[axis] + 1 - low[axis]) if count == 1 else starts[axis] for axis, count in enumerate(grid)]


def _sums_by_token(owners: Tensor, tokens: int) -> list[Tensor]:
    """Number of entries of each token, and for each axis the sum of their indices, each of shape (tokens,)."""
    ids = (owners + 1).flatten()  # 0 for entries of no token
    if owners.device.type == "cpu":  # numpy is faster here
        indices = [index.reshape(-1) for index in np.indices(owners.shape)]
        found = [np.bincount(ids.numpy(), w, tokens + 1)[1:].astype(np.float64) for w in (None, *indices)]
        return [torch.from_numpy(one) for one in found]
    places = [torch.arange(n, dtype=torch.float64, device=owners.device) for n in owners.shape]
    grid = torch.stack([torch.ones_like(owners, dtype=torch.float64), *torch.meshgrid(*places, indexing="ij")])
    sums = torch.zeros(len(grid), tokens + 1, dtype=torch.float64, device=owners.device)
    return list(sums.index_add_(1, ids, grid.flatten(1))[:, 1:].cpu())


def _lines(centres: Tensor) -> Tensor:
    """The distinct rows (or columns) that the centres of patches lie on."""
    ordered = centres.sort().values
    gaps = ordered.diff()
    if not len(gaps) or float(gaps.max()) < 0.75:
        return ordered.mean()[None]
    # Patches of one row differ by rounding, rows by a patch: the threshold lies well between the two.
    large = gaps[gaps > 0.5 * gaps.max()]
    cut = (gaps > 0.4 * large.median()).nonzero()[:, 0].tolist()
    groups = torch.tensor_split(ordered, [c + 1 for c in cut])
    return torch.stack([group.mean() for group in groups])


def _nearest(centres: Tensor, lines: Tensor) -> Tensor:
    return (centres[:, None] - lines[None]).abs().argmin(1)


def _start(lines: Tensor, size: int) -> tuple[int, int]:
    """First pixel and pitch of a row of patches; the last patch may be cut off by the border, so it does not count."""
    if len(lines) == 1:
        return 0, size
    steps = (lines[:-1] if len(lines) > 2 else lines).diff()
    pitch = round(float(steps.median()))
    return round(float(lines[0]) + 0.5 - pitch / 2), pitch


def read_readout(reach: Tensor, prefix: int, suffix: int = 0) -> str | tuple[int, ...] | None:
    """Which tokens the head reads, from how strongly its output depends on each of them in the last block.

    Args:
        reach: Norm of the output's gradient at each token of the last attention's output, shape (n,).
        prefix: Number of prefix tokens.
        suffix: Number of suffix tokens.

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
    end = len(live) - suffix
    patches = reach[prefix:end]
    if all(live[prefix:end]) and len(patches) > 1:
        if not any(live[:prefix]) and not any(live[end:]):
            return "mean"
        if any(live[end:]) and not all(live):
            return rows
        # A token that is read by itself weighs as much as all patches of a mean together.
        return "cls+mean" if float(reach[0]) > sqrt(len(patches)) * float(patches.median()) else "all"
    if rows == (0,):
        return "cls"
    return "distilled" if rows == (0, 1) and prefix >= 2 else rows
