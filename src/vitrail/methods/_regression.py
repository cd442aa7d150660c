"""Estimate Shapley values from the scores of coalitions: paired least squares, with or without a prior."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from vitrail.methods.coalitions import CoalitionPairs

#: Strengths of the ridge that are tried, as multiples of the mean squared singular value, and the standard deviation
#: of the logarithm (base 10) of the strength around 1.
STRENGTHS = torch.logspace(-2, 2, 49, dtype=torch.float64)
DECADES = 0.15
#: Pairs for each player after which the weights of the ridge are half way to those of the Shapley kernel.
FADE = 128


@dataclass(frozen=True)
class ShapleyEstimate:
    """Shapley values with their standard errors, shape (…, P) each."""

    values: Tensor
    standard_error: Tensor


class PairedRegression:
    """Weighted least squares of KernelSHAP on pairs of complementary coalitions, under the efficiency constraint.

    A pair gives one equation, Σ_i ±φ_i = v(S) − v(complement of S), and the values sum to v(all) − v(none).

    With a prior mean, deviations from it are penalised (ridge). Coalitions of medium size vary most, so pairs of size s
    are then weighted by the inverse of s(P − s); with more pairs, the weights tend to those of the Shapley kernel. The
    strength maximises the marginal likelihood of the equations, in closed form over the singular values, with a
    log-normal prior, for each input and target. Standard errors are those of the posterior.

    Args:
        pairs: The coalitions.
        ridge: Whether there is a prior mean; has no effect where the pairs are all there are.
        fade: Pairs for each player after which the weights are half way to those of the Shapley kernel; 0 for the
            kernel's own weights.
    """

    def __init__(self, pairs: CoalitionPairs, ridge: bool = False, fade: float = FADE) -> None:
        self.sign = pairs.present.double() * 2 - 1
        self.players = self.sign.shape[1]
        self.complete, self.ridge = pairs.complete, ridge and not pairs.complete
        weights = pairs.weights
        if self.ridge and fade > 0:
            size = pairs.present.sum(1).double()
            spread = 4 * size * (self.players - size) / self.players**2
            weights = weights / (spread + len(pairs) / (fade * self.players))
        self.root = (weights / weights.mean()).sqrt()
        centred = self.sign - self.sign.mean(1, keepdim=True)  # deviations sum to zero
        self.U, self.S, self.Vh = torch.linalg.svd(self.root[:, None] * centred, full_matrices=False)

    def __call__(self, differences: Tensor, total: Tensor, prior: Tensor | None = None) -> ShapleyEstimate:
        """Estimate the values.

        Args:
            differences: v(S) − v(complement of S) of each pair, shape (R, M).
            total: v(all) − v(none), shape (R,).
            prior: Prior mean, shape (R, P), that sums to the total; None for equal shares.
        """
        mean = (total / self.players)[:, None].expand(-1, self.players) if prior is None else prior
        residual = self.root * (differences - mean @ self.sign.T)
        correction = self._ridge(residual) if self.ridge else self._least_squares(residual)
        return ShapleyEstimate(mean + correction.values, correction.standard_error)

    def _least_squares(self, residual: Tensor) -> ShapleyEstimate:
        """Without a penalty; the smallest deviations where there are fewer equations than unknowns."""
        live = (self.S / self.S.amax()) > 1e-10
        U, S, V = self.U[:, live], self.S[live], self.Vh[live].T
        along = residual @ U
        values = (along / S) @ V.T
        left = residual.shape[1] - len(S)
        if self.complete:
            return ShapleyEstimate(values, torch.zeros_like(values))
        if left < 1 or len(S) < self.players - 1:
            return ShapleyEstimate(values, torch.full_like(values, torch.inf))
        rest = (residual.square().sum(1) - along.square().sum(1)).clamp_min(0) / left
        return ShapleyEstimate(values, (rest[:, None] * (V / S).square().sum(1)).sqrt())

    def _ridge(self, residual: Tensor) -> ShapleyEstimate:
        """Posterior mean and standard deviation at the most likely strength."""
        count, energy, V = residual.shape[1], self.S.square(), self.Vh.T
        along = residual @ self.U
        rest = (residual.square().sum(1) - along.square().sum(1)).clamp_min(0)
        strengths = STRENGTHS * energy.mean()
        # r ~ N(0, σ² (I + A Aᵀ / λ)), with σ² at its maximum.
        inflation = 1 + energy / strengths[:, None]
        variance = ((along.square() @ (1 / inflation).T) + rest[:, None]) / count
        likelihood = -0.5 * (count * variance.clamp_min(1e-300).log() + inflation.log().sum(1))
        at = (likelihood - 0.5 * (STRENGTHS.log() / (DECADES * log(10))).square()).argmax(1)
        strength, noise = strengths[at][:, None], variance.gather(1, at[:, None])
        values = (along * (self.S / (energy + strength))) @ V.T
        explained = (energy / (energy + strength)) @ V.square().T
        return ShapleyEstimate(values, (noise / strength * (1 - 1 / self.players - explained).clamp_min(0)).sqrt())
