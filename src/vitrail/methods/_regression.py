"""Estimate Shapley values from the scores of coalitions: paired least squares with a prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.methods._coalitions import CoalitionPairs

#: Strengths of the ridge that are tried, as shares of the mean squared singular value.
STRENGTHS = torch.logspace(-4, 4, 49, dtype=torch.float64)


@dataclass(frozen=True)
class ShapleyEstimate:
    """Shapley values with their standard errors, shape (…, P) each."""

    values: Tensor
    standard_error: Tensor


class PairedRegression:
    """Weighted least squares of KernelSHAP on pairs of complementary coalitions, under the efficiency constraint.

    A pair gives one equation, Σ_i ±φ_i = v(S) − v(complement of S), and the values sum to v(all) − v(none). With a
    prior mean, deviations from it are penalised (ridge); the strength maximises the marginal likelihood of the
    equations, in closed form over the singular values, for each input and target. Standard errors are those of the
    posterior.

    Args:
        pairs: The coalitions.
        covariances: Covariances of the deviations from the prior between players, shape (P, P), each up to a factor, of
            which the most likely is taken; the identity by default.
    """

    def __init__(self, pairs: CoalitionPairs, covariances: Sequence[Tensor] = ()) -> None:
        sign = pairs.present.double() * 2 - 1
        players = sign.shape[1]
        self.sign, self.root, self.complete = sign, pairs.weights.sqrt(), pairs.complete
        centred = torch.eye(players, dtype=torch.float64) - 1 / players
        self._forms = []
        for covariance in covariances or (torch.eye(players, dtype=torch.float64),):
            factor = centred @ torch.linalg.cholesky(covariance.double())
            U, S, Vh = torch.linalg.svd(self.root[:, None] * (sign @ factor), full_matrices=False)
            self._forms.append((factor, U, S, Vh))

    def __call__(self, differences: Tensor, total: Tensor, prior: Tensor | None = None) -> ShapleyEstimate:
        """Estimate the values.

        Args:
            differences: v(S) − v(complement of S) of each pair, shape (R, M).
            total: v(all) − v(none), shape (R,).
            prior: Prior mean, shape (R, P), that sums to the total; None for no penalty.
        """
        players = self.sign.shape[1]
        mean = (total / players)[:, None].expand(-1, players) if prior is None else prior
        residual = self.root * (differences - mean @ self.sign.T)
        found = self._least_squares(residual) if prior is None or self.complete else self._ridge(residual)
        return ShapleyEstimate(mean + found.values, found.standard_error)

    def _least_squares(self, residual: Tensor) -> ShapleyEstimate:
        """Without a penalty; the smallest deviations where there are fewer equations than unknowns."""
        factor, U, S, Vh = self._forms[0]
        live = (S / S.amax()) > 1e-10
        U, S, V = U[:, live], S[live], factor @ Vh[live].T
        along = residual @ U
        values = (along / S) @ V.T
        left = residual.shape[1] - len(S)
        if self.complete:
            return ShapleyEstimate(values, torch.zeros_like(values))
        if left < 1 or len(S) < len(factor) - 1:
            return ShapleyEstimate(values, torch.full_like(values, torch.inf))
        rest = (residual.square().sum(1) - along.square().sum(1)).clamp_min(0) / left
        return ShapleyEstimate(values, (rest[:, None] * (V / S).square().sum(1)).sqrt())

    def _ridge(self, residual: Tensor) -> ShapleyEstimate:
        best: tuple[Tensor, Tensor, Tensor] | None = None
        for form in self._forms:
            evidence, values, error = self._ridge_with(residual, *form)
            if best is None:
                best = evidence, values, error
            else:
                better = evidence > best[0]
                best = (
                    torch.where(better, evidence, best[0]),
                    torch.where(better[:, None], values, best[1]),
                    torch.where(better[:, None], error, best[2]),
                )
        assert best is not None
        return ShapleyEstimate(best[1], best[2])

    def _ridge_with(self, residual: Tensor, factor: Tensor, U: Tensor, S: Tensor, Vh: Tensor) -> tuple[Tensor, ...]:
        count, energy = residual.shape[1], S.square()
        along = residual @ U
        rest = (residual.square().sum(1) - along.square().sum(1)).clamp_min(0)
        strengths = STRENGTHS * energy.mean()
        # r ~ N(0, σ² (I + A Aᵀ / λ)), with σ² at its maximum.
        inflation = 1 + energy / strengths[:, None]
        variance = ((along.square() @ (1 / inflation).T) + rest[:, None]) / count
        evidence = -0.5 * (count * variance.clamp_min(1e-300).log() + inflation.log().sum(1))
        top, at = evidence.max(1)
        strength, noise = strengths[at], variance.gather(1, at[:, None])[:, 0]
        V = factor @ Vh.T
        values = (along * (S / (energy + strength[:, None]))) @ V.T
        explained = (energy / (energy + strength[:, None])) @ V.square().T
        spread = (factor.square().sum(1) - explained).clamp_min(0)
        return top, values, ((noise / strength)[:, None] * spread).sqrt()
