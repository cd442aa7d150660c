"""Feature maps as masks over the image: interpolated, compared, and clustered by similarity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.methods.postprocess import is_constant

#: From a number of items to the slices in which they are processed, as ``Probe.pieces``.
Pieces = Callable[[int], Iterator[slice]]


def interpolation(cells: int, length: int, like: Tensor, aligned: bool = False) -> Tensor:
    """Linear interpolation of a line of numbers as a matrix, shape (length, cells), with the precision of ``like``.

    Every row sums to 1, so a map that is shifted and scaled is stretched to the shifted and scaled stretched map.

    Example:
        >>> interpolation(2, 4, torch.zeros(1))
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500],
                [0.2500, 0.7500],
                [0.0000, 1.0000]])
    """
    unit = torch.eye(cells, dtype=like.dtype, device=like.device)
    return F.interpolate(unit[None], size=length, mode="linear", align_corners=aligned)[0].T


@dataclass(frozen=True)
class FeatureMasks:
    """Masks at the size of the image, kept at the size of the grid; ``masks[slice]`` stretches some of them.

    Attributes:
        grids: Maps on the grid, shape (N, rows, columns).
        low: Minimum of each interpolated map, shape (N,).
        span: Maximum minus minimum, shape (N,).
        size: Height and width of the image.
        aligned: Whether interpolation puts corners on corners.
    """

    grids: Tensor
    low: Tensor
    span: Tensor
    size: tuple[int, int]
    aligned: bool = False

    def __len__(self) -> int:
        return len(self.grids)

    def __getitem__(self, piece: slice) -> Tensor:
        """Masks between 0 and 1, shape (n, height, width)."""
        big = self.features(piece)
        # Interpolated maps lie between 0 and 1 up to rounding.
        return ((big - self.low[piece, None, None]) / self.span[piece, None, None]).clamp(0, 1)

    def features(self, piece: slice) -> Tensor:
        """The maps as they were before they were brought to [0, 1], shape (n, height, width)."""
        return F.interpolate(self.grids[piece, None], self.size, mode="bilinear", align_corners=self.aligned)[:, 0]

    @property
    def unit(self) -> Tensor:
        """The masks on the grid, in double precision, shape (N, rows, columns): stretching these gives the masks."""
        home = torch.device("cpu") if self.grids.device.type == "mps" else self.grids.device  # which has no doubles
        grids, low, span = (t.to(home, torch.float64) for t in (self.grids, self.low, self.span))
        return (grids - low[:, None, None]) / span[:, None, None]


def stretched(
    grids: Tensor, size: tuple[int, int], pieces: Pieces, aligned: bool = False, drop: bool = True
) -> FeatureMasks:
    """Feature maps brought to [0, 1] each, by minimum and maximum at the size of the image.

    Interpolated maps have their extremes at pixels, which do not all lie on centres of the grid's cells, so the maps
    are stretched, piece by piece, to find them.

    Args:
        grids: Maps on the grid, shape (N, rows, columns).
        size: Height and width of the image.
        pieces: How many to stretch at a time.
        aligned: Whether interpolation puts corners on corners.
        drop: Leave out maps that are constant up to rounding; otherwise they become masks of zeros.
    """
    raw = FeatureMasks(grids, grids.new_zeros(len(grids)), grids.new_ones(len(grids)), size, aligned)
    ends = torch.cat([torch.stack(raw.features(p).flatten(1).aminmax(dim=1), 1) for p in pieces(len(grids))])
    constant = is_constant(ends, axes=1)[:, 0]
    low, span = ends[:, 0], ends[:, 1] - ends[:, 0]
    if drop:
        live = ~constant
        return FeatureMasks(grids[live], low[live], span[live], size, aligned)
    return FeatureMasks(grids, torch.where(constant, ends[:, 1], low), torch.where(constant, 1.0, span), size, aligned)


def similarity(masks: FeatureMasks) -> Tensor:
    """Cosine between every two masks at the size of the image, shape (N, N), in double precision.

    Stretching is linear, a matrix down and another across. So inner products of stretched maps are inner products of
    maps on the grid through the Gram matrices of the two, and no mask has to be stretched.
    """
    unit = masks.unit
    rows, columns = (
        interpolation(cells, length, unit, masks.aligned)
        for cells, length in zip(unit.shape[1:], masks.size, strict=True)
    )
    inner = ((rows.T @ rows) @ unit @ (columns.T @ columns)).flatten(1) @ unit.flatten(1).T
    inner = (inner + inner.T) / 2
    norm = inner.diagonal().clamp_min(0).sqrt()
    scale = norm[:, None] * norm
    return torch.where(scale > 0, inner / torch.where(scale > 0, scale, 1.0), 0.0)


def joined(masks: FeatureMasks, labels: Tensor, mean: bool, pieces: Pieces) -> FeatureMasks:
    """One mask a cluster, in the order of the labels.

    Args:
        masks: Masks of single feature maps.
        labels: The cluster of each, shape (N,), numbered from 0.
        mean: Take the mean of the members; otherwise their sum, brought to [0, 1] again.
        pieces: How many to stretch at a time.
    """
    unit = masks.unit
    member = F.one_hot(labels.to(unit.device)).T.to(unit)
    if mean:
        member = member / member.sum(1, keepdim=True)
    grids = (member @ unit.flatten(1)).view(-1, *unit.shape[1:]).to(masks.grids)
    if mean:
        return FeatureMasks(grids, grids.new_zeros(len(grids)), grids.new_ones(len(grids)), masks.size, masks.aligned)
    return stretched(grids, masks.size, pieces, masks.aligned, drop=False)


def mean_similarity(masks: FeatureMasks) -> tuple[float, float]:
    """Mean cosine over all pairs of different masks (mSim of the ViT-CX paper), and the highest; 1 for a single mask.

    Example:
        >>> grids = torch.tensor([[[0.0, 1.0]], [[0.0, 2.0]], [[1.0, 0.0]]])
        >>> masks = stretched(grids, (1, 2), lambda count: iter([slice(0, count)]))
        >>> mean_similarity(masks)[1]
        1.0
    """
    if len(masks) < 2:
        return 1.0, 1.0
    first, second = torch.triu_indices(len(masks), len(masks), 1)
    between = similarity(masks).cpu()[first, second]
    return float(between.mean()), float(between.max())


def agglomerate(distance: Tensor, threshold: float, linkage: str = "complete") -> Tensor:
    """Join the two nearest clusters repeatedly while their distance is below a threshold.

    Distances only grow by joining, so joins need not happen in order of height. With complete linkage on a GPU all
    pairs of clusters that are each other's nearest are joined at once, round by round, unless distances below the
    threshold are equal; elsewhere, and then, one pair after the other.

    Args:
        distance: Symmetric, shape (N, N).
        threshold: Clusters this far apart or farther stay apart.
        linkage: The distance of two clusters: "complete", of their two farthest members; "average", the mean over all
            pairs of members; "single", of their two nearest members.

    Returns:
        The cluster of each, shape (N,), on the CPU, numbered in the order of their first members.

    Example:
        >>> points = torch.tensor([0.0, 5.0, 1.0, 2.0])
        >>> D = (points[:, None] - points).abs()
        >>> agglomerate(D, 2.0), agglomerate(D, 2.0, "single")
        (tensor([0, 1, 0, 2]), tensor([0, 1, 0, 0]))
    """
    if linkage == "complete" and distance.device.type == "cuda" and not _ties(distance, threshold):
        root = by_rounds(distance, threshold).cpu().numpy()
    else:
        root = by_chains(distance.cpu().numpy(), threshold, linkage)
    _, first, label = np.unique(root, return_index=True, return_inverse=True)
    return torch.as_tensor(np.argsort(np.argsort(first))[label])


def by_rounds(distance: Tensor, threshold: float) -> Tensor:
    """Index of one member of each item's cluster, shape (N,); distances below the threshold must differ."""
    D = distance.clone().fill_diagonal_(torch.inf)
    here = torch.arange(len(D), device=D.device)
    root = here
    while len(D):
        near, nearest = D.min(1)
        first = ((nearest[nearest] == here) & (here < nearest) & (near < threshold)).nonzero()[:, 0]
        if not len(first):
            break
        second = nearest[first]
        D[first] = torch.maximum(D[first], D[second])
        D[:, first] = torch.maximum(D[:, first], D[:, second])
        D[second] = torch.inf
        D[:, second] = torch.inf
        root = here.index_copy(0, second, first)[root]
    return root


