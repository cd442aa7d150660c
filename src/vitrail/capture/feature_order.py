"""Check on the model that the features of a token come from the place in the image where a map shows them.

Models that are no plain encoder (pyramids, windows, convolutions) may keep their features in another order than row by
row, and no table of places is measured for them. The gradient of a few positions' features at the image tells where
they come from.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.attention import AttentionMode
from vitrail.capture.features import FeatureMode
from vitrail.capture.frozen import frozen
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_call import run_model
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.verify import direction, gradients
from vitrail.errors import GuessWarning, NotApplicableError
from vitrail.fast.unchanged import state_of

#: Rows and columns of the tokens that are looked at; of models without attention, whose features see more of the image
#: around them, the four corners.
SIDE, CORNERS = 3, 2
#: A token's gradient is concentrated if its largest cell has this multiple of the mean over all cells.
PEAK = 2.0
#: Without attention: if a corner has this multiple of the share that all four tokens have there on average.
CORNER_PEAK = 1.5


def check_feature_order(
    model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, prefix: int, grid: tuple[int, int]
) -> None:
    """Check that tokens lie row by row on a grid after a prefix; once in a call, or while the model is unchanged.

    A later call measures it again: passes for features do not show whether the tokens still have their order.

    Args:
        model: The user's model, unwrapped.
        model_inputs: Inputs on its device; the first is used.
        structure: As read from it.
        prefix: Number of tokens before the first one of the grid.
        grid: Rows and columns.

    Raises:
        NotApplicableError: The features come from other places.
    """
    key = (id(structure), prefix, *grid)
    state = state_of(model)
    known: tuple[ModelStructure, object, int, int | None] | None = fast.recall(model, "feature order", key)
    # The structure is kept, so that its id is not reused.
    if known is None or known[0] is not structure or state is None or known[1] is not state:
        found = _measure(model, model_inputs.select(slice(0, 1)), structure, prefix, grid)
        known = fast.remember(model, "feature order", (structure, state, *found), key)
    assert known is not None
    *_, right, clear = known
    if clear is None:
        warnings.warn(
            f"{structure.model}: whether its {grid[0]}×{grid[1]} features lie row by row could not be measured",
            GuessWarning,
            stacklevel=4,
        )
    elif not clear:
        raise NotApplicableError(
            f"the features of {structure.model} are not those of patches: each of its {grid[0]}×{grid[1]} tokens comes "
            "from all over the image; use rise, occlusion or an input gradient instead"
        )
    elif right < 0.75 * clear:
        raise NotApplicableError(
            f"the features of {structure.model} are not in the order of the image: {clear - right} of {clear} of them "
            f"come from another place than their cell of the {grid[0]}×{grid[1]} grid; use rise, occlusion or an input "
            "gradient instead"
        )


def _measure(
    model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, prefix: int, grid: tuple[int, int]
) -> tuple[int, int | None]:
    """Of a few tokens, how many come from their own cell, and how many from one cell at all; None if not measured."""
    image = model_inputs.image
    assert image is not None
    leaf = image.detach().clone().requires_grad_()
    with frozen(model):
        features = _features(model, model_inputs.swap(image, leaf), structure, prefix + grid[0] * grid[1])
        if features is None:
            return 0, None
        cells = _spread(grid, SIDE if structure.layers else CORNERS)
        energy = [_energy(features[:, prefix + r * grid[1] + c], leaf, grid) for r, c in cells]
    found = torch.stack([e.flatten() for e in energy])
    # Features may see the whole image, one part of it most; what counts is where one differs from the others.
    share = found[:, [r * grid[1] + c for r, c in cells]] / found.sum(1, keepdim=True)
    relative = (share.nan_to_num() / share.nan_to_num().mean(0)).nan_to_num()
    clear = found.amax(1) > PEAK * found.mean(1) if structure.layers else relative.amax(1) > CORNER_PEAK
    own = relative.argmax(1) == torch.arange(len(cells), device=found.device)
    count = int(clear.sum())
    by_chance = not structure.layers and 2 * count <= len(cells)
    return int((clear & own).sum()), None if by_chance else count


def _features(model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, count: int) -> Tensor | None:
    """What the last attention reads, or the last feature map of a model without any, in a graph; (1, count, width)."""
    if structure.layers:
        mode = AttentionMode({"dY": frozenset(o.call for o in structure.layers)}, 1)
        with mode:
            run_model(model, model_inputs)
        found = list(mode.nodes.values())
    else:
        last = FeatureMode(1)
        with last:
            run_model(model, model_inputs)
        found = [] if last.features is None else [last.as_rows(last.features)]
    rows = [node.flatten(1, 2) if node.dim() == 4 else node for node in found if node.dim() in (3, 4)]
    return next((node for node in reversed(rows) if node.shape[:2] == (1, count)), None)


def _energy(features: Tensor, leaf: Tensor, grid: tuple[int, int]) -> Tensor:
    """Squared gradient of one token's features at the image, summed over each cell, shape (rows, columns)."""
    (gradient,) = gradients((features * direction(features)).sum(), [leaf])
    if gradient is None:
        return torch.zeros(grid, dtype=torch.float64, device=leaf.device)
    return F.adaptive_avg_pool2d(gradient.double().square().sum(1, keepdim=True), grid)[0, 0]


def _spread(grid: tuple[int, int], side: int) -> list[tuple[int, int]]:
    """Cells that are far from each other.

    Example:
        >>> _spread((2, 4), 3)
        [(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)]
    """
    rows, columns = (sorted({round(i * (n - 1) / (side - 1)) for i in range(side)}) for n in grid)
    return [(r, c) for r in rows for c in columns]
