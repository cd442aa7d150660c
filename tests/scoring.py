"""Maps, masks and slow scores that tests of scores share."""

from __future__ import annotations

import numpy as np
import torch

SIZE = 12


def _maps(seed=0, size=SIZE):
    """Ten maps: smooth, tied, with values on the thresholds, signed, tiny, and four that say nothing."""
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


def _masks(seed=1, size=SIZE, ignored=True):
    g = torch.Generator().manual_seed(seed)
    masks = (torch.rand(10, size, size, generator=g) < 0.3).long()
    if ignored:
        masks[torch.rand(10, size, size, generator=g) < 0.1] = 255
        masks[0, 0, 0] = -1
    return masks


DULL = [False] * 6 + [True] * 4


def _slow_unit(m):
    m = m.astype(np.float64)
    if not np.isfinite(m).all() or m.max() == m.min():
        return np.zeros_like(m), True
    return (m - m.min()) / (m.max() - m.min()), False


def _slow_ap(score, positive):
    """Precision at every distinct threshold, times the recall it adds."""
    area, recall = 0.0, 0.0
    for t in sorted(set(score.tolist()), reverse=True):
        chosen = score >= t
        now = (chosen & positive).sum() / positive.sum()
        area += (now - recall) * (chosen & positive).sum() / chosen.sum()
        recall = now
    return area


def _slow_auroc(score, positive):
    a, b = score[positive][:, None], score[~positive][None]
    return ((a > b) + 0.5 * (a == b)).mean()


def _slow_segmentation(maps, masks, choose=lambda i: "mean"):
    correct = labelled = 0
    inter, union = np.zeros(2), np.zeros(2)
    for i, (m, mask) in enumerate(zip(maps.numpy(), masks.numpy(), strict=True)):
        r, _ = _slow_unit(m)
        t = choose(i)
        # Comparing as the map is stored, in single precision: 0.1 is not greater than 0.1.
        found = r > r.mean() if t == "mean" else r.astype(np.float32) > np.float32(t)
        ok = ~np.isin(mask, (255, -1))
        correct += (found == (mask == 1))[ok].sum()
        labelled += ok.sum()
        for c in (0, 1):
            p, q = (found == c) & ok, (mask == c) & ok
            inter[c] += (p & q).sum()
            union[c] += (p | q).sum()
    return correct / labelled, (inter / union).mean()


def _ids(n):
    return [f"image-{i}" for i in range(n)]
