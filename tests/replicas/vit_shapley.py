"""ViT Shapley from its definition: exact Shapley values, kernel, objective and normalisation, one number at a time."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np


def shapley_values(value, players):
    """Exact Shapley values of a game, a function of a frozenset, by enumeration; shape (players, classes)."""
    found = []
    for i in range(players):
        others = [j for j in range(players) if j != i]
        total = 0.0
        for size in range(players):
            weight = factorial(size) * factorial(players - size - 1) / factorial(players)
            for members in combinations(others, size):
                total = total + weight * (value(frozenset({*members, i})) - value(frozenset(members)))
        found.append(total)
    return np.array(found)


def size_probabilities(players):
    """Probability of each coalition size 1 … players − 1 under the Shapley kernel."""
    weights = [(players - 1) / (size * (players - size)) for size in range(1, players)]
    return [weight / sum(weights) for weight in weights]


def normalised(values, total):
    """Values, shape (b, S, classes), after the missing part of the total was shared equally."""
    found = np.array(values, dtype=np.float64)
    for b in range(found.shape[0]):
        for c in range(found.shape[2]):
            missing = total[b, c] - sum(values[b, i, c] for i in range(found.shape[1]))
            for i in range(found.shape[1]):
                found[b, i, c] += missing / found.shape[1]
    return found


def objective(values, coalitions, scores, empty):
    """Mean over images and coalitions of the squared error, summed over classes."""
    images, count = len(coalitions), len(coalitions[0])
    total = 0.0
    for b in range(images):
        for k in range(count):
            for c in range(len(empty)):
                predicted = empty[c]
                for i in range(values.shape[1]):
                    if coalitions[b][k][i]:
                        predicted += values[b, i, c]
                total += (scores[b, k, c] - predicted) ** 2
    return total / (images * count)
