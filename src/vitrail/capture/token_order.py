"""Confirm on a pass which token each pixel of each image belongs to."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.capture.signal_axes import SignalAxes
from vitrail.capture.verify import direction, gradients

#: A gradient below this share of the largest is none.
SILENT = 1e-16


def order_differs(
    values: Tensor, leaf: Tensor, owners: Tensor, overlapping: bool = False, axes: SignalAxes | None = None
) -> Tensor:
    """Whether the pixels of any image belong to other tokens than known, as one boolean tensor.

    The tokens are differentiated with equal weights, and with weights of their own: at each pixel the second gradient
    must be the first one times the weight of the token that it is known to belong to. Where patches overlap, the
    tokens are weighted with the bits of their index instead, and the stronger gradient decides on each bit. A token
    counts as moved if most of its pixels belong to another one.

    Args:
        values: Values of the first attention, shape (b, H, n, dh), in the graph of ``leaf``.
        leaf: Images, shape (b, channels, height, width), or other inputs on axes.
        owners: Token of each pixel as known, shape (height, width) for images; −1 for pixels of no token.
        overlapping: Whether patches overlap.
        axes: Axes of ``leaf``; None for images.

    Returns:
        True where the order differs, or where the values do not depend on the images.
    """
    n, unknown = values.shape[-2], torch.ones((), dtype=torch.bool, device=leaf.device)
    each = (values * direction(values[:1, :, :1])).sum((1, 3))
    if values.shape[0] != leaf.shape[0] or not each.requires_grad:
        return unknown
    codes = _bits(n, leaf.device) if overlapping else _digits(n, leaf)
    found = [gradients((each * row.to(each)).sum(), [leaf])[0] for row in codes]
    if any(one is None for one in found):
        return unknown
    rows = torch.stack([one.double() for one in found if one is not None])
    rows = rows if axes is None else torch.stack([axes.canvas(row) for row in rows])
    owners = owners.to(leaf.device)
    inside, place = owners >= 0, owners.clamp_min(0)
    if overlapping:
        zero, one = rows.square().sum(2).chunk(2)
        energy = (zero + one).sum(0)
        expected = codes[len(codes) // 2 :].bool()[:, place]  # (bits, height, width)
        other = ((one > zero) != expected[:, None]).any(0)
    else:
        base = rows[0]
        energy = base.square().sum(1)
        weights = codes[1:].double()[:, place]  # (digits, height, width)
        error = (rows[1:] - weights[:, None, None] * base).square().sum(2)
        other = (error > 0.25 * energy * _step(n, leaf) ** 2).any(0)
    silent = energy <= SILENT * energy.amax(tuple(range(1, energy.dim())), keepdim=True)
    counted = inside & ~silent
    sums = torch.stack([counted & other, counted, inside.expand_as(silent)]).double().flatten(2)
    by_token = torch.zeros(*sums.shape[:2], n, dtype=torch.float64, device=leaf.device)
    moved, seen, known = by_token.index_add_(2, place.flatten(), sums)
    other_order: Tensor = ((moved > 0.5 * seen) | ((known > 0) & (seen == 0))).any()
    return other_order


def _base(like: Tensor) -> int:
    """Weights that a precision tells apart."""
    return 32 if like.dtype in (torch.float16, torch.bfloat16) else 1024


def _step(n: int, like: Tensor) -> float:
    return 2.0 / max(1, min(n, _base(like)) - 1)


def _digits(n: int, like: Tensor) -> Tensor:
    """Equal weights, then weights from −1 to 1 by the digits of the tokens' indices, shape (1 + digits, n)."""
    index, rest = torch.arange(n, device=like.device), n
    rows = [torch.ones(n, dtype=torch.float64, device=like.device)]
    while rest > 1:
        rows.append((index % _base(like)).double() * _step(n, like) - 1.0)
        index, rest = index // _base(like), -(-rest // _base(like))
    return torch.stack(rows)


def _bits(n: int, device: torch.device) -> Tensor:
    """The bits of the tokens' indices, inverted and as they are, shape (2 · bits, n)."""
    bits = torch.arange(max(1, (n - 1).bit_length()), device=device)
    ones = (torch.arange(n, device=device)[None] >> bits[:, None] & 1).double()
    return torch.cat([1 - ones, ones])
