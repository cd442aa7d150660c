"""Check on the model that the features of a token come from the place in the image where a map shows them.

Models that are no plain encoder (pyramids, windows, convolutions) may keep their features in another order than row by
row, and no table of places is measured for them. How all of them respond to perturbed images tells whether they lie row
by row; see `vitrail.capture.perturbed_features`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor, nn

from vitrail import fast
from vitrail.capture.inputs import ModelInputs
from vitrail.capture.model_structure import ModelStructure
from vitrail.capture.perturbed_features import response_ratios
from vitrail.errors import GuessWarning, NotApplicableError
from vitrail.fast.unchanged import state_of

#: Responses that spread less than this over all features are alike: logarithms of ratios of squared changes.
ALIKE = 0.2
#: Responses that spread less than this do not show another order.
WEAK = 1.0
#: Ratios that differ by less than this are not told apart where they contradict the order of the image.
CLEAR = 0.5
#: Rank correlation of responses and rows below which features are in another order.
IN_ORDER = 0.5
#: Below this they are in another order even if no single row or feature shows it.
UNRELATED = 0.25
#: A feature has crossed a boundary beyond this share of the way to the next row, and this multiple of the scatter.
DISPLACED, SCATTER = 0.75, 5.0
#: Quantiles of the distance from the median of a normal distribution, in standard deviations.
NORMAL_QUANTILES = {0.15: 0.1891, 0.5: 0.6745}
#: Share of features that lie beyond the next row from which on they are in another order.
MANY = 0.15
#: Rank correlation of two draws from which on they show the same order.
AGREE = 0.75
#: Fewest rows, or columns, in which single features are told from their neighbours.
FEWEST = 3


class FeatureOrder(Enum):
    """What the responses of features show."""

    RASTER = "row by row"
    OTHER = "in another order"
    ALIKE = "all respond alike"
    UNCLEAR = "contradict the order of the image, but show no other one"
    SILENT = "none responds"
    UNKNOWN = "no features of this grid"


#: Why an order could not be measured, and what helps.
_UNMEASURED = {
    FeatureOrder.ALIKE: (
        "all respond nearly alike to changes in any part of the image, as features from all over the image do",
        "pass larger images, on which features see a part of the image, load trained weights if these are random",
    ),
    FeatureOrder.UNCLEAR: (
        "they respond otherwise than features in the order of the image, but not clearly enough to show another order",
        "pass larger images, on which features see a part of the image, load trained weights if these are random",
    ),
    FeatureOrder.SILENT: (
        "they are the same for the image and for perturbed images, as features are after a norm whose weights are zero",
        "load trained weights if these are as initialised",
    ),
    FeatureOrder.UNKNOWN: (
        "on perturbed images the model fails, or has no finite features on this grid",
        "pass another image if this one has values that are not finite",
    ),
}


def check_feature_order(
    model: nn.Module, model_inputs: ModelInputs, structure: ModelStructure, prefix: int, *grids: tuple[int, int]
) -> None:
    """Check that tokens lie row by row on their grids after a prefix; once in a call, or while the model is unchanged.

    A later call measures it again: passes for features do not show whether the tokens still have their order.

    Args:
        model: The user's model, unwrapped.
        model_inputs: Inputs on its device; the first is used.
        structure: As read from it.
        prefix: Number of tokens before the first one of a grid.
        grids: Rows and columns of the features; those that are not known yet are measured together.

    Raises:
        NotApplicableError: The features come from other places.
    """
    state = state_of(model)
    # The structure is kept, so that its id is not reused.
    known: dict[tuple[int, int], tuple[ModelStructure, object, FeatureOrder]] = {}
    for grid in dict.fromkeys(grids):
        entry = fast.recall(model, "feature order", (id(structure), prefix, *grid))
        if entry is not None and entry[0] is structure and state is not None and entry[1] is state:
            known[grid] = entry
    missing = [grid for grid in dict.fromkeys(grids) if grid not in known]
    if missing:
        found = response_ratios(model, model_inputs.select(slice(0, 1)), structure, prefix, missing)
        for grid, ratios in zip(missing, found, strict=True):
            key = (id(structure), prefix, *grid)
            known[grid] = fast.remember(model, "feature order", (structure, state, feature_order(ratios)), key)
    orders = {grid: order for grid, (*_, order) in known.items()}
    for order in FeatureOrder:
        _report(order, model, structure, [grid for grid, found in orders.items() if found is order])


def _report(order: FeatureOrder, model: nn.Module, structure: ModelStructure, grids: Sequence[tuple[int, int]]) -> None:
    """Refuse another order of the features on some grids; refuse or warn of one that could not be measured.

    Tokens that attention mixes are refused where their responses do not show their order. Features of other networks
    are warned of, once in a call.
    """
    if order is FeatureOrder.RASTER or not grids:
        return
    cells = " and ".join(f"{rows}×{columns}" for rows, columns in grids)
    if order is FeatureOrder.OTHER:
        raise NotApplicableError(
            f"the features of {structure.model} are not in the order of the image: some of its {cells} features come "
            "from another place than their cell of the grid; use rise, occlusion or an input gradient instead"
        )
    reason, advice = _UNMEASURED[order]
    unmeasured = f"{structure.model}: whether its {cells} features lie row by row could not be measured: {reason}"
    instead = "use rise, occlusion or an input gradient"
    if structure.layers and order is not FeatureOrder.UNKNOWN:
        raise NotApplicableError(f"{unmeasured}; {advice}, or {instead} instead")
    call = fast.current_call()
    said = call is not None and all(fast.recall(model, "unknown order", grid) is call for grid in grids)
    for grid in grids:
        fast.remember(model, "unknown order", call, grid)
    if not said:
        message = f"{unmeasured}; maps are right only if they do: {advice}, or {instead} instead"
        warnings.warn(message, GuessWarning, stacklevel=5)


def feature_order(ratios: Tensor | None) -> FeatureOrder:
    """The order of features by how they respond to ramps along rows and along columns.

    Args:
        ratios: Logarithms, shape (draws, 2, rows, columns), NaN for features that do not respond; None where not
            measured.

    Example:
        >>> rows = torch.arange(5.0, dtype=torch.float64)[:, None].expand(2, 5, 5)
        >>> feature_order(torch.stack([rows, rows.mT], 1)).value
        'row by row'
        >>> feature_order(torch.stack([rows.flip(1), rows.mT], 1)).value
        'in another order'
    """
    if ratios is None:
        return FeatureOrder.UNKNOWN
    axes = [axis for axis in (ratios[:, 0], ratios[:, 1].mT) if axis.shape[1] > 1]
    orders = [_order_along(axis) for axis in axes]
    worst = (FeatureOrder.OTHER, FeatureOrder.SILENT, FeatureOrder.ALIKE, FeatureOrder.UNCLEAR)
    return next((order for order in worst if order in orders), FeatureOrder.RASTER)


def _order_along(ratios: Tensor) -> FeatureOrder:
    """The order along one axis of the grid, which is the first after the draws."""
    mean = ratios.mean(0)
    seen = ~mean.isnan()
    values = mean[seen]
    if not len(values):
        return FeatureOrder.SILENT
    spread = 1.4826 * float((values - values.quantile(0.5)).abs().quantile(0.5))
    place = torch.arange(len(mean), device=mean.device)[:, None].expand_as(mean)[seen]
    correlation = _correlation(_ranks(values), place)
    if correlation >= IN_ORDER:
        if spread < ALIKE:
            return FeatureOrder.ALIKE
        if not _displaced(mean):
            return FeatureOrder.RASTER
        return FeatureOrder.OTHER if spread >= WEAK else FeatureOrder.UNCLEAR
    agree = _correlation(_ranks(ratios[0][seen]), _ranks(ratios[-1][seen])) >= AGREE
    clear = agree and spread >= WEAK and (correlation < UNRELATED or _displaced(mean))
    unknown = FeatureOrder.ALIKE if spread < ALIKE else FeatureOrder.UNCLEAR
    return FeatureOrder.OTHER if clear else unknown


def _correlation(one: Tensor, two: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.double(), two.double()]))[0, 1])


def _ranks(values: Tensor) -> Tensor:
    return values.argsort(stable=True).argsort()


def _displaced(ratios: Tensor) -> bool:
    """Whether rows are in another order, or features respond as those of other rows; of each row its median counts.

    The scatter of features in their place is that of the smaller distances from the medians, because others may be in
    another place. Two features that change places cross a boundary between rows, each in its own direction.
    """
    if len(ratios) < FEWEST:
        return False
    middle = ratios.nanquantile(0.5, dim=1)
    middle = middle.where(~middle.isnan(), middle.nanmedian())
    error = (ratios - middle[:, None]).nan_to_num()
    least = max(CLEAR, SCATTER * _scatter(error, 0.15))
    # Features of one row agree where whole rows are in another place, so half of their distances count.
    if bool((middle.cummax(0).values - middle > max(least, SCATTER * _scatter(error, 0.5))).any()):
        return True
    step = DISPLACED * (middle[1:] - middle[:-1])
    way = step.clamp_min(least)[:, None]
    beyond = torch.zeros_like(error, dtype=torch.bool)
    beyond[:-1] |= error[:-1] > way
    beyond[1:] |= -error[1:] > way
    if float(beyond.double().mean()) > MANY:
        return True
    error = error - error.quantile(0.5, dim=0)  # features of one column may all respond more to one side
    least = max(CLEAR, SCATTER * _scatter(error, 0.15))
    # The scatter is larger where a ramp is faint: also that of the rows on both sides of a boundary counts.
    near = middle.new_tensor([SCATTER * _scatter(pair, 0.5) for pair in error.unfold(0, 2, 1)])
    way = step.clamp_min(least).maximum(near)
    values = middle[:, None] + error
    before, after = values.amax(1).cummax(0).values[:-1], values.amin(1).flip(0).cummin(0).values.flip(0)[1:]
    return bool(((before > middle[:-1] + way) & (after < middle[1:] - way)).any())


def _scatter(error: Tensor, share: float) -> float:
    """Standard deviation of a normal distribution with the same quantile of its distances from the median."""
    distances = error.abs()[error != 0]
    return float(distances.quantile(share)) / NORMAL_QUANTILES[share] if len(distances) else 0.0
