"""Pointing: does the map's highest point, and its relevance as a whole, lie on the object?

No threshold is needed and no outline: a box will do. All scores take the object as a mask; `box_masks` paints boxes.
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
from vitrail.scores.segmentation import IGNORE, auroc, settle
from vitrail.scores.statistics import Tally

Ties = Literal["expected", "first", "any"]
#: Tolerances in pixels: none, and that of the first pointing game.
TOLERANCES = (0, 15)


def box_masks(boxes: Sequence[ArrayLike], size: tuple[int, int], scale: Sequence[tuple[float, float]] = ()) -> Tensor:
    """The boxes of each image as one mask: a pixel is inside if its centre is inside any box.

    Args:
        boxes: For each image its boxes, shape (n, 4): x0, y0, x1, y1 with the ends left out. (Files that count pixels
            from 1 and include the ends, as VOC's do, need 1 taken off x0 and y0.)
        size: Height and width of the masks.
        scale: For each image the factors for x and y from the picture the boxes are for to the mask, if they differ.

    Returns:
        Shape (B, height, width), bool; all False where no pixel is inside a box.

    Example:
        >>> box_masks([[[1, 0, 3, 1]], []], (2, 4)).int()
        tensor([[[0, 1, 1, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]], dtype=torch.int32)
    """
    if scale and len(scale) != len(boxes):
        raise InputError(f"{len(boxes)} images need as many factors, not {len(scale)}")
    y, x = (np.arange(n) + 0.5 for n in size)
    masks = np.zeros((len(boxes), *size), dtype=bool)
    for b, some in enumerate(boxes):
        fx, fy = scale[b] if scale else (1.0, 1.0)
        for x0, y0, x1, y1 in np.asarray(some, dtype=np.float64).reshape(-1, 4) * [fx, fy, fx, fy]:
            masks[b] |= ((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1))
    return torch.from_numpy(masks)


def hits(maps: Tensor, masks: Tensor, tolerance: float = 0, ties: Ties = "expected") -> Tensor:
    """Whether the highest point of each map lies in the mask, or nearer to it than the tolerance.

    Args:
        maps: Finite maps, shape (B, height, width).
        masks: The object, shape (B, height, width), bool.
        tolerance: Distance in pixels below which a miss still is a hit.
        ties: Of several highest points, "expected" gives the share that hits, which is what a fair draw among them
            would give on average; "first" takes the first in reading order; "any" is content with one.

    Returns:
        From 0 to 1, shape (B,), float64; NaN where the mask is empty.

    Example:
        >>> maps, mask = torch.tensor([[[0.0, 2.0, 2.0]]]), torch.tensor([[[True, True, False]]])
        >>> hits(maps, mask).item(), hits(maps, mask, ties="first").item(), hits(maps, mask, tolerance=2).item()
        (0.5, 1.0, 1.0)
    """
    top = (maps == maps.amax((1, 2), keepdim=True)).flatten(1)
    near = _near(masks, tolerance).flatten(1)
    if ties == "expected":
        share = (top & near).sum(1).double() / top.sum(1)
    elif ties == "first":
        share = near.gather(1, top.int().argmax(1, keepdim=True))[:, 0].double()
    elif ties == "any":
        share = (top & near).any(1).double()
    else:
        raise OptionError(f"ties={ties!r} is not 'expected', 'first' or 'any'")
    return share.where(masks.flatten(1).any(1), torch.nan)


def energy(maps: Tensor, masks: Tensor, valid: Tensor | None = None) -> Tensor:
    """Share of the positive relevance that lies inside: Σ_inside S⁺ / Σ S⁺.

    Args:
        maps: Finite maps, shape (B, height, width); negative relevance counts as none.
        masks: The object, shape (B, height, width), bool.
        valid: Pixels that count, the same shape; all by default.

    Returns:
        Shape (B,), float64; 0 for maps without positive relevance, NaN where the mask is empty.

    Example:
        >>> energy(torch.tensor([[[1.0, 2.0, -5.0, 1.0]]]), torch.tensor([[[True, True, False, False]]])).item()
        0.75
    """
    positive = maps.double().clamp_min(0) * (1 if valid is None else valid)
    total = positive.sum((1, 2))
    share = (positive * masks).sum((1, 2)) / total.where(total > 0, 1.0)
    return share.where(masks.flatten(1).any(1), torch.nan)


def rank_accuracy(maps: Tensor, masks: Tensor, valid: Tensor | None = None) -> Tensor:
    """Share of the object among the k highest pixels, k being the object's own size.

    Pixels that tie at the k-th place share the places left among them evenly.

    Args:
        maps: Finite maps, shape (B, height, width).
        masks: The object, shape (B, height, width), bool.
        valid: Pixels that count, the same shape; all by default.

    Returns:
        Shape (B,), float64; NaN where the mask is empty.

    Example:
        >>> rank_accuracy(torch.tensor([[[3.0, 1.0, 1.0, 0.0]]]), torch.tensor([[[True, True, False, False]]])).item()
        0.75
    """
    values, inside = maps.double().flatten(1), masks.flatten(1)
    values = values if valid is None else values.where(valid.flatten(1), -torch.inf)
    inside = inside if valid is None else inside & valid.flatten(1)
    k = inside.sum(1)
    cut = values.sort(descending=True).values.gather(1, (k - 1).clamp_min(0)[:, None])
    above, level = values > cut, values == cut
    places = (k - above.sum(1)).double() / level.sum(1)  # of each pixel that ties at the cut
    found = (above & inside).sum(1) + places * (level & inside).sum(1)
    return (found / k).where(k > 0, torch.nan)


def pointing(
    maps: Tensor,
    masks: Tensor,
    tolerances: Sequence[float] = TOLERANCES,
    ties: Ties = "expected",
    ignore: Sequence[int] = IGNORE,
) -> dict[str, Tensor]:
    """All scores of pointing, for each image.

    Args:
        maps: One map an image, shape (B, height, width), on any scale, signed or not. Maps that are constant or not
            finite are taken as zeros: all their pixels tie.
        masks: Labels or truth values, shape (B, height, width): anything but 0 is the object.
        tolerances: Distances for the pointing game, in pixels.
        ties: See `hits`.
        ignore: Labels of pixels that count neither as inside nor as outside.

    Returns:
        ``hit@…`` and, for comparison, ``centre@…`` for a map that always points at the middle; ``energy``, also known
        as relevance mass accuracy; ``rank``; ``auroc``; ``area``, the object's share of the picture, which is what a
        map without knowledge gets; ``flat``. Undefined where the object is empty: NaN.

    Example:
        >>> found = pointing(torch.eye(4)[None], torch.eye(4)[None] > 0)
        >>> [found[name].item() for name in ("hit@0", "energy", "rank", "auroc", "area")]
        [1.0, 1.0, 1.0, 1.0, 0.25]
    """
    if maps.shape != masks.shape or maps.dim() != 3:
        raise InputError(f"maps {tuple(maps.shape)} and masks {tuple(masks.shape)} must be (images, height, width)")
    wide, dull = settle(maps)
    masks = masks.to(wide.device)
    valid = ~torch.isin(masks.long(), torch.tensor(list(ignore), device=masks.device))
    inside = (masks != 0) & valid
    area = inside.sum((1, 2)).double() / valid.sum((1, 2))
    middle = _middle(wide)
    return {
        **{f"hit@{t:g}": hits(wide, inside, t, ties) for t in tolerances},
        **{f"centre@{t:g}": hits(middle, inside, t) for t in tolerances},
        "energy": energy(wide, inside, valid),
        "rank": rank_accuracy(wide, inside, valid),
        "auroc": auroc(wide, inside, valid),
        "area": area.where(area > 0, torch.nan),
        "flat": dull[:, 0, 0],
    }


@dataclass
class Pointing(Tally):
    """Collects what `pointing` returns.

    For the pointing game of the first papers, with one test for each class of an image, give every pair an id of its
    own and take ``mean("hit@15", groups)`` with the class of each id, which is the mean over classes.

    Example:
        >>> tally = Pointing()
        >>> tally.add(["a", "b"], pointing(torch.eye(4).repeat(2, 1, 1), torch.zeros(2, 4, 4).index_fill(0,
        ...     torch.tensor(0), 1.0)))
        >>> tally.summary()["images"], tally.summary()["undefined"], tally.summary()["hit@0"]
        (2, 1, 1.0)
    """

    def summary(self) -> dict[str, Any]:
        """Means over images with an object, and the number of those without."""
        means = super().summary()
        return {"images": means.pop("images"), "undefined": int(np.isnan(self.column("area")).sum()), **means}


def _near(masks: Tensor, tolerance: float) -> Tensor:
    """Pixels at a distance of less than the tolerance from the mask, or in it."""
    reach = int(np.ceil(tolerance)) - 1
    if reach < 1:
        return masks
    # A disc is a pile of lines: whether the mask comes into each is read off running sums.
    height, width = masks.shape[1:]
    sums, x = F.pad(masks.int().cumsum(2), (1, 0)), torch.arange(width, device=masks.device)
    near = torch.zeros_like(masks)
    for down in range(min(reach, height - 1) + 1):
        across = int(np.ceil(np.sqrt(tolerance**2 - down**2))) - 1
        met = sums[..., (x + across + 1).clamp_max(width)] > sums[..., (x - across).clamp_min(0)]
        near[:, down:] |= met[:, : height - down]
        near[:, : height - down] |= met[:, down:]
    return near


def _middle(like: Tensor) -> Tensor:
    """A map that is highest at the middle of the picture, where two or four pixels may tie."""
    height, width = like.shape[1:]
    y = torch.arange(height, device=like.device) * 2 - (height - 1)
    x = torch.arange(width, device=like.device) * 2 - (width - 1)
    return -(y[:, None] ** 2 + x**2).double().expand(like.shape)
