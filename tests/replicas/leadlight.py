"""Leadlight: relevance of patches mixed with itself as spread over patches of similar keys, or by attention."""

import torch
from torch import Tensor

from . import transformer_mm, vtranm
from .raw_attention import head_mean
from .vit import Classes, Pass, gradients_at


def over_max(x: Tensor) -> Tensor:
    """Divide by the largest entry; a map of zeros stays one."""
    return x / x.max() if x.max() > 0 else torch.zeros_like(x)


def last_block(pass_: Pass, classes: Classes, score: str) -> Tensor:
    """What the readout attends to in the last block, weighted by the positive gradient, shape b, S."""
    A = pass_.blocks[-1].A
    dA = gradients_at([A], pass_, classes, score)[0]
    maps = []
    for image in range(A.shape[0]):
        R = torch.zeros(A.shape[-1], dtype=torch.float64)
        for h in range(A.shape[1]):
            for i, share in enumerate(pass_.r):
                R = R + share * (A[image, h, i].detach() * dA[image, h, i].clamp(min=0)) / A.shape[1]
        maps.append(R[pass_.prefix :])
    return torch.stack(maps)


def affinity(pass_: Pass, image: int, power: float) -> Tensor:
    """Positive cosine between the keys of two patches to a power, rows scaled to sum one, shape S, S."""
    count = len(pass_.blocks)
    vectors = []
    for block in pass_.blocks[count // 2 :]:
        keys = block.K[image, :, pass_.prefix :].detach()
        per_block = torch.cat(list(keys), dim=-1)
        vectors.append(per_block / per_block.norm(dim=-1, keepdim=True))
    joined = torch.cat(vectors, dim=-1)
    size = joined.shape[0]
    W = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        for j in range(size):
            cosine = joined[i] @ joined[j] / (joined[i].norm() * joined[j].norm())
            W[i, j] = max(float(cosine), 0.0) ** power
        W[i] = W[i] / W[i].sum()
    return W


def attention(pass_: Pass, image: int) -> Tensor:
    """Mean attention between patches below the last block, without the lower quarter of the blocks, shape S, S."""
    count = len(pass_.blocks)
    before = pass_.blocks[min(count // 4, count - 2) : -1]
    mean = sum(head_mean(block.A[image].detach()) for block in before) / len(before)
    return mean[pass_.prefix :, pass_.prefix :]


def distinction(own: Tensor, against: Tensor, p: float) -> Tensor:
    """Share of relevance for a class over the expected share: of what speaks for it with its probability, or against.

    Args:
        own: Relevance of the patches for the class, shape S.
        against: Relevance from the negative gradient, shape S.
        p: Probability of the class.
    """
    mine, other = own / own.sum(), against / against.sum()
    return torch.stack([a / (p * a + (1 - p) * b) for a, b in zip(mine, other, strict=True)])


def smaller_shares(one: Tensor, other: Tensor) -> Tensor:
    """For every patch the smaller of its shares of two kinds of relevance, shape b, S."""
    rows = []
    for first, second in zip(one, other, strict=True):
        pairs = zip(first / first.sum(), second / second.sum(), strict=True)
        rows.append(torch.stack([min(b, a) for a, b in pairs]))
    return torch.stack(rows)


def replica(
    pass_: Pass,
    classes: Classes,
    of: str = "both",
    power: float | None = 4.0,
    rounds: int = 2,
    mix: float = 0.75,
    score: str = "prob",
    contrast: float = 2.0,
    shift: bool = True,
) -> Tensor:
    """Mix a map and its spread version, each over its maximum, and scale the sum to one.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        of: The map to start from: "vtranm" with lengths, without cosines, "transformer_mm", "last", or "both" for the
            smaller of the shares of relevance by the first two.
        power: Exponent of the cosine between keys; None spreads by attention instead.
        rounds: How often the map is spread.
        mix: Share of the spread map.
        score: What the maps differentiate, "prob" or "logit".
        contrast: Exponent of the comparison with what speaks against the class; 0 for none.
        shift: Subtract the smallest value of the spread map.

    Returns:
        Patch relevance, shape b, S.
    """
    found = {
        "vtranm": lambda of_score: vtranm.replica(pass_, classes, variant="af+l", score=of_score),
        "transformer_mm": lambda of_score: transformer_mm.replica(pass_, classes, score=of_score),
        "last": lambda of_score: last_block(pass_, classes, of_score),
        "both": lambda of_score: smaller_shares(*(found[name](of_score) for name in ("vtranm", "transformer_mm"))),
    }
    starts, opposed = found[of](score), found[of](f"-{score}")
    maps = []
    for image, start in enumerate(starts):
        if contrast:
            p = float(pass_.logits[image].detach().softmax(-1)[int(list(classes)[image])])
            start = start * distinction(start, opposed[image], p) ** contrast  # noqa: PLW2901
        R = over_max(start)
        W = attention(pass_, image) if power is None else affinity(pass_, image, power)
        spread = R
        for _ in range(rounds):
            spread = W @ spread
        spread = spread - spread.min() if shift else spread
        mixed = (1 - mix) * R + mix * over_max(spread)
        maps.append(mixed / mixed.sum() if mixed.sum() > 0 else mixed)
    return torch.stack(maps)
