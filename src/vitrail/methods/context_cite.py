"""ContextCite: a sparse linear model of the score over the units that are present, fitted on random removals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.capture.inputs import method_dtype
from vitrail.errors import OptionError
from vitrail.methods.coalitions import CoalitionGame, patch_grid
from vitrail.methods.cost import Cost, ModelSize, number
from vitrail.methods.probe import Probe
from vitrail.methods.registry import Applies, check_whole_numbers, register
from vitrail.methods.shapley import players

#: Steps of the proximal gradient method, and resamples for the standard error.
STEPS, RESAMPLES = 1000, 64
#: Most numbers in the Gram matrices of regressions that are fitted together.
TOGETHER = 2**26


def _cost(options: Mapping[str, Any], _: ModelSize, __: int) -> Cost:
    masks = number(options, "masks")
    return Cost(masks, float(masks))


@register(
    "context_cite",
    "ContextCite",
    "perturbation",
    cite="cohenwang2024contextcite",
    takes="probe",
    score="logprob",
    signed=True,
    variants={"quick": {"masks": 32}, "preview": {"masks": 64}},
    applies=Applies(reads="outputs", text=True, drops_tokens=True),
    cost=_cost,
)
def context_cite(
    probe: Probe,
    *,
    masks: int = 128,
    share: float = 0.5,
    strength: float = 0.01,
    cell: int = 1,
    removal: str | None = None,
    fill: float = 0.0,
    seed: int = 0,
) -> Tensor:
    """Weight of each unit in a lasso regression of the score on which units are present.

    Units are words, sentences or passages of a text, single tokens, or patches of an image. All targets share the
    forward passes. The score of a class is its log-odds, from its log-probability; other targets are taken as they
    are. The standard error of each weight, by resampling the removals, is among the intermediate results.

    Args:
        probe: The model and its inputs.
        masks: Number of random removals.
        share: Probability with which a unit is present.
        strength: Weight of the sum of absolute values in the lasso, for present and absent units scaled to unit
            variance, and scores likewise.
        cell: Side of the square cells of patches that are units.
        removal: How absent units are removed: "tokens", "mask" or "fill"; None for the first that applies.
        fill: What ``removal="fill"`` writes, in the model's normalised space.
        seed: Seed of the removals; all inputs get the same ones.

    Returns:
        Relevance of patches, shape (b, K, S), signed; the weight of a unit is shared equally by its tokens.
    """
    check_whole_numbers(4, masks=masks)
    check_whole_numbers(1, cell=cell)
    check_whole_numbers(0, seed=seed)
    if not 0 < share < 1 or strength < 0:
        raise OptionError(f"expected share above 0 and below 1 and strength ≥ 0, got {share=} and {strength=}")
    values, errors = [], []
    for rows, members in players(probe, cell):
        game = CoalitionGame(probe, members, removal, fill, rows)
        generator = torch.Generator().manual_seed(seed)
        present = torch.rand(masks, game.players, generator=generator, dtype=torch.float64) < share
        scores = game(present).mT  # (b, K, masks)
        scores = _log_odds(scores) if probe.classes is not None and probe.score == "logprob" else scores
        own = game.members.device
        home = own if own.type == "cuda" else torch.device("cpu")  # some devices have no double precision
        design, flat = present.to(home, torch.float64), scores.flatten(0, 1).to(home)
        fitted = lasso(design, flat, strength)
        each = (members.double() / members.sum(1, keepdim=True)).to(home)
        values.append((fitted.weights @ each).view(*scores.shape[:2], -1))
        if probe.notes is not None:  # they cost as much as 64 fits
            error = _standard_error(design, flat, strength, generator)
            errors.append((error @ each).view(*scores.shape[:2], -1))
    device, dtype = probe.model_inputs.tensors[0].device, method_dtype(probe.model)
    if errors:
        probe.note("standard_error", torch.cat(errors).to(device, dtype))
    relevance = torch.cat(values).to(device, dtype)
    if probe.model_inputs.image is not None and probe.structure.layout.grid is None:
        return relevance.view(*relevance.shape[:2], *patch_grid(probe))
    return relevance


def _log_odds(logprob: Tensor) -> Tensor:
    """Log-odds from logarithms of probabilities; 1 − p is computed without cancellation."""
    low = torch.finfo(logprob.dtype).tiny
    return logprob - torch.log((-torch.expm1(logprob)).clamp_min(low))


class LinearModel(NamedTuple):
    """A fitted linear model.

    Attributes:
        weights: Weight of each unit, shape (R, P).
        intercept: Score without any unit, shape (R,).
    """

    weights: Tensor
    intercept: Tensor


def lasso(present: Tensor, scores: Tensor, strength: float) -> LinearModel:
    """Minimise ‖y − Xw‖²/(2N) + strength·‖w‖₁, with columns of X and y centred and scaled to unit variance.

    Args:
        present: Which units are present, shape (N, P), or a design for each regression, shape (R, N, P).
        scores: Scores, shape (R, N).
        strength: Weight of the absolute values.

    Example:
        >>> present = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
        >>> fitted = lasso(present, 3 * present[None, :, 0] + 1, 0.0)
        >>> fitted.weights.round(decimals=4), fitted.intercept.round(decimals=4)
        (tensor([[3., 0.]], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    """
    X = present.expand(len(scores), *present.shape[-2:])
    mean, deviation = X.mean(1, keepdim=True), X.std(1, keepdim=True, unbiased=False)
    scale = torch.where(deviation > 0, deviation, 1.0)
    centre = scores.mean(1, keepdim=True)
    spread = scores.std(1, keepdim=True, unbiased=False)
    unit = torch.where(spread > 0, spread, 1.0)
    Z, y = (X - mean) / scale, (scores - centre) / unit
    count = Z.shape[1]
    G, c = Z.mT @ Z / count, (Z.mT @ y[..., None]).squeeze(-1) / count
    # The largest sum of absolute values of a row bounds the largest eigenvalue.
    step = 1 / G.abs().sum(-1).amax(-1, keepdim=True).clamp_min(1e-12)
    w = momentum = torch.zeros_like(c)
    rate = 1.0
    for _ in range(STEPS):
        moved = momentum - step * ((G @ momentum[..., None]).squeeze(-1) - c)
        before, w = w, moved.sign() * (moved.abs() - step * strength).clamp_min(0)
        faster = (1 + (1 + 4 * rate**2) ** 0.5) / 2
        momentum, rate = w + (rate - 1) / faster * (w - before), faster
    weights = w / scale.squeeze(1) * unit
    return LinearModel(weights, (centre - (mean.squeeze(1) * weights).sum(-1, keepdim=True)).squeeze(-1))


def _standard_error(present: Tensor, scores: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Standard deviation of the weights over resamples of the removals, shape (R, P)."""
    drawn = torch.randint(len(present), (RESAMPLES, len(present)), generator=generator).to(present.device)
    found = []
    for some in torch.split(scores, max(1, TOGETHER // (RESAMPLES * present.shape[1] ** 2))):
        designs = present[drawn].repeat(len(some), 1, 1)
        weights = lasso(designs, some[:, drawn].flatten(0, 1), strength).weights
        found.append(weights.view(len(some), RESAMPLES, -1).std(1))
    return torch.cat(found)
