"""Transformer Input Sampling: clustered activations choose tokens, which are weighted by the class probability."""

import torch
from torch import Tensor

from .shapley import score_of_patches
from .vit import Classes, Pass


def clustered(points: list[Tensor], clusters: int, seed: int) -> list[Tensor]:
    """Centres by Lloyd's algorithm, one point at a time."""
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    centres = [points[int(i)] for i in order[:clusters]]
    for _ in range(100):
        members: list[list[Tensor]] = [[] for _ in centres]
        for point in points:
            distances = [float(((point - centre) ** 2).sum()) for centre in centres]
            members[distances.index(min(distances))].append(point)
        moved = [
            torch.stack(own).mean(0) if own else centre for own, centre in zip(members, centres, strict=True)
        ]  # fmt: skip
        change = sum(float(((new - old) ** 2).sum()) for new, old in zip(moved, centres, strict=True))
        centres = moved
        if change <= 1e-4:
            break
    return centres


def replica(pass_: Pass, classes: Classes, masks: int = 10, ratio: float = 0.5, seed: int = 0) -> Tensor:
    """Mean probability over the sets of tokens a patch is in.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        masks: Number of clusters.
        ratio: Share of the patches in a set.
        seed: Seed of the clustering.

    Returns:
        Relevance of patches, shape b, S; 0 for patches in no set.
    """
    S = pass_.grid[0] * pass_.grid[1]
    maps = []
    for image, c in enumerate(classes):
        points = []
        for block in pass_.blocks:
            output = (block.X_mid + block.F)[image].detach()[pass_.prefix :]
            points += [output[:, channel] for channel in range(output.shape[1])]
        total, times = torch.zeros(S, dtype=torch.float64), torch.zeros(S, dtype=torch.float64)
        for centre in clustered(points, masks, seed):
            kept = sorted(range(S), key=lambda j: -float(centre[j]))[: int(ratio * S)]
            score = score_of_patches(pass_, image, int(c), set(kept), "tokens")
            total[kept] += score
            times[kept] += 1
        maps.append(torch.where(times > 0, total / times.clamp(min=1), torch.zeros_like(total)))
    return torch.stack(maps)
