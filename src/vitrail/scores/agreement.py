"""Agreement: do two methods rank the places of a picture alike?

Agreement says nothing about which method is right. It tells which methods are in substance one method, and how much a
conclusion depends on the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.scores.segmentation import settle
from vitrail.scores.statistics import Array, Tally

#: Share of the places that counts as the top.
TOP = 0.1


def mean_ranks(maps: Tensor) -> Tensor:
    """Places in rising order, from 1; equal values share the mean of their places.

    Args:
        maps: Finite maps, shape (B, …).

    Returns:
        Shape (B, n), float64.

    Example:
        >>> mean_ranks(torch.tensor([[0.3, 0.1, 0.3, 0.9]]))
        tensor([[2.5000, 1.0000, 2.5000, 4.0000]], dtype=torch.float64)
    """
    values, order = maps.flatten(1).sort()
    n = values.shape[1]
    place = torch.arange(n, device=maps.device).expand_as(order)
    new = torch.ones_like(values, dtype=torch.bool)
    new[:, 1:] = values[:, 1:] != values[:, :-1]
    start = torch.where(new, place, 0).cummax(1).values
    end = torch.where(new.roll(-1, 1), place, n - 1).flip(1).cummin(1).values.flip(1)
    shared = (start + end).double() / 2 + 1
    return torch.empty_like(shared).scatter_(1, order, shared)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Rank correlation of each map with its partner: Pearson's r of the ranks, ties sharing theirs.

    Args:
        a: Finite maps, shape (B, …).
        b: Their partners, the same shape.

    Returns:
        From -1 to 1, shape (B,), float64; NaN where a map is constant.

    Example:
        >>> spearman(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 30.0, 20.0]])).round(decimals=9).item()
        0.5
    """
    return (_standard(mean_ranks(a)) * _standard(mean_ranks(b))).sum(1)


def kendall(a: Tensor, b: Tensor) -> Tensor:
    """Kendall's τ-b: pairs of places ordered alike less pairs ordered unlike, over the pairs that do not tie.

    All pairs are looked at, so this is for grids of patches, not for maps of pixels.

    Args:
        a: Finite maps, shape (B, …), of 4,096 places at the most.
        b: Their partners, the same shape.

    Returns:
        From -1 to 1, shape (B,), float64; NaN where a map is constant.

    Example:
        >>> kendall(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[10.0, 30.0, 20.0]])).item()
        0.333...
    """
    if a[0].numel() > 4096:
        raise OptionError(f"{a[0].numel()} places make too many pairs: give the grid of patches, or use spearman")
    found = []
    for one, two in zip(a.flatten(1), b.flatten(1), strict=True):  # pairs of one image at a time, to bound memory
        x, y = torch.sign(one[:, None] - one), torch.sign(two[:, None] - two)
        found.append((x * y).double().sum() / (x.abs().double().sum() * y.abs().double().sum()).sqrt())
    return torch.stack(found)


def top_overlap(a: Tensor, b: Tensor, top: float = TOP) -> Tensor:
    """Share of the highest places of one map that are also among the highest of the other.

    Places that tie for the last of the k highest belong to them in part, all alike, such that there are k in all; a
    place is common to both maps as far as it belongs to both. So a map agrees with itself fully, ties or not.

    Args:
        a: Finite maps, shape (B, …).
        b: Their partners, the same shape.
        top: Share of the places that counts as highest, at least one place.

    Returns:
        From 0 to 1, shape (B,), float64. Two random maps come to ``top`` on average.

    Example:
        >>> top_overlap(torch.tensor([[4.0, 3.0, 2.0, 1.0]]), torch.tensor([[4.0, 1.0, 3.0, 2.0]]), 0.5).item()
        0.5
    """
    k = max(1, round(top * a[0].numel()))
    return torch.minimum(_member(a.flatten(1), k), _member(b.flatten(1), k)).sum(1) / k


def agreement(maps: Mapping[str, Tensor], top: float = TOP) -> dict[str, Tensor]:
    """Rank correlation and overlap of the top between every two methods, for each image.

    Args:
        maps: For each method one map an image, all of the shape (B, height, width).
        top: See `top_overlap`.

    Returns:
        ``spearman|a|b`` and ``top|a|b`` for every two methods a and b in order of name, shape (B,); NaN where one of
        the two maps is constant or not finite.

    Example:
        >>> found = agreement({"b": torch.eye(4)[None], "a": 2 * torch.eye(4)[None]})
        >>> {name: round(value.item(), 6) for name, value in found.items()}
        {'spearman|a|b': 1.0, 'top|a|b': 1.0}
    """
    if len({tuple(m.shape) for m in maps.values()}) != 1 or any("|" in name for name in maps):
        raise InputError("maps must be of one shape, and methods' names without a vertical bar")
    standard, member, dull = {}, {}, {}
    for name in sorted(maps):
        settled, mute = settle(maps[name])
        k = max(1, round(top * settled[0].numel()))
        # Ranked once for each method, not once for each pair.
        standard[name], dull[name] = _standard(mean_ranks(settled)), mute[:, 0, 0]
        member[name] = _member(settled.flatten(1), k)
    found: dict[str, Tensor] = {}
    for a, b in combinations(standard, 2):
        known = ~(dull[a] | dull[b])
        found[f"spearman|{a}|{b}"] = (standard[a] * standard[b]).sum(1).where(known, torch.nan)
        found[f"top|{a}|{b}"] = (torch.minimum(member[a], member[b]).sum(1) / k).where(known, torch.nan)
    return found


@dataclass
class Agreement(Tally):
    """Collects what `agreement` returns.

    Example:
        >>> tally = Agreement()
        >>> tally.add(["x"], agreement({"a": torch.eye(4)[None], "b": 1 - torch.eye(4)[None]}))
        >>> tally.methods, tally.matrix("spearman").round(6).tolist()
        (('a', 'b'), [[1.0, -1.0], [-1.0, 1.0]])
    """

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order of the matrix."""
        return tuple(sorted({name for column in self.columns for name in column.split("|")[1:]}))

    def matrix(self, kind: str = "spearman") -> Array:
        """Mean over images of "spearman" or "top", methods by methods; ones on the diagonal."""
        methods = self.methods
        matrix = np.eye(len(methods))
        for (i, a), (j, b) in combinations(enumerate(methods), 2):
            matrix[i, j] = matrix[j, i] = self.mean(f"{kind}|{a}|{b}")
        return matrix


def _standard(ranked: Tensor) -> Tensor:
    """Centred and of length one, so that the sum of products is the correlation; NaN without any spread."""
    centred = ranked - ranked.mean(1, keepdim=True)
    return centred / centred.square().sum(1, keepdim=True).sqrt()


def _member(values: Tensor, k: int) -> Tensor:
    """How far each place belongs to the k highest, from 0 to 1, shape (B, n)."""
    cut = values.topk(k).values[:, -1:]
    above, level = values > cut, values == cut
    places = (k - above.sum(1, keepdim=True)).double() / level.sum(1, keepdim=True)
    return above + places * level
