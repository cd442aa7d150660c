"""Maps, masks, batches and slow reference scores shared by the tests of scores."""

from __future__ import annotations

import numpy as np
import torch

from vitrail.models.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitrail.scores.ranks import removed_ranks

SIZE = 12
IMAGENET_PREPROCESS = Preprocess((32, 32), IMAGENET_MEAN, IMAGENET_STD)


def ten_maps(seed=0, size=SIZE):
    """Ten maps: random, tied, on the thresholds, mostly zero, signed, tiny, and four constant or non-finite ones."""
    g = torch.Generator().manual_seed(seed)
    r = torch.rand(10, size, size, generator=g)
    r[1] = (r[1] * 4).round()  # many ties
    r[2] = (r[2] * 10).round() / 10  # exactly on the thresholds
    r[3] = r[3].clamp_min(0.8) - 0.8  # mostly zeros
    r[4] = r[4] * 2 - 1
    r[5] = r[5] * 1e-20
    r[6], r[7], r[8] = 0.0, 3.7, torch.nan
    r[9, 0, 0] = torch.inf
    return r


#: Which of `ten_maps` are constant or not finite.
CONSTANT = [False] * 6 + [True] * 4


def ten_masks(seed=1, size=SIZE, ignored=True):
    """Ten random masks, with some ignored pixels by default."""
    g = torch.Generator().manual_seed(seed)
    masks = (torch.rand(10, size, size, generator=g) < 0.3).long()
    if ignored:
        masks[torch.rand(10, size, size, generator=g) < 0.1] = 255
        masks[0, 0, 0] = -1
    return masks


def image_ids(n):
    return [f"image-{i}" for i in range(n)]


def batch(n=4, size=32, seed=1):
    """Random images, and maps of few distinct values, so that many pixels tie."""
    g = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, size, size, generator=g)
    return images, torch.randint(0, 9, (n, size, size), generator=g).float()


def count_forwards(model):
    """The model, and a list that gets the batch size of each of its forward passes."""
    sizes = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    return model, sizes


def removed_mask(ranks, count, order):
    """Pixels removed once ``count`` are gone, in the shape of the ranks."""
    start, stop = removed_ranks(count, ranks.shape[-1], order)
    return (ranks >= start) & (ranks < stop)


def slow_unit(m):
    m = m.astype(np.float64)
    if not np.isfinite(m).all() or m.max() == m.min():
        return np.zeros_like(m), True
    return (m - m.min()) / (m.max() - m.min()), False


def slow_average_precision(score, positive):
    """Precision at every distinct threshold, times the recall it adds."""
    area, recall = 0.0, 0.0
    for t in sorted(set(score.tolist()), reverse=True):
        selected = score >= t
        now = (selected & positive).sum() / positive.sum()
        area += (now - recall) * (selected & positive).sum() / selected.sum()
        recall = now
    return area


def slow_auroc(score, positive):
    a, b = score[positive][:, None], score[~positive][None]
    return ((a > b) + 0.5 * (a == b)).mean()


def slow_segmentation(maps, masks, threshold_of=lambda i: "mean"):
    """Pixel accuracy and mIoU by a loop over images."""
    correct = labelled = 0
    intersection, union = np.zeros(2), np.zeros(2)
    for i, (m, mask) in enumerate(zip(maps.numpy(), masks.numpy(), strict=True)):
        r, _ = slow_unit(m)
        t = threshold_of(i)
        # Compared in single precision, as the map is stored: 0.1 is not greater than 0.1.
        found = r > r.mean() if t == "mean" else r.astype(np.float32) > np.float32(t)
        valid = ~np.isin(mask, (255, -1))
        correct += (found == (mask == 1))[valid].sum()
        labelled += valid.sum()
        for c in (0, 1):
            p, q = (found == c) & valid, (mask == c) & valid
            intersection[c] += (p & q).sum()
            union[c] += (p | q).sum()
    return correct / labelled, (intersection / union).mean()
