"""Pointing scores: the pointing game, the energy-based pointing game, relevance rank accuracy and AUROC.

No threshold is needed, and boxes are enough. An image with several boxes is scored in one of two ways. `score_pointing`
takes the object as a mask, and `box_masks` makes one mask of all boxes, their union. `score_box_pointing` tests the map
against each box: one test for each pair of map and box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from vitrail.errors import InputError, OptionError
from vitrail.scores.segmentation import IGNORE, auroc, sanitise_maps
from vitrail.scores.statistics import SampleScores

PeakTies = Literal["expected", "first", "any"]
#: Tolerances in pixels: none, and that of the original pointing game.
TOLERANCES = (0, 15)


def box_masks(boxes: Sequence[ArrayLike], size: tuple[int, int], scale: Sequence[tuple[float, float]] = ()) -> Tensor:
    """Convert the boxes of each image to one mask: a pixel is inside if its centre is inside any box.

    Args:
        boxes: For each image its boxes, shape (n, 4): x0, y0, x1, y1, ends exclusive. (Formats that count pixels from 1
            and include the ends, such as VOC, need 1 subtracted from x0 and y0.)
        size: Height and width of the masks.
        scale: For each image the factors for x and y from the size of the boxes to that of the mask, if they differ.

    Returns:
        Shape (B, height, width), bool; all False where no pixel is inside a box.

    Example:
        >>> box_masks([[[1, 0, 3, 1]], []], (2, 4)).int()
        tensor([[[0, 1, 1, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]], dtype=torch.int32)
    """
    if scale and len(scale) != len(boxes):
        raise InputError(f"expected one scale per image, got {len(scale)} for {len(boxes)} images")
    y, x = (np.arange(n) + 0.5 for n in size)
    masks = np.zeros((len(boxes), *size), dtype=bool)
    for b, rectangles in enumerate(boxes):
        fx, fy = scale[b] if scale else (1.0, 1.0)
        for x0, y0, x1, y1 in np.asarray(rectangles, dtype=np.float64).reshape(-1, 4) * [fx, fy, fx, fy]:
            masks[b] |= ((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1))
    return torch.from_numpy(masks)


def pointing_game(maps: Tensor, masks: Tensor, tolerance: float = 0, ties: PeakTies = "expected") -> Tensor:
    """Pointing game: whether the maximum of each map is inside the mask, or closer to it than the tolerance.

    Args:
        maps: Finite maps, shape (B, height, width).
        masks: The object, shape (B, height, width), bool.
        tolerance: Distance in pixels below which a maximum outside of the mask still counts.
        ties: For several maxima, "expected" gives the share that is inside, the expected value of a random choice;
            "first" takes the first in raster order; "any" needs one inside.

    Returns:
        From 0 to 1, shape (B,), float64; NaN where the mask is empty.

    Example:
        >>> maps, mask = torch.tensor([[[0.0, 2.0, 2.0]]]), torch.tensor([[[True, True, False]]])
        >>> pointing_game(maps, mask).item(), pointing_game(maps, mask, ties="first").item()
        (0.5, 1.0)
        >>> pointing_game(maps, mask, tolerance=2).item()
        1.0
    """
    peaks = (maps == maps.amax((1, 2), keepdim=True)).flatten(1)
    near = _within_tolerance(masks, tolerance).flatten(1)
    if ties == "expected":
        score = (peaks & near).sum(1).double() / peaks.sum(1)
    elif ties == "first":
        score = near.gather(1, peaks.int().argmax(1, keepdim=True))[:, 0].double()
    elif ties == "any":
        score = (peaks & near).any(1).double()
    else:
        raise OptionError(f"unknown tie rule ties={ties!r}: choose 'expected', 'first' or 'any'")
    return score.where(masks.flatten(1).any(1), torch.nan)


def energy_pointing_game(maps: Tensor, masks: Tensor, valid: Tensor | None = None) -> Tensor:
    """Energy-based pointing game: share of the positive relevance inside the mask, Σ_inside S⁺ / Σ S⁺.

    Args:
        maps: Finite maps, shape (B, height, width); negative relevance counts as zero.
        masks: The object, shape (B, height, width), bool.
        valid: Pixels that count, the same shape; all by default.

    Returns:
        Shape (B,), float64; 0 for maps without positive relevance, NaN where the mask is empty.

    Example:
        >>> maps, mask = torch.tensor([[[1.0, 2.0, -5.0, 1.0]]]), torch.tensor([[[True, True, False, False]]])
        >>> energy_pointing_game(maps, mask).item()
        0.75
    """
    positive = maps.double().clamp_min(0) * (1 if valid is None else valid)
    total = positive.sum((1, 2))
    share = (positive * masks).sum((1, 2)) / total.where(total > 0, 1.0)
    return share.where(masks.flatten(1).any(1), torch.nan)


def relevance_rank_accuracy(maps: Tensor, masks: Tensor, valid: Tensor | None = None) -> Tensor:
    """Relevance rank accuracy: share of the k most relevant pixels inside the mask, k being the size of the mask.

    Pixels that tie at the k-th value count in equal fractions, k in all.

    Args:
        maps: Finite maps, shape (B, height, width).
        masks: The object, shape (B, height, width), bool.
        valid: Pixels that count, the same shape; all by default.

    Returns:
        Shape (B,), float64; NaN where the mask is empty.

    Example:
        >>> maps, mask = torch.tensor([[[3.0, 1.0, 1.0, 0.0]]]), torch.tensor([[[True, True, False, False]]])
        >>> relevance_rank_accuracy(maps, mask).item()
        0.75
    """
    values, inside = maps.double().flatten(1), masks.flatten(1)
    values = values if valid is None else values.where(valid.flatten(1), -torch.inf)
    inside = inside if valid is None else inside & valid.flatten(1)
    k = inside.sum(1)
    cut = values.sort(descending=True).values.gather(1, (k - 1).clamp_min(0)[:, None])
    above, level = values > cut, values == cut
    fraction = (k - above.sum(1)).double() / level.sum(1)  # of each pixel that ties at the cut
    inside_mass = (above & inside).sum(1) + fraction * (level & inside).sum(1)
    return (inside_mass / k).where(k > 0, torch.nan)


def score_pointing(
    maps: Tensor,
    masks: Tensor,
    tolerances: Sequence[float] = TOLERANCES,
    ties: PeakTies = "expected",
    ignore: Sequence[int] = IGNORE,
) -> dict[str, Tensor]:
    """Compute all pointing scores of each image.

    Args:
        maps: One map per image, shape (B, height, width), on any scale, signed or not. Maps that are constant or not
            finite count as zeros: all their pixels tie.
        masks: Labels or booleans, shape (B, height, width): every label but 0 is the object.
        tolerances: Tolerances of the pointing game, in pixels.
        ties: See `pointing_game`.
        ignore: Labels of pixels that count neither as inside nor as outside.

    Returns:
        ``hit@…``: `pointing_game` at each tolerance; ``centre@…``: the same for a map that always points at the centre
        of the image; ``energy``: `energy_pointing_game`, also called relevance mass accuracy; ``rank``:
        `relevance_rank_accuracy`; ``auroc``; ``area``: the object's share of the image, the expected ``energy`` and
        ``rank`` of a random map; ``flat``: whether the map is constant or not finite. NaN where the object is empty.

    Example:
        >>> found = score_pointing(torch.eye(4)[None], torch.eye(4)[None] > 0)
        >>> [found[name].item() for name in ("hit@0", "energy", "rank", "auroc", "area")]
        [1.0, 1.0, 1.0, 1.0, 0.25]
    """
    if maps.shape != masks.shape or maps.dim() != 3:
        raise InputError(
            f"maps and masks must both have shape (images, height, width), got {tuple(maps.shape)} and "
            f"{tuple(masks.shape)}"
        )
    finite, constant = sanitise_maps(maps)
    masks = masks.to(finite.device)
    valid = ~torch.isin(masks.long(), torch.tensor(list(ignore), device=masks.device))
    inside = (masks != 0) & valid
    area = inside.sum((1, 2)).double() / valid.sum((1, 2))
    centre = _centre_map(finite)
    return {
        **{f"hit@{t:g}": pointing_game(finite, inside, t, ties) for t in tolerances},
        **{f"centre@{t:g}": pointing_game(centre, inside, t) for t in tolerances},
        "energy": energy_pointing_game(finite, inside, valid),
        "rank": relevance_rank_accuracy(finite, inside, valid),
        "auroc": auroc(finite, inside, valid),
        "area": area.where(area > 0, torch.nan),
        "flat": constant[:, 0, 0],
    }


def score_box_pointing(
    maps: Tensor, boxes: Sequence[ArrayLike], tolerance: float = 0, ties: PeakTies = "expected"
) -> dict[str, Tensor]:
    """Pointing game of each pair of map and box: whether the maximum of the map is inside the box.

    Args:
        maps: One map per image, shape (B, height, width). Maps that are constant or not finite count as zeros.
        boxes: For each image its boxes in pixels of the map, shape (n, 4); see `box_masks`. Boxes without a pixel do
            not count.
        tolerance: See `pointing_game`.
        ties: See `pointing_game`.

    Returns:
        For each image: ``hits``, the number of its boxes that are hit (a fraction of a box where maxima tie);
        ``boxes``, the number of its boxes; ``hit_share``, their ratio; ``reachable``, the largest number of its boxes
        that share a pixel, which no map without ties can exceed in ``hits``; ``flat``, whether the map is constant or
        not finite. NaN where an image has no box.

    Example:
        >>> found = score_box_pointing(torch.eye(3)[None].cumsum(1), [[[0, 0, 3, 3], [2, 0, 3, 2]]], ties="first")
        >>> found["hits"].item(), found["boxes"].item()
        (1.0, 2.0)
    """
    if maps.dim() != 3 or len(boxes) != len(maps):
        raise InputError(
            "expected maps of shape (images, height, width) and a list of boxes for each image, got "
            f"{tuple(maps.shape)} and {len(boxes)} lists"
        )
    finite, constant = sanitise_maps(maps)
    size = (maps.shape[1], maps.shape[2])
    hits, counts, reachable = (torch.full((len(maps),), torch.nan, dtype=torch.float64) for _ in range(3))
    for image, rectangles in enumerate(boxes):
        rows = np.asarray(rectangles, dtype=np.float64).reshape(-1, 4)
        masks = box_masks([row[None] for row in rows], size).to(finite.device)
        masks = masks[masks.flatten(1).any(1)]
        if len(masks):
            each = pointing_game(finite[image].expand(len(masks), -1, -1), masks, tolerance, ties)
            hits[image], counts[image], reachable[image] = each.sum(), len(masks), masks.sum(0).max()
    return {
        "hits": hits, "boxes": counts, "hit_share": hits / counts, "reachable": reachable,
        "flat": constant[:, 0, 0].cpu(),
    }  # fmt: skip


@dataclass
class BoxPointingScores(SampleScores):
    """Accumulates the results of `score_box_pointing`.

    Example:
        >>> scores = BoxPointingScores()
        >>> scores.add(["a"], score_box_pointing(torch.eye(2)[None], [[[0, 0, 1, 1], [0, 0, 2, 2]]]))
        >>> scores.summary()["pairs"], scores.summary()["accuracy"]
        (2, 0.75)
    """

    def summary(self) -> dict[str, Any]:
        """Accuracy #hits / (#hits + #misses) over all pairs of map and box, its mean over images, and its upper bound.

        A map has one maximum, which can be in several boxes only where they overlap.
        """
        hits, boxes = self.column("hits"), self.column("boxes")
        pairs = np.nansum(boxes)
        return {
            "images": len(self),
            "undefined": int(np.isnan(boxes).sum()),
            "flat": int(self.column("flat").sum()),
            "pairs": int(pairs),
            "accuracy": float(np.nansum(hits) / pairs) if pairs else np.nan,
            "mean_over_images": self.mean("hit_share"),
            "bound": float(np.nansum(self.column("reachable")) / pairs) if pairs else np.nan,
        }


@dataclass
class PointingScores(SampleScores):
    """Accumulates the results of `score_pointing`.

    The original pointing game has one test for each class of an image. For this, give every pair of image and class an
    id of its own and take ``mean("hit@15", groups)`` with the class of each id, which is the mean over classes.

    Example:
        >>> maps, masks = torch.eye(4).repeat(2, 1, 1), torch.stack([torch.ones(4, 4), torch.zeros(4, 4)])
        >>> scores = PointingScores()
        >>> scores.add(["a", "b"], score_pointing(maps, masks))
        >>> scores.summary()["images"], scores.summary()["undefined"], scores.summary()["hit@0"]
        (2, 1, 1.0)
    """

    def summary(self) -> dict[str, Any]:
        """Means over images with an object, and the number of images without one."""
        means = super().summary()
        return {"images": means.pop("images"), "undefined": int(np.isnan(self.column("area")).sum()), **means}


def _within_tolerance(masks: Tensor, tolerance: float) -> Tensor:
    """Dilate masks by all pixels at a distance below the tolerance."""
    radius = int(np.ceil(tolerance)) - 1
    if radius < 1:
        return masks
    # A disc is a stack of horizontal segments. Cumulative sums tell whether the mask has a pixel in each segment.
    height, width = masks.shape[1:]
    sums, x = F.pad(masks.int().cumsum(2), (1, 0)), torch.arange(width, device=masks.device)
    near = torch.zeros_like(masks)
    for down in range(min(radius, height - 1) + 1):
        across = int(np.ceil(np.sqrt(tolerance**2 - down**2))) - 1
        met = sums[..., (x + across + 1).clamp_max(width)] > sums[..., (x - across).clamp_min(0)]
        near[:, down:] |= met[:, : height - down]
        near[:, : height - down] |= met[:, down:]
    return near


def _centre_map(like: Tensor) -> Tensor:
    """Map with its maximum at the centre of the image, where two or four pixels may tie."""
    height, width = like.shape[1:]
    y = torch.arange(height, device=like.device) * 2 - (height - 1)
    x = torch.arange(width, device=like.device) * 2 - (width - 1)
    return -(y[:, None] ** 2 + x**2).double().expand(like.shape)
