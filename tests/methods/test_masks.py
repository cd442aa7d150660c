"""Joining of masks: the clusters are those of other libraries, one by one and in rounds, ties included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.methods._masks import _ties, agglomerate, by_rounds


def same_partition(a, b) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return np.array_equal(a[:, None] == a, b[:, None] == b)


def distances(seed: int, ties: bool) -> np.ndarray:
    random = np.random.default_rng(seed)
    D = random.integers(1, 6, (30, 30)) / 8 if ties else random.random((30, 30))
    D = np.triu(D, 1)
    return D + D.T


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_linkage_is_scipys(seed, ties):
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    D = distances(seed, ties)
    tree = hierarchy.linkage(D[np.triu_indices(30, 1)], "complete")
    for threshold in (0.125, 0.25, 0.4, 0.5, 0.7, 0.9, 2.0):
        expected = hierarchy.fcluster(tree, np.nextafter(threshold, 0), "distance")
        assert same_partition(agglomerate(torch.as_tensor(D), threshold), expected)


@pytest.mark.parametrize("linkage", ["average", "single"])
@pytest.mark.parametrize("seed", range(4))
def test_other_linkages_are_scipys(seed, linkage):
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    D = distances(seed, False)
    tree = hierarchy.linkage(D[np.triu_indices(30, 1)], linkage)
    for threshold in (0.05, 0.125, 0.25, 0.4, 0.5, 0.7, 2.0):
        expected = hierarchy.fcluster(tree, np.nextafter(threshold, 0), "distance")
        assert same_partition(agglomerate(torch.as_tensor(D), threshold, linkage), expected)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_linkage_is_scikit_learns(seed, ties):
    cluster = pytest.importorskip("sklearn.cluster")
    D = distances(seed, ties)
    for threshold in (0.125, 0.25, 0.4, 0.5, 0.7, 0.9, 2.0):
        expected = cluster.AgglomerativeClustering(
            n_clusters=None, metric="precomputed", linkage="complete", distance_threshold=threshold
        ).fit_predict(D)
        assert same_partition(agglomerate(torch.as_tensor(D), threshold), expected)


def test_clusters_are_numbered_by_their_first_members():
    labels = agglomerate(torch.as_tensor(distances(1, False)), 0.6).numpy()
    first = [int(np.flatnonzero(labels == k)[0]) for k in range(labels.max() + 1)]
    assert first == sorted(first)
    assert agglomerate(torch.zeros(1, 1), 0.1).tolist() == [0]


@pytest.mark.parametrize("seed", range(8))
def test_rounds_join_what_chains_join(seed):
    D = torch.as_tensor(distances(seed, False))
    for threshold in (0.125, 0.25, 0.4, 0.5, 0.7, 0.9, 2.0):
        assert same_partition(by_rounds(D, threshold), agglomerate(D, threshold))
    points = torch.rand(200, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    D = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    assert same_partition(by_rounds(D, 0.5), agglomerate(D, 0.5))
    assert by_rounds(D[:0, :0], 0.5).tolist() == []


def test_ties_above_the_threshold_do_not_count():
    D = torch.tensor([[0.0, 0.3, 0.2], [0.3, 0.0, 0.3], [0.2, 0.3, 0.0]])
    assert _ties(D, 0.31)
    assert not _ties(D, 0.3)
    assert not _ties(torch.as_tensor(distances(1, False)), 2.0)


def test_linkage_stops_at_the_threshold_itself():
    D = torch.tensor([[0.0, 0.25], [0.25, 0.0]])
    assert agglomerate(D, 0.25).tolist() == [0, 1]
    assert agglomerate(D, 0.2500001).tolist() == [0, 0]
