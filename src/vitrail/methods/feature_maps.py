"""Feature maps of blocks, on the grid of the patches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from vitrail.capture.feature_order import check_feature_order
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.layout import grid_of
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.trace import LAST, Block, Needs
from vitrail.errors import NotApplicableError


def feature_needs(kind: str, where: slice = LAST) -> Needs:
    """What a pass must keep for `Probe.features` of a kind."""
    kinds = {"Y": ("Y",), "out": ("stream",)}.get(kind, ("branch", "stream"))
    return dict.fromkeys(kinds, where)


def blocks_with_features(kind: str, blocks: Sequence[Block]) -> list[Block]:
    """The blocks that kept features of a kind, without attention pools."""
    name = {"out": "X_mid", "sum": "branch"}.get(kind, kind)
    return [b for b in blocks if name in b and not b.pool]


def block_features(block: Block, kind: str) -> Tensor:
    """The features of a kind, in the shape of the stream."""
    if kind == "out":
        return block.X_mid if block.F is None else block.X_mid + block.F
    if kind == "sum":
        return block.X + block.branch
    value: Tensor = getattr(block, kind)
    scale = getattr(block, "gamma", None) if kind == "branch" else None
    return value if scale is None else value / scale


def last_of_stage(maps: Sequence[Tensor], stage: int) -> Tensor:
    """The last map of a stage, counted from the end; a stage is a run of maps with the same number of positions."""
    sizes = [m.shape[1:-1].numel() for m in maps]
    starts = [i for i, size in enumerate(sizes) if i == 0 or size != sizes[i - 1]]
    ends = [*(i - 1 for i in starts[1:]), len(maps) - 1]
    return maps[ends[max(stage, -len(ends))]]


def on_grid(
    value: Tensor, model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, images: Tensor
) -> Tensor:
    """Features as a map: (b, n, d) or (b, rows, columns, d) to (b, d, rows, columns), prefix left out."""
    if len(value) != len(images):
        raise NotApplicableError(
            f"the features of {structure.model} do not lie on a grid: it cuts its images into "
            f"{len(value) // len(images)} parts before it normalises them; use rise, occlusion or an input "
            "gradient instead"
        )
    if value.dim() == 4:
        check_feature_order(model, model_inputs, structure, 0, (value.shape[1], value.shape[2]))
        return value.permute(0, 3, 1, 2)
    size = (int(images.shape[2]), int(images.shape[3]))
    layout = structure.layout
    grid = layout.plane
    if grid is not None and value.shape[1] == layout.tokens:
        value = layout.patches(value, 1)
    else:
        for prefix in (0, 1, 2):
            grid = grid_of(value.shape[1] - prefix, size)
            if grid is not None:
                check_feature_order(model, model_inputs, structure, prefix, grid)
                value = value[:, prefix:]
                break
        else:
            raise NotApplicableError(
                f"the features of {structure.model} do not lie on a grid: {value.shape[1]} tokens for "
                f"an image of {size[0]}×{size[1]}"
            )
    return value.transpose(1, 2).reshape(len(value), -1, *grid)
