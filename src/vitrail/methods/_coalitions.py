"""Draw coalitions of players in pairs, each with its complement.

Sizes are divided into strata of about equal weight under the Shapley kernel, and one size stands for each stratum, so
that many coalitions have equally many players and share a batch. Coalitions of one size are cut from random orders of
the players, so that no player is drawn much more often than another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

#: Strata of the sizes up to half of the players.
STRATA = 16
GOLDEN = (sqrt(5) - 1) / 2


@dataclass(frozen=True)
class CoalitionPairs:
    """Coalitions that stand for themselves and their complements.

    Attributes:
        present: Players present in the first coalition of each pair, shape (M, P).
        stratum: Stratum of each pair, shape (M,).
        mass: Share of each stratum under the Shapley kernel.
        complete: Whether these are all coalitions there are.
    """

    present: Tensor
    stratum: Tensor
    mass: Tensor
    complete: bool = False

    def __len__(self) -> int:
        return len(self.present)

    def first(self, count: int) -> CoalitionPairs:
        """The first pairs, which are stratified as all of them are."""
        complete = self.complete and count >= len(self)
        return CoalitionPairs(self.present[:count], self.stratum[:count], self.mass, complete)

    @property
    def weights(self) -> Tensor:
        """Weight of each pair, shape (M,), of mean one: what its stratum should have, by what it has."""
        counts = self.stratum.bincount(minlength=len(self.mass)).clamp_min(1)
        weights = (self.mass / counts)[self.stratum]
        return weights / weights.mean()


def draw_pairs(players: int, count: int, seed: int) -> CoalitionPairs:
    """Draw pairs of complementary coalitions; all of them, where there are no more than asked for.

    Args:
        players: Number of players, at least 2.
        count: Number of pairs.
        seed: Seed of the generator, which is on the CPU.

    Example:
        >>> pairs = draw_pairs(3, 100, seed=0)
        >>> pairs.present.int(), pairs.complete
        (tensor([[1, 0, 0],
                [0, 1, 0],
                [0, 0, 1]], dtype=torch.int32), True)
    """
    half = players // 2
    size = torch.arange(1, half + 1, dtype=torch.float64)
    kernel = 1 / (size * (players - size))
    if players % 2 == 0:
        kernel[-1] /= 2  # coalitions of half of the players are their own complements' size
    kernel /= kernel.sum()
    if players <= 32 and 2 ** (players - 1) - 1 <= count:
        return _all_pairs(players, kernel)
    generator = torch.Generator().manual_seed(seed)
    start = torch.div(kernel.cumsum(0) - kernel, 1 / STRATA, rounding_mode="floor").long()
    strata = (start.diff(prepend=start[:1]) > 0).long().cumsum(0)  # numbered without gaps
    mass = torch.zeros(int(strata.max()) + 1, dtype=torch.float64).index_add_(0, strata, kernel)
    sizes = [
        int(members[torch.multinomial(kernel[members], 1, generator=generator)]) + 1
        for members in ((strata == j).nonzero()[:, 0] for j in range(len(mass)))
    ]
    # An additive recurrence visits the strata in proportion to their mass, from the first pairs on.
    places = (torch.arange(count, dtype=torch.float64) * GOLDEN + torch.rand((), generator=generator)) % 1
    stratum = torch.searchsorted(mass.cumsum(0), places).clamp_max(len(mass) - 1)
    present = torch.zeros(count, players, dtype=torch.bool)
    for j, chosen in enumerate(sizes):
        rows = (stratum == j).nonzero()[:, 0]
        present[rows] = _of_one_size(players, chosen, len(rows), generator)
    return CoalitionPairs(present, stratum, mass)


def _all_pairs(players: int, kernel: Tensor) -> CoalitionPairs:
    """Every pair once; the stratum is the size of the smaller coalition."""
    number = torch.arange(1, 2 ** (players - 1))
    present = (number[:, None] >> torch.arange(players)) % 2 == 1
    present = torch.where((present.sum(1) * 2 > players)[:, None], ~present, present)
    size = present.sum(1)
    order = torch.argsort(size * 2**players + (present.long() << torch.arange(players)).sum(1))
    return CoalitionPairs(present[order], size[order] - 1, kernel, complete=True)


def _of_one_size(players: int, size: int, count: int, generator: torch.Generator) -> Tensor:
    """Coalitions of one size, shape (count, players): consecutive pieces of random orders of the players."""
    each = players // size
    orders = torch.rand(-(-count // each), players, generator=generator).argsort(1)
    chosen = orders[:, : each * size].reshape(-1, size)[:count]
    return torch.zeros(count, players, dtype=torch.bool).scatter_(1, chosen, True)
