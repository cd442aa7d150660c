"""Measures over many maps: shares of relevance, a border, clusters of maps, and the place that a cluster shares."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import require
from vitrail.scores.statistics import Array

#: Share of the patches that make up the place of a cluster.
PLACE_SHARE = 0.04
#: Width of the border, as a share of the rows and of the columns.
BORDER_WIDTH = 0.15
#: Fewest maps of a class that are clustered, and fewest of a cluster that is reported.
MIN_MAPS, MIN_CLUSTER = 8, 3
MAX_CLUSTERS = 8


def relevance_shares(maps: Array) -> Array:
    """Share of each patch in the positive relevance of its map, shape (maps, rows, columns); 0 in a map without any.

    Example:
        >>> relevance_shares(np.array([[[3.0, -1.0], [0.0, 1.0]]])).tolist()
        [[[0.75, 0.0], [0.0, 0.25]]]
    """
    positive = np.nan_to_num(np.clip(maps, 0, None)).astype(np.float64)
    total = positive.sum((1, 2), keepdims=True)
    shares: Array = np.divide(positive, total, out=np.zeros_like(positive), where=total > 0)
    return shares


def border_patches(rows: int, columns: int) -> NDArray[np.bool_]:
    """Which patches lie on the border of the image, shape (rows, columns).

    Example:
        >>> border_patches(4, 4).astype(int).tolist()
        [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]]
    """
    border = np.ones((rows, columns), bool)
    width, height = max(1, round(BORDER_WIDTH * columns)), max(1, round(BORDER_WIDTH * rows))
    border[height : rows - height, width : columns - width] = False
    return border


def place_of(mean_share: Array) -> NDArray[np.bool_]:
    """Patches of a mean map with most relevance, shape (rows, columns): at most 4 %, each with more than its area."""
    count = max(1, round(PLACE_SHARE * mean_share.size))
    place = np.zeros(mean_share.size, bool)
    place[np.argsort(-mean_share, axis=None, kind="stable")[:count]] = True
    return place.reshape(mean_share.shape) & (mean_share > 1 / mean_share.size)


def describe_place(share: Array) -> str:
    """Where the middle of some relevance is, in words.

    Example:
        >>> corner = np.zeros((6, 6)); corner[0, 5] = 1
        >>> describe_place(corner), describe_place(np.ones((6, 6)))
        ('top right', 'centre')
    """
    total = max(float(share.sum()), 1e-12)
    row = float(share.sum(1) @ (np.arange(share.shape[0]) + 0.5)) / total / share.shape[0]
    column = float(share.sum(0) @ (np.arange(share.shape[1]) + 0.5)) / total / share.shape[1]
    vertical = "top" if row < 1 / 3 else "bottom" if row > 2 / 3 else ""
    horizontal = "left" if column < 1 / 3 else "right" if column > 2 / 3 else ""
    return f"{vertical} {horizontal}".strip() or "centre"


def cluster_maps(shares: Array, max_clusters: int = MAX_CLUSTERS) -> NDArray[np.int64]:
    """Cluster shares of relevance, shape (maps, rows, columns), by spectral clustering of their nearest neighbours.

    The number of clusters is that of the largest gap between eigenvalues of the graph's Laplacian, as in spectral
    relevance analysis. Fewer than 8 maps are one cluster.

    Returns:
        Number of each map's cluster, shape (maps,).
    """
    count = len(shares)
    if count < MIN_MAPS:
        return np.zeros(count, np.int64)
    neighbours = require("sklearn.neighbors", "audit", "cluster maps")
    clusters = require("sklearn.cluster", "audit", "cluster maps")
    csgraph = require("scipy.sparse.csgraph", "audit", "cluster maps")
    features = np.sqrt(shares.reshape(count, -1))  # Euclidean distances of square roots are Hellinger distances
    graph = neighbours.kneighbors_graph(features, max(3, min(10, count // 4)), include_self=True)
    affinity = (0.5 * (graph + graph.T)).toarray()
    eigenvalues = np.linalg.eigvalsh(csgraph.laplacian(affinity, normed=True))[: max_clusters + 1]
    number = int(np.argmax(np.diff(eigenvalues))) + 1
    if number == 1:
        return np.zeros(count, np.int64)
    spectral = clusters.SpectralClustering(
        number, affinity="precomputed", assign_labels="cluster_qr", eigen_solver="arpack", random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the graph of separate clusters is not connected
        labels: NDArray[np.int64] = spectral.fit_predict(affinity).astype(np.int64)
    return labels
