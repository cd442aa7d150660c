"""Place the relevance of image tokens on the image: patches, tiles with an overview, and flattened patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.capture.layout import measured_layout
from vitrail.errors import NotApplicableError
from vitrail.methods.postprocess import upsample

#: Smallest share of the pixels of a cell that belong to its token.
_AGREEING = 0.75
#: Smallest correlation of the assembled tiles with the overview that confirms their order.
_ALIKE = 0.9


@dataclass(frozen=True, eq=False)
class PlacedTokens:
    """Where the image tokens of one example lie.

    Attributes:
        image: The image, shape (channels, height, width).
        cells: For each layer (the overview, or the tiles together), the token of each cell of a grid, −1 for none,
            shape (rows, columns).
        boxes: Part of the image that each layer covers: y0, x0, y1, x1 in pixels.
    """

    image: Tensor
    cells: tuple[Tensor, ...]
    boxes: tuple[tuple[int, int, int, int], ...]

    def grid(self, scores: Tensor) -> Tensor:
        """Relevance on the finest grid, shape (K, rows, columns), given that of the tokens, shape (K, tokens).

        The relevance of an overview is shared by the cells that it covers, so that the sum is kept.
        """
        fine = max(self.cells, key=torch.numel)
        total = scores.new_zeros(len(scores), *fine.shape)
        height, width = self.image.shape[1:]
        for cells, box in zip(self.cells, self.boxes, strict=True):
            values = scores[:, cells.clamp_min(0).to(scores.device)] * (cells >= 0).to(scores)
            if cells.shape == fine.shape:
                total = total + values
                continue
            rows = [round(box[k] * fine.shape[0] / height) for k in (0, 2)]
            columns = [round(box[k] * fine.shape[1] / width) for k in (1, 3)]
            size = (rows[1] - rows[0], columns[1] - columns[0])
            spread = F.interpolate(values[None], size=size, mode="nearest")[0]
            before, after = values.sum((1, 2), keepdim=True), spread.sum((1, 2), keepdim=True)
            share = before / torch.where(after == 0, 1.0, after)
            total[:, rows[0] : rows[1], columns[0] : columns[1]] += spread * share
        return total

    def maps(self, grid: Tensor) -> Tensor:
        """The grid at the size of the image, shape (K, height, width), not scaled."""
        height, width = self.image.shape[1:]
        return upsample(grid, (int(height), int(width)))


def place_tokens(pixels: Tensor, owners: Tensor, arguments: Mapping[str, Any]) -> PlacedTokens:
    """Place the image tokens of one example.

    Args:
        pixels: The images as the model takes them: (1, channels, height, width), with an axis of tiles before the
            channels, or flattened patches, shape (patches, values).
        owners: The token of each pixel, shape (tiles · height, width), or of each flattened patch, shape (patches,).
        arguments: The other arguments of the call, such as the size of the image or its grid of patches.

    Raises:
        NotApplicableError: The tokens lie on no grid, or the order of the tiles is unknown.
    """
    if owners.dim() == 1:
        return _flattened(pixels, owners, arguments)
    height, width = (int(n) for n in pixels.shape[-2:])
    tiles = pixels.reshape(-1, *pixels.shape[-3:])
    tokens = int(owners.max()) + 1
    each = owners.view(-1, height, width)
    if len(tiles) == 1:
        return PlacedTokens(tiles[0], (_cells(each[0], tokens),), ((0, 0, height, width),))
    return _tiled(tiles, _cells_of_tiles(each, tokens), arguments)


def _cells(owners: Tensor, tokens: int) -> Tensor:
    """The token of each cell of one image."""
    layout = measured_layout(owners.cpu(), tokens)
    if layout is None or layout.grid is None or layout.area is not None:
        raise NotApplicableError("the image tokens lie on no grid that covers the image, so that they cannot be drawn")
    seen = torch.tensor(layout.patch_tokens(tokens) if layout.table is None else layout.table)
    return seen.reshape(layout.grid)


def _cells_of_tiles(owners: Tensor, tokens: int) -> list[Tensor]:
    """The token of each cell of each tile; tiles have as many cells, and padding of the image may have no token."""
    found: list[Tensor | None] = []
    reason: NotApplicableError | None = None
    for one in owners:
        try:
            found.append(_cells(one, tokens))
        except NotApplicableError as error:
            found.append(None)
            reason = error
    shapes = {tuple(one.shape) for one in found if one is not None}
    if reason is not None and len(shapes) != 1:
        raise reason
    cells = [
        _cells_with_gaps(one, (int(rows), int(columns))) if seen is None else seen
        for one, seen in zip(owners.cpu(), found, strict=True)
        for rows, columns in list(shapes)[:1]
    ]
    placed = [int(i) for one in cells for i in one.flatten().tolist() if i >= 0]
    if len(set(placed)) != len(placed):
        raise NotApplicableError("an image token belongs to several cells of the tiles, so that it cannot be drawn")
    return cells


def _cells_with_gaps(owners: Tensor, grid: tuple[int, int]) -> Tensor:
    """The token of most pixels of each cell of a tile, −1 where these have none."""
    (height, width), (rows, columns) = owners.shape, grid
    if height % rows or width % columns:
        raise NotApplicableError(f"tiles of {height}×{width} pixels have no {rows}×{columns} equal cells")
    blocks = owners.view(rows, height // rows, columns, width // columns).transpose(1, 2).flatten(2)
    cells = blocks.mode(-1).values
    if bool(((blocks == cells[..., None]).float().mean(-1) < _AGREEING).any()):
        raise NotApplicableError("the pixels of a cell belong to several image tokens, so that they cannot be drawn")
    return cells


def _tiled(tiles: Tensor, cells: list[Tensor], arguments: Mapping[str, Any]) -> PlacedTokens:
    """Tiles and an overview; which is which, and the order, is the arrangement that looks like the overview."""
    count, (height, width) = len(tiles), tiles.shape[-2:]
    best: tuple[float, int, tuple[int, int], tuple[int, int, int, int]] | None = None
    for overview in (0, count - 1):
        rest = [k for k in range(count) if k != overview]
        for rows in (r for r in range(1, count) if (count - 1) % r == 0):
            shape = (rows, (count - 1) // rows)
            whole = _assembled(tiles[rest], shape)
            box = _content(arguments, (int(whole.shape[1]), int(whole.shape[2])))
            inside = whole[:, box[0] : box[2], box[1] : box[3]]
            shrunk = F.interpolate(inside[None], size=(height, width), mode="area")[0]
            alike = _correlation(shrunk, tiles[overview])
            if best is None or alike > best[0]:
                best = alike, overview, shape, box
    if best is None or best[0] < _ALIKE:
        found = "" if best is None else f" (the best order has a correlation of {best[0]:.2f} with the overview)"
        raise NotApplicableError(
            f"{count} images or tiles were given for one text, and they are not the tiles of one image with an "
            f"overview{found}: ask about one image in each text, or explain the words alone with of='input_ids' and a "
            "method such as gradient_x_input"
        )
    _, overview, shape, box = best
    rest = [k for k in range(count) if k != overview]
    whole = _assembled(tiles[rest], shape)
    fine = torch.stack([cells[k] for k in rest]).reshape(*shape, *cells[rest[0]].shape).permute(0, 2, 1, 3)
    joined = fine.reshape(shape[0] * fine.shape[1], -1)
    everything = (0, 0, int(whole.shape[1]), int(whole.shape[2]))
    return PlacedTokens(whole, (joined, cells[overview]), (everything, box))


def _assembled(tiles: Tensor, shape: tuple[int, int]) -> Tensor:
    """Tiles, shape (rows · columns, channels, height, width), as one image."""
    channels, height, width = tiles.shape[1:]
    rows, columns = shape
    return tiles.view(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4).reshape(
        channels, rows * height, columns * width
    )  # fmt: skip


def _content(arguments: Mapping[str, Any], canvas: tuple[int, int]) -> tuple[int, int, int, int]:
    """The part of a canvas that an image of a stated size fills when it keeps its shape, in the middle."""
    sizes = arguments.get("image_sizes")
    if not isinstance(sizes, Tensor) or sizes.shape != (1, 2):
        return (0, 0, *canvas)
    height, width = sizes[0].tolist()
    scale = min(canvas[0] / height, canvas[1] / width)
    inner = [min(canvas[0], round(height * scale)), min(canvas[1], round(width * scale))]
    top, left = (canvas[0] - inner[0]) // 2, (canvas[1] - inner[1]) // 2
    return top, left, top + inner[0], left + inner[1]


def _correlation(one: Tensor, other: Tensor) -> float:
    a, b = (t.double().flatten() - t.double().mean() for t in (one, other))
    return float((a @ b) / (a.norm() * b.norm()).clamp_min(1e-12))


def _flattened(patches: Tensor, owners: Tensor, arguments: Mapping[str, Any]) -> PlacedTokens:
    """Flattened patches in one row, in squares of those that make one token, as Qwen-VL takes them."""
    grid = arguments.get("image_grid_thw")
    tokens = int(owners.max()) + 1
    merged = isqrt(len(owners) // tokens)
    in_blocks = merged * merged * tokens == len(owners) and bool(
        (owners.view(tokens, -1) == torch.arange(tokens, device=owners.device)[:, None]).all()
    )
    if not isinstance(grid, Tensor) or grid.shape != (1, 3) or not in_blocks or int(grid[0, 0]) != 1:
        raise NotApplicableError(
            "the places of flattened patches are unknown: they need image_grid_thw with one frame, and squares of "
            "neighbouring patches that make one token each"
        )
    rows, columns = int(grid[0, 1]) // merged, int(grid[0, 2]) // merged
    frames = next((t for t in (2, 1) if _side(int(patches.shape[1]), t) is not None), None)
    if frames is None:
        raise NotApplicableError(f"flattened patches of {patches.shape[1]} values are no squares of three channels")
    side = _side(int(patches.shape[1]), frames)
    assert side is not None
    image = patches.reshape(rows, columns, merged, merged, 3, frames, side, side)[:, :, :, :, :, 0]
    image = image.permute(4, 0, 2, 5, 1, 3, 6).reshape(3, rows * merged * side, columns * merged * side)
    cells = torch.arange(tokens).view(rows, columns)
    return PlacedTokens(image, (cells,), ((0, 0, int(image.shape[1]), int(image.shape[2])),))


def _side(values: int, frames: int) -> int | None:
    """Pixels along a side of a patch of three channels and some frames."""
    side = isqrt(values // (3 * frames))
    return side if side * side * 3 * frames == values else None
