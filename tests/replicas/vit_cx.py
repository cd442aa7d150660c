"""ViT-CX: clustered feature maps as masks, scored by a debiased causal impact, corrected for coverage."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .rise import probability, random_masks
from .scorecam import feature_maps, to_unit_range
from .vit import Classes, Pass

CELLS, KEEP = 8, 0.5


def cosine_distances(masks: Tensor) -> Tensor:
    """One minus the cosine between every two masks, shape k, height, width; shape k, k."""
    k = masks.shape[0]
    distances = torch.zeros(k, k, dtype=torch.float64)
    for i in range(k):
        for j in range(i + 1, k):
            cosine = (masks[i] * masks[j]).sum() / (masks[i].norm() * masks[j].norm())
            distances[i, j] = distances[j, i] = 1 - cosine
    return distances


def clusters_of(distances: Tensor, delta: float, linkage: str = "complete") -> list[list[int]]:
    """Again and again join the two clusters that are nearest: by their farthest members in complete linkage.

    Args:
        distances: Shape k, k.
        delta: Joining ends when the nearest two clusters are this far apart or farther.
        linkage: "complete"; "single", by their nearest members; "average", by the mean over pairs of members.

    Returns:
        The members of each cluster, in rising order; clusters in the order of their first members.
    """
    clusters = [[i] for i in range(distances.shape[0])]
    if linkage != "complete":
        return _clusters_by_pairs(distances, delta, {"single": torch.min, "average": torch.mean}[linkage])
    apart = distances.clone()  # between clusters: distance of their farthest members
    apart.fill_diagonal_(float("inf"))
    while len(clusters) > 1:
        nearest = int(apart.argmin())
        i, j = sorted(divmod(nearest, len(clusters)))
        if apart[i, j] >= delta:
            break
        clusters[i] = sorted(clusters[i] + clusters[j])
        farther = torch.maximum(apart[i], apart[j])
        apart[i], apart[:, i] = farther, farther
        apart[i, i] = float("inf")
        del clusters[j]
        kept = [index for index in range(apart.shape[0]) if index != j]
        apart = apart[kept][:, kept]
    return sorted(clusters)


def _clusters_by_pairs(distances: Tensor, delta: float, reduce: Callable[[Tensor], Tensor]) -> list[list[int]]:
    """The same with the distance of two clusters computed anew from all pairs of their members."""
    clusters = [[i] for i in range(distances.shape[0])]
    while len(clusters) > 1:
        pairs = [(i, j) for i in range(len(clusters)) for j in range(i + 1, len(clusters))]
        apart = [float(reduce(distances[clusters[i]][:, clusters[j]])) for i, j in pairs]
        nearest = min(range(len(pairs)), key=apart.__getitem__)
        if apart[nearest] >= delta:
            break
        i, j = pairs[nearest]
        clusters[i] = sorted(clusters[i] + clusters.pop(j))
    return sorted(clusters)


@dataclass(frozen=True)
class Choice:
    """What the paper's text and the authors' program do differently, and the linkage."""

    features: str
    cluster: str
    noise: str
    linkage: str = "complete"


MODES = {"released": Choice("norm1", "sum", "per_mask"), "paper": Choice("attention", "mean", "shared")}


def masks_of(
    pass_: Pass, image: int, choice: Choice, delta: float, variant: int | None, n_random: int, seed: int
) -> Tensor:
    """The masks of one image, shape K, height, width."""
    height, width = pass_.images.shape[-2:]
    if variant == 2:
        return random_masks(n_random, height, width, CELLS, KEEP, seed)
    block = pass_.blocks[-1]
    # Output of the attention module: heads side by side, projected; LayerScale and skip come later.
    added = torch.cat(list(block.Z[image]), dim=-1) @ block.Wo + block.bo
    tokens = {
        "norm1": block.LN1[image],
        "attention": added,
        "skip": block.X[image] + (added if block.gamma1 is None else block.gamma1 * added),
        "block": block.X_mid[image] + block.F[image],
    }[choice.features]
    single = torch.stack([to_unit_range(one) for one in feature_maps(pass_, tokens)])
    if variant == 1:
        return single
    masks = []
    for members in clusters_of(cosine_distances(single), delta, choice.linkage):
        total = torch.zeros(height, width, dtype=torch.float64)
        for member in members:
            total = total + single[member]
        masks.append(to_unit_range(total) if choice.cluster == "sum" else total / len(members))
    return torch.stack(masks)


def causal_scores(
    pass_: Pass, image: int, c: int, masks: Tensor, noise: str, sigma: float, generator: torch.Generator
) -> Tensor:
    """Debiased causal impact of every mask, shape K: what the noise does to the whole image is taken out again."""
    pixels = pass_.images[image].detach()
    if noise == "shared":
        shared = (torch.randn(*pixels.shape, generator=generator) * sigma).double()
        noises = [shared] * len(masks)
    else:
        noises = [(torch.randn(*pixels.shape, generator=generator) * sigma).double() for _ in masks]
    epsilons = torch.stack([(1 - mask) * noise for mask, noise in zip(masks, noises, strict=True)])
    masked = probability(pass_, pixels * masks[:, None] + epsilons, c)
    noisy = probability(pass_, pixels + epsilons, c)
    return masked - noisy + probability(pass_, pixels[None], c)[0]


def aggregate(scores: Tensor, masks: Tensor, mode: str, coverage: bool) -> Tensor:
    """Join masks, shape K, height, width, by their scores, shape K, into one map, shape height, width."""
    K = len(masks)
    total, covered = torch.zeros_like(masks[0]), torch.zeros_like(masks[0])
    for score, mask in zip(scores, masks, strict=True):
        total = total + score * mask
        covered = covered + mask
    if not coverage:
        return total
    divisor = covered / K if mode == "paper" else covered * K
    return torch.where(covered > 0, total / divisor, torch.zeros_like(total))


def replica(
    pass_: Pass,
    classes: Classes,
    mode: str = "released",
    delta: float = 0.1,
    sigma: float = 0.1,
    seed: int = 0,
    variant: int | None = None,
    draws: int = 1,
    n_random: int = 5000,
    **changes: str,
) -> tuple[Tensor, list[int]]:
    """ViT-CX as its authors' program computes it, or as the paper writes it.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        mode: "released": channels of the last block's first layer norm, cluster sums brought to 0..1, new noise for
            every mask. "paper": channels of the last attention module's output, cluster means, one noise for all
            masks, and a map larger by the square of the number of masks.
        delta: Cosine distance at which clusters are no longer joined.
        sigma: Standard deviation of the noise, in the normalised space of the input.
        seed: Seed of the noise, fresh for every image, and of the random masks of variant 2.
        variant: None, or the number of an ablation. 1: no clustering. 2: random masks. 3: plain probability as
            score. 4: no coverage correction. 5: both 3 and 4.
        draws: Number of noise draws whose maps are averaged; one generator gives them one after the other.
        n_random: Number of masks in variant 2.
        **changes: Any of ``features``, ``cluster``, ``noise`` and ``linkage`` that is not as ``mode`` says.

    Returns:
        Pixel relevance, shape b, height, width, and the number of masks of each image.
    """
    if variant not in (None, 1, 2, 3, 4, 5):
        raise ValueError(f"unknown variant {variant!r}")
    maps, counts = [], []
    choice = replace(MODES[mode], **changes)
    for image, c in enumerate(classes):
        masks = masks_of(pass_, image, choice, delta, variant, n_random, seed)
        generator = torch.Generator().manual_seed(seed)
        total = torch.zeros_like(masks[0])
        for _ in range(draws):
            if variant in (3, 5):
                scores = probability(pass_, pass_.images[image].detach() * masks[:, None], int(c))
            else:
                scores = causal_scores(pass_, image, int(c), masks, choice.noise, sigma, generator)
            total = total + aggregate(scores, masks, mode, coverage=variant not in (4, 5))
        maps.append(total / draws)
        counts.append(len(masks))
    return torch.stack(maps), counts
