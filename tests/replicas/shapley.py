"""Shapley values by definition: every coalition of cells of patches is evaluated, one at a time."""

from itertools import combinations
from math import factorial

import torch
from torch import Tensor

from .vit import Classes, Pass, Weights, embed, read_out, run, run_block


def score_of_patches(pass_: Pass, image: int, c: int, patches: set[int], removal: str) -> float:
    """Probability of class c when only some patches of an image are there."""
    pixels = pass_.images[image : image + 1].detach()
    weights = Weights(pass_.model)
    averages = weights.model.global_pool == "avg"  # and so has nothing to read without any patch
    if removal == "fill" or (removal == "tokens" and averages and not patches):
        gh, gw = pass_.grid
        ph, pw = pixels.shape[2] // gh, pixels.shape[3] // gw
        covered = torch.zeros_like(pixels)
        for j in patches:
            down, across = slice(j // gw * ph, (j // gw + 1) * ph), slice(j % gw * pw, (j % gw + 1) * pw)
            covered[..., down, across] = pixels[..., down, across]
        return float(run(pass_.model, covered).logits.detach().softmax(1)[0, c])
    x, prefix, _ = embed(weights, pixels)
    there = [*range(prefix), *(prefix + j for j in sorted(patches))]
    if removal == "tokens":
        x = x[:, there]
    for i in range(len(weights.model.blocks)):
        block = run_block(weights, i, x)
        if removal == "mask":
            gone = torch.full((x.shape[1],), -torch.inf, dtype=torch.float64)
            gone[there] = 0.0
            attention = torch.softmax(block.O_ + gone, dim=-1).nan_to_num(0.0)  # where nothing can be attended to
            block = run_block(weights, i, x, attention=attention)
        x = block.X_mid + block.F
    return float(read_out(weights, x, prefix)[0].softmax(1)[0, c])


def replica(pass_: Pass, classes: Classes, cell: int = 2, removal: str = "tokens") -> Tensor:
    """Mean effect of a cell over all orders, shared equally among its patches.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        cell: Side of a cell, in patches.
        removal: "tokens", "mask" or "fill".

    Returns:
        Relevance of patches, shape b, S.
    """
    gh, gw = pass_.grid
    cells: dict[tuple[int, int], list[int]] = {}
    for j in range(gh * gw):
        cells.setdefault((j // gw // cell, j % gw // cell), []).append(j)
    players = list(cells.values())
    P = len(players)
    maps = []
    for image, c in enumerate(classes):
        value = {}
        for size in range(P + 1):
            for coalition in combinations(range(P), size):
                patches = {j for player in coalition for j in players[player]}
                value[coalition] = score_of_patches(pass_, image, int(c), patches, removal)
        relevance = torch.zeros(gh * gw, dtype=torch.float64)
        for i in range(P):
            total = 0.0
            for coalition, before in value.items():
                if i not in coalition:
                    s = len(coalition)
                    share = factorial(s) * factorial(P - s - 1) / factorial(P)
                    total += share * (value[tuple(sorted((*coalition, i)))] - before)
            relevance[players[i]] = total / len(players[i])
        maps.append(relevance)
    return torch.stack(maps)
