"""Attention inside windows, stitched into attention between all patches.

No library says which patch stands where in which window. It shows in what is computed: the rows that the value
projection reads are rows of the block's feature map, rolled, cut and maybe padded. One pass over noise, whose rows all
differ, shows where each came from.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.forward import forward_pass
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import Layout
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.random_input import on_random_input
from vitrail.capture.trace import ALL, Block, Trace
from vitrail.errors import NotApplicableError

WindowPositions = tuple[Tensor, ...]


def find_positions(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure) -> WindowPositions:
    """Where the rows of each block's windows stand in its feature map.

    They are kept for as long as the structure holds, which each pass confirms.

    Returns:
        For each block, indices into the patches of its grid, shape (windows, rows); −1 where a window is padded.
    """
    known: tuple[ModelStructure, WindowPositions] | None = fast.recall(model, "window positions", model_inputs.shape)
    if known is None or known[0] is not structure:
        one = model_inputs.select(slice(0, 1))
        first = one.image
        assert first is not None

        def run(noise: Tensor) -> WindowPositions:
            needs = [{"Y": ALL, "stream": ALL, "value_path": ALL}]
            with forward_pass(model, one.swap(first, noise), structure, needs) as seen:
                return tuple(_places(block, structure) for block in seen.trace().blocks)

        places = on_random_input(run, first, seed=0)
        known = fast.remember(model, "window positions", (structure, places), model_inputs.shape)
    assert known is not None
    return known[1]


def _places(block: Block, structure: ModelStructure) -> Tensor:
    if "V_in" in block:
        windows = block.V_in
        for source in (block.Y if "Y" in block else None, block.X if "X" in block else None):
            if source is not None:
                found = _match(windows.flatten(0, 1), source.flatten(0, -2))
                if int((found >= 0).sum()) == source.shape[:-1].numel():
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


def stitch(trace: Trace, places: WindowPositions) -> Trace:
    """A pass through a windowed model as one through a plain model whose patches shrink between stages.

    Returns:
        Blocks whose attention joins all patches of their stage; between stages a step that gives each new patch the
        mean of the four it was made from. All patches of the last stage are read alike.
    """
    blocks: list[Block] = []
    before: int | None = None
    for block, place in zip(trace.blocks, places, strict=True):
        count = int(place.max()) + 1
        whole = Block()
        for name in ("A", "dA", "A_mean"):
            if name in vars(block):
                setattr(whole, name, _whole(getattr(block, name), place, count, heads=name != "A_mean"))
        if before is not None and count != before:
            blocks.append(_merge(whole, before, count))
        blocks.append(whole)
        before = count
    assert before is not None
    some = next(t for t in vars(blocks[-1]).values() if isinstance(t, Tensor))
    return replace(trace, blocks=tuple(blocks), readout=some.new_full((before,), 1 / before), layout=Layout(0))


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


def _merge(like: Block, before: int, after: int) -> Block:
    """The step between two stages: each patch is the mean of two by two."""
    fine, coarse = isqrt(before), isqrt(after)
    if fine * fine != before or coarse * coarse != after or -(-fine // 2) != coarse:
        raise NotApplicableError(f"patches that go from {before} to {after} are not merged two by two")
    some = next(t for t in vars(like).values() if isinstance(t, Tensor))
    y, x = torch.meshgrid(torch.arange(fine), torch.arange(fine), indexing="ij")
    owner = ((y // 2) * coarse + x // 2).flatten().to(some.device)
    matrix = some.new_zeros(after, before)
    matrix[owner, torch.arange(before, device=some.device)] = 1
    matrix = (matrix / matrix.sum(-1, keepdim=True)).expand(len(some), -1, -1)
    block = Block(pool=True)
    block.A_mean, block.A = matrix, matrix[:, None]
    block.dA = torch.ones_like(block.A)
    return block


def stitched_layout(places: WindowPositions) -> Layout:
    """Where the patches of the first stage stand."""
    side = isqrt(int(places[0].max()) + 1)
    return Layout(0, (side, side), "mean")