def by_chains(distance: np.ndarray, threshold: float, linkage: str = "complete") -> np.ndarray:
    """The same by chains of nearest neighbours: walk from a cluster to its nearest, until two are each other's nearest.

    Ties go to the cluster the walk came from, then to the lowest index.
    """
    D = np.array(distance, dtype=np.float64)
    np.fill_diagonal(D, np.inf)
    size = np.ones(len(D))
    alive = [True] * len(D)
    merges: list[tuple[int, int]] = []
    chain: list[int] = []
    for _ in range(len(D) - 1):
        if not chain:
            chain.append(alive.index(True))
        while True:
            x = chain[-1]
            row = D[x]
            y = int(row.argmin())
            if len(chain) > 1 and row[chain[-2]] <= row[y]:
                y = chain[-2]
                break
            chain.append(y)
        del chain[-2:]
        gone, kept = min(x, y), max(x, y)
        if row[y] < threshold:
            merges.append((gone, kept))
        alive[gone] = False
        if linkage == "complete":
            between = np.maximum(D[x], D[y])
        elif linkage == "single":
            between = np.minimum(D[x], D[y])
        else:
            between = (size[x] * D[x] + size[y] * D[y]) / (size[x] + size[y])
        size[kept] += size[gone]
        D[kept], D[:, kept] = between, between
        D[kept, kept] = np.inf
        D[gone], D[:, gone] = np.inf, np.inf
    root = np.arange(len(D))
    for gone, kept in reversed(merges):
        root[gone] = root[kept]
    return root


def _ties(distance: Tensor, threshold: float) -> bool:
    """Whether two pairs are equally far apart, below a threshold."""
    each = distance[torch.ones_like(distance, dtype=torch.bool).triu(1)].sort().values
    return bool(((each[1:] == each[:-1]) & (each[1:] < threshold)).any())
