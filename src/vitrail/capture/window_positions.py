"""Attention inside windows, stitched into attention between all patches.

No library says which patch stands where in which window. It shows in what is computed: the rows that the value
projection reads are rows of the block's feature map, rolled, cut and maybe padded. One pass over noise, whose rows all
differ, shows where each came from. That the feature map lies row by row on the image is checked on perturbed images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt, prod

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.feature_order import check_feature_order
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout, grid_of
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.random_input import on_random_input
from vitrail.capture.trace import ALL, Block, Trace
from vitrail.errors import NotApplicableError
from vitrail.fast.unchanged import state_of


@dataclass(frozen=True)
class WindowPositions:
    """Where the rows of each block's windows stand in its feature map.

    Attributes:
        indices: For each block, indices into the patches of its grid, shape (windows, rows); −1 where a window is
            padded.
        grids: Rows and columns of each block's grid.
    """

    indices: tuple[Tensor, ...]
    grids: tuple[tuple[int, int], ...]


def find_positions(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> WindowPositions:
    """Where the rows of each block's windows stand in its feature map.

    They are kept for a call, or while the model is unchanged: passes do not show where rows of windows came from.

    Raises:
        NotApplicableError: It does not show, or the patches of a stage do not lie row by row on the image.
    """
    state = state_of(model)
    known: tuple[ModelStructure, object, WindowPositions] | None
    known = fast.recall(model, "window positions", model_inputs.shape)
    if known is None or known[0] is not structure or state is None or known[1] is not state:
        positions = _measure(model, model_inputs.select(slice(0, 1)), structure)
        known = fast.remember(model, "window positions", (structure, state, positions), model_inputs.shape)
    assert known is not None
    positions = known[2]
    check_feature_order(model, model_inputs, structure, 0, *positions.grids)
    return positions


def _measure(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> WindowPositions:
    image = model_inputs.image
    assert image is not None

    def run(noise: Tensor) -> tuple[Tensor, ...]:
        needs = [{"Y": ALL, "stream": ALL, "value_path": ALL}]
        with forward_pass(model, model_inputs.swap(image, noise), structure, needs) as seen:
            return tuple(_places(block, structure) for block in seen.trace().blocks)

    places = on_random_input(run, image, seed=0)
    return WindowPositions(places, _grids([int(place.max()) + 1 for place in places], (image.shape[2], image.shape[3])))


def _grids(counts: Sequence[int], image: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Grids of blocks with these numbers of patches: the first tiles the image, each merges the former two by two.

    Example:
        >>> _grids([144, 144, 36], (32, 72))
        ((8, 18), (8, 18), (4, 9))
    """
    side = isqrt(counts[0])
    grid = grid_of(counts[0], image) or ((side, side) if side * side == counts[0] and image[0] == image[1] else None)
    if grid is None:
        raise NotApplicableError(f"{counts[0]} patches do not tile an image of {image[0]}×{image[1]} pixels")
    grids = [grid]
    for before, after in pairwise(counts):
        rows, columns = grids[-1]
        grids.append((rows, columns) if before == after else (-(-rows // 2), -(-columns // 2)))
        if grids[-1][0] * grids[-1][1] != after:
            raise NotApplicableError(f"patches that go from {before} to {after} are not merged two by two")
    return tuple(grids)


def _places(block: Block, structure: ModelStructure) -> Tensor:
    if "V_in" in block:
        windows = block.V_in
        for source in (block.Y if "Y" in block else None, block.X if "X" in block else None):
            if source is not None:
                found = _match(windows.flatten(0, 1), source.flatten(0, -2))
                each = torch.bincount(found[found >= 0], minlength=source.shape[:-1].numel())
                if bool((each == 1).all()):  # rows that are alike, as of shuffled pixels of few values, are no match
                    return found.view(windows.shape[:2])
    raise NotApplicableError(
        f"the windows of {structure.model} cannot be stitched: where their patches come from does not show"
    )


def _match(rows: Tensor, source: Tensor) -> Tensor:
    """Which row of ``source`` each of ``rows`` is, −1 for none; rows of noise differ, so a number tells them apart."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(source.shape[-1], dtype=torch.float64, generator=generator).to(rows.device)
    have, wanted = source.double() @ weights, rows.double() @ weights
    order = have.argsort()
    near = torch.searchsorted(have[order], wanted - 1e-9).clamp_max(len(have) - 1)
    return torch.where((have[order][near] - wanted).abs() < 1e-6, order[near], -1)


def stitch(trace: Trace, positions: WindowPositions) -> Trace:
    """A pass through a windowed model as one through a plain model whose patches shrink between stages.

    Returns:
        Blocks whose attention joins all patches of their stage; between stages a step that gives each new patch the
        mean of the four it was made from. All patches of the last stage are read alike.
    """
    blocks: list[Block] = []
    before = positions.grids[0]
    for block, place, grid in zip(trace.blocks, positions.indices, positions.grids, strict=True):
        whole = Block()
        for name in ("A", "dA", "A_mean"):
            if name in vars(block):
                setattr(whole, name, _whole(getattr(block, name), place, prod(grid), heads=name != "A_mean"))
        if grid != before:
            blocks.append(_merge(whole, before, grid))
        blocks.append(whole)
        before = grid
    some, count = next(t for t in vars(blocks[-1]).values() if isinstance(t, Tensor)), prod(before)
    return replace(trace, blocks=tuple(blocks), readout=some.new_full((count,), 1 / count), layout=Layout(0))


def _whole(windows: Tensor, place: Tensor, count: int, heads: bool) -> Tensor:
    """Attention inside windows, shape (b·windows, [H,] rows, rows), as a matrix over all patches, ([b, H,] n, n)."""
    number, rows = place.shape
    at = place[:, :, None] * count + place[:, None, :]
    there = (place[:, :, None] >= 0) & (place[:, None, :] >= 0)
    split = windows.view(-1, number, windows.shape[1] if heads else 1, rows, rows).transpose(1, 2)
    whole = windows.new_zeros(*split.shape[:2], count * count)
    whole[:, :, at[there]] = split[:, :, there]
    whole = whole.view(*split.shape[:2], count, count)
    return whole if heads else whole[:, 0]


def _merge(like: Block, fine: tuple[int, int], coarse: tuple[int, int]) -> Block:
    """The step between two stages: each patch is the mean of two by two."""
    some = next(t for t in vars(like).values() if isinstance(t, Tensor))
    y, x = torch.meshgrid(torch.arange(fine[0]), torch.arange(fine[1]), indexing="ij")
    owner = ((y // 2) * coarse[1] + x // 2).flatten().to(some.device)
    matrix = some.new_zeros(prod(coarse), prod(fine))
    matrix[owner, torch.arange(prod(fine), device=some.device)] = 1
    matrix = (matrix / matrix.sum(-1, keepdim=True)).expand(len(some), -1, -1)
    block = Block(pool=True)
    block.A_mean, block.A = matrix, matrix[:, None]
    block.dA = torch.ones_like(block.A)
    return block


def stitched_layout(positions: WindowPositions) -> Layout:
    """Where the patches of the first stage stand."""
    return Layout(0, positions.grids[0], "mean")
