"""Agreement between methods: rank correlation and overlap of the most relevant positions.

Agreement does not say which method is right. It shows which methods give nearly the same maps, and how much a
conclusion depends on the choice of method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.scores.segmentation import sanitise_maps
from vitrail.scores.statistics import Array, SampleScores

#: Share of the positions that `top_overlap` compares.
TOP_SHARE = 0.1
#: Most positions of a map that `kendall` accepts.
MAX_KENDALL_POSITIONS = 4096


def mean_ranks(maps: Tensor) -> Tensor:
    """Rank positions in ascending order from 1; ties share their mean rank.

    Returns:
        Shape (B, n), float64.

    Example:
        >>> mean_ranks(torch.tensor([[0.3, 0.1, 0.3, 0.9]]))
        tensor([[2.5000, 1.0000, 2.5000, 4.0000]], dtype=torch.float64)
    """
    values, order = maps.flatten(1).sort()
    n = values.shape[1]
    position = torch.arange(n, device=maps.device).expand_as(order)
    is_new = torch.ones_like(values, dtype=torch.bool)
    is_new[:, 1:] = values[:, 1:] != values[:, :-1]
    start = torch.where(is_new, position, 0).cummax(1).values
    end = torch.where(is_new.roll(-1, 1), position, n - 1).flip(1).cummin(1).values.flip(1)
    ranks = (start + end).double() / 2 + 1
    return torch.empty_like(ranks).scatter_(1, order, ranks)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation of each pair of maps: Pearson's r of `mean_ranks`.

    Args:
        a: Finite maps, shape (B, …).
        b: Finite maps of the same shape.

    Returns:
        From -1 to 1, shape (B,), float64; NaN where a map is constant.

    Example:
        >>> spearman(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 30.0, 20.0]])).round(decimals=9).item()
        0.5
    """
    return (_standardise(mean_ranks(a)) * _standardise(mean_ranks(b))).sum(1)


def kendall(a: Tensor, b: Tensor) -> Tensor:
    """Kendall's τ-b of each pair of maps: concordant minus discordant pairs, over the pairs that do not tie.

    All pairs of positions are compared, so this is for patch grids, not for pixel maps.

    Args:
        a: Finite maps, shape (B, …), of at most 4,096 positions.
        b: Finite maps of the same shape.

    Returns:
        From -1 to 1, shape (B,), float64; NaN where a map is constant.

    Example:
        >>> kendall(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 30.0, 20.0]])).item()
        0.333...
    """
    if a[0].numel() > MAX_KENDALL_POSITIONS:
        raise OptionError(
            f"kendall compares all pairs of positions and takes maps of at most {MAX_KENDALL_POSITIONS:,}, not "
            f"{a[0].numel():,}: pass the patch grid, or use spearman"
        )
    taus = []
    for one, two in zip(a.flatten(1), b.flatten(1), strict=True):  # one image at a time, to bound memory
        x, y = torch.sign(one[:, None] - one), torch.sign(two[:, None] - two)
        taus.append((x * y).double().sum() / (x.abs().double().sum() * y.abs().double().sum()).sqrt())
    return torch.stack(taus)


def top_overlap(a: Tensor, b: Tensor, top: float = TOP_SHARE) -> Tensor:
    """Share of the k most relevant positions that two maps have in common.

    Positions that tie at the k-th value are members in equal fractions, k members in all. So a map agrees fully with
    itself, with or without ties.

    Args:
        a: Finite maps, shape (B, …).
        b: Finite maps of the same shape.
        top: k as a share of the positions; k is at least one.

    Returns:
        From 0 to 1, shape (B,), float64. The mean over random maps is ``top``.

    Example:
        >>> top_overlap(torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([[4.0, 1.0, 3.0, 2.0]]), 0.5).item()
        0.5
    """
    k = max(1, round(top * a[0].numel()))
    return torch.minimum(_top_membership(a.flatten(1), k), _top_membership(b.flatten(1), k)).sum(1) / k


def score_agreement(maps: Mapping[str, Tensor], top: float = TOP_SHARE) -> dict[str, Tensor]:
    """Compute rank correlation and top overlap of every pair of methods, for each image.

    Args:
        maps: By method, one map per image, all of shape (B, height, width).
        top: See `top_overlap`.

    Returns:
        ``spearman|a|b`` and ``top|a|b`` for every two methods a and b in alphabetical order, shape (B,); NaN where one
        of the two maps is constant or not finite.

    Example:
        >>> found = score_agreement({"b": torch.eye(4)[None], "a": 2 * torch.eye(4)[None]})
        >>> {name: round(value.item(), 6) for name, value in found.items()}
        {'spearman|a|b': 1.0, 'top|a|b': 1.0}
    """
    shapes = {tuple(m.shape) for m in maps.values()}
    if len(shapes) != 1:
        raise InputError(f"maps of all methods must have one shape, got {sorted(shapes)}")
    if any("|" in name for name in maps):
        raise InputError(f"method names must not contain '|', got {list(maps)}")
    ranks, membership, constant = {}, {}, {}
    for name in sorted(maps):
        finite, own_constant = sanitise_maps(maps[name])
        k = max(1, round(top * finite[0].numel()))
        # Ranked once for each method, not once for each pair.
        ranks[name], constant[name] = _standardise(mean_ranks(finite)), own_constant[:, 0, 0]
        membership[name] = _top_membership(finite.flatten(1), k)
    scores: dict[str, Tensor] = {}
    for a, b in combinations(ranks, 2):
        valid = ~(constant[a] | constant[b])
        scores[f"spearman|{a}|{b}"] = (ranks[a] * ranks[b]).sum(1).where(valid, torch.nan)
        overlap = torch.minimum(membership[a], membership[b]).sum(1) / k
        scores[f"top|{a}|{b}"] = overlap.where(valid, torch.nan)
    return scores


@dataclass
class AgreementScores(SampleScores):
    """Accumulates the results of `score_agreement`.

    Example:
        >>> scores = AgreementScores()
        >>> scores.add(["x"], score_agreement({"a": torch.eye(4)[None], "b": 1 - torch.eye(4)[None]}))
        >>> scores.methods, scores.matrix("spearman").round(6).tolist()
        (('a', 'b'), [[1.0, -1.0], [-1.0, 1.0]])
    """

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order of the matrix."""
        return tuple(sorted({name for column in self.columns for name in column.split("|")[1:]}))

    def matrix(self, kind: str = "spearman") -> Array:
        """Mean over images of "spearman" or "top", shape (methods, methods); ones on the diagonal."""
        methods = self.methods
        matrix = np.eye(len(methods))
        for (i, a), (j, b) in combinations(enumerate(methods), 2):
            matrix[i, j] = matrix[j, i] = self.mean(f"{kind}|{a}|{b}")
        return matrix


def _standardise(ranks: Tensor) -> Tensor:
    """Centre ranks and scale them to unit length, so that a sum of products is a correlation; NaN if constant."""
    centred = ranks - ranks.mean(1, keepdim=True)
    return centred / centred.square().sum(1, keepdim=True).sqrt()


def _top_membership(values: Tensor, k: int) -> Tensor:
    """Membership of each position in the k highest, from 0 to 1, shape (B, n); ties at the cut share it."""
    cut = values.topk(k).values[:, -1:]
    above, level = values > cut, values == cut
    fraction = (k - above.sum(1, keepdim=True)).double() / level.sum(1, keepdim=True)
    return above + fraction * level
