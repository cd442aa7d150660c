"""Grad-ECLIP: gradient at the attention's output times values times a loosened similarity of query and key."""

import torch
from torch import Tensor

from .vit import Classes, Pass, gradients_at


def scaled_cosines(query: Tensor, keys: list[Tensor]) -> list[Tensor]:
    """Cosine of a query and each key, shifted and scaled so that the smallest is 0 and the largest is 1."""
    cosines = [torch.dot(query, key) / (query.norm() * key.norm()) for key in keys]
    low, high = min(cosines), max(cosines)
    return [(cosine - low) / (high - low) for cosine in cosines]


def replica(pass_: Pass, classes: Classes, blocks: int = 1, similarity: bool = True, score: str = "logit") -> Tensor:
    """ReLU of the sum over blocks, and over the tokens that the head reads, of Σ_c gradient_c · value_c · similarity.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        blocks: How many of the last blocks are summed.
        similarity: Whether the loosened similarity is a factor.
        score: What is differentiated: "logit", "prob" or "logprob".

    Returns:
        Patch relevance, shape b, S.
    """
    chosen = pass_.blocks[-blocks:]
    gradients = gradients_at([block.Z for block in chosen], pass_, classes, score)
    b, _, n, _ = chosen[0].Z.shape
    maps = torch.zeros(b, n - pass_.prefix, dtype=torch.float64)
    for block, gradient in zip(chosen, gradients, strict=True):
        for image in range(b):
            # One vector a token: the channels of all heads, one head after the other.
            tensors = {"g": gradient, "v": block.V, "q": block.Q, "k": block.K}
            flat = {name: [torch.cat(list(t.detach()[image, :, j])) for j in range(n)] for name, t in tensors.items()}
            for i in range(n):
                if pass_.r[i] == 0:
                    continue
                patches = range(pass_.prefix, n)
                weights = scaled_cosines(flat["q"][i], [flat["k"][j] for j in patches])
                for j, weight in zip(patches, weights, strict=True):
                    product = torch.dot(flat["g"][i], flat["v"][j])
                    maps[image, j - pass_.prefix] += product * (weight if similarity else 1.0)
    return maps.clamp(min=0.0)
