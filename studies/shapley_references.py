"""Shapley values by permutation sampling, agreement of maps with them for each image, and its means."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from value_tables import Values

from vitrail.methods.shapley_explainer.partial_images import PartialImages, split_patches

GAMES, CORRELATIONS = ("surrogate", "model"), ("pearson", "spearman")
#: Rows of a file of values that are no methods: halves of the permutations, and a number of them against all others.
HALVES, PERMUTATIONS = "between halves", "permutations "
#: What names of divergences begin with; the share of visible patches follows.
DIVERGENCE = "kl "
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)


def permutation_values(
    partial: PartialImages, model: torch.nn.Module, images: Tensor, classes: Tensor, permutations: int, rows: int
) -> Tensor:
    """Marginal contributions of the patches in random permutations and their reverses.

    Args:
        partial: Predictions for images with some patches kept.
        model: Whose probabilities are the game.
        images: Shape (b, channels, height, width).
        classes: Classes of each image, shape (b, K).
        permutations: Number of permutations, even; the second half of each chunk is the reverse of the first.
        rows: Most images in a forward pass.

    Returns:
        Shape (permutations, b, K, S); antithetic pairs are neighbours.
    """
    b, players, device = len(images), partial.players, images.device
    generator = torch.Generator(device).manual_seed(1)
    chunk = max(2, rows // b // 2 * 2)
    found = []
    for start in range(0, permutations, chunk):
        count = min(chunk, permutations - start)
        order = torch.rand(count // 2 * b, players, generator=generator, device=device).argsort(1).view(-1, b, players)
        order = torch.stack([order, order.flip(-1)], 1).view(-1, players)
        owner = torch.arange(b, device=device).repeat(count)
        marginals = torch.zeros(count * b, players, classes.shape[1], device=device)
        before = partial.empty(model, images)[classes[owner]]
        for t in range(1, players + 1):
            keep = order[:, :t].sort(1).values
            after = torch.cat([
                partial.probabilities(model, images[owner[i : i + rows]], keep[i : i + rows])
                for i in range(0, len(keep), rows)
            ]).gather(1, classes[owner])  # fmt: skip
            marginals[torch.arange(len(order), device=device), order[:, t - 1]] = after - before
            before = after
        found.append(marginals.view(count, b, players, -1).transpose(2, 3))
    return torch.cat(found)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson correlation along the last axis."""
    a, b = (v.double() - v.double().mean(-1, keepdim=True) for v in (a, b))
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)).clamp_min(1e-12)


def agreement(a: Tensor, b: Tensor) -> dict[str, list[float]]:
    """Pearson and Spearman correlation of the maps of each image, shape (b, K, S): means over its K classes."""
    ranks = [v.argsort(-1).argsort(-1).double() for v in (a, b)]
    found = correlation(a, b), correlation(*ranks)
    return {name: own.mean(-1).tolist() for name, own in zip(CORRELATIONS, found, strict=True)}


def add_agreement(values: Values, game: str, method: str, a: Tensor, b: Tensor) -> None:
    """Add the correlations of each image under the name of a method."""
    for name, own in agreement(a, b).items():
        values.setdefault(f"{game} {name}", {})[method] = own


def surrogate_fidelity(
    partial: PartialImages, model: torch.nn.Module, surrogate: torch.nn.Module, images: Tensor
) -> Values:
    """By share of visible patches, each image's KL divergence from the model's whole-image prediction."""
    generator = torch.Generator(images.device).manual_seed(2)
    whole = partial.probabilities(model, images)
    found: Values = {}
    for share in SHARES:
        keep, _ = split_patches(len(images), partial.players, round(share * partial.players), generator)
        found[f"{DIVERGENCE}{share}"] = {
            key: (whole * (whole.clamp_min(1e-9).log() - p.clamp_min(1e-9).log())).sum(1).tolist()
            for key, p in (("model", partial.probabilities(model, images, keep)),
                           ("surrogate", partial.probabilities(surrogate, images, keep)))
        }  # fmt: skip
    return found


def summarise(values: Values) -> dict[str, Any]:
    """Means over images: divergences by share of visible patches, and correlations by game."""
    shares = {score.removeprefix(DIVERGENCE): own for score, own in values.items() if score.startswith(DIVERGENCE)}
    games: dict[str, Any] = {}
    for game in GAMES:
        names = {name: values.get(f"{game} {name}", {}) for name in CORRELATIONS}
        rows = {m: {name: float(np.mean(own[m])) for name, own in names.items()} for m in names["pearson"]}
        if rows:
            few = {m.removeprefix(PERMUTATIONS): row for m, row in rows.items() if m.startswith(PERMUTATIONS)}
            methods = {m: row for m, row in rows.items() if m != HALVES and not m.startswith(PERMUTATIONS)}
            games[game] = {"between_halves": rows[HALVES], "methods": methods, "by_permutations": few}
    divergences = {share: {model: float(np.mean(v)) for model, v in own.items()} for share, own in shares.items()}
    return {"kl_by_visible_share": divergences, "games": games}
