"""The grid of tokens whose patches overlap, from where some of them lie in the input.

Tokens of convolutions that overlap, as in sound models, share their pixels or samples with others, so that no entry of
the input belongs to one token alone. Here the gradient of single tokens says where each is centred, and the grid is the
one on which the centres lie at equal distances.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.capture.layout import Area, Layout
from vitrail.capture.signal_axes import SignalAxes
from vitrail.capture.verify import direction, gradients

#: Tokens whose centres are measured, beside the first and the last ones.
SAMPLES = 40
#: The same along one axis, where a line through the centres is all that is needed.
LINE_SAMPLES = 14
#: Groups of tokens that are measured together, by two backward passes each.
GROUPS = 6
#: How near a ratio of gradients must be to the weight of a token.
CLEAR = 0.25
#: Most tokens in front of the patches, and behind them.
ENDS = (8, 2)
#: Largest distance of a centre from its place on the grid, as a share of the distance of two patches.
TOLERANCE = 0.35
#: Largest energy far from a token, as a share of its largest one, at which its ends are seen.
FAINT = 1e-3
#: Share of the measured tokens that must lie on the grid.
AGREEING = 0.75

Array = NDArray[np.float64]


def layout_by_centres(V: Tensor, leaf: Tensor, axes: SignalAxes) -> Layout | None:
    """Prefix, suffix, grid, table and area of tokens, by the centres of some of them; None where they fit no grid.

    Args:
        V: Values of the first attention, shape (1, H, n, dh), in the graph of ``leaf``.
        leaf: What is explained, as the model takes it, one example.
        axes: Its axes.
    """
    n, size = V.shape[-2], axes.size(leaf)
    each = (V * direction(V[:, :, :1])).sum((0, 1, 3))
    line = len(size) == 1
    first, samples = (3, LINE_SAMPLES) if line else (ENDS[0] + 1, SAMPLES)
    index = sorted({*range(min(n, first)), *range(max(0, n - ENDS[1] - 1), n), *_spread(n, samples)})
    # Waveforms are often normalised as a whole, so that tokens are measured one by one.
    groups = len(index) if line else GROUPS
    found = [_energies(each, index[start::groups], leaf, axes) for start in range(min(groups, len(index)))]
    if any(group is None for group in found):
        return None
    by_token = {token: energy for group in found if group is not None for token, energy in group.items()}
    energies = [by_token[token] for token in index]
    totals = np.array([float(energy.sum()) for energy in energies])
    if not totals.max() > 0:
        return None
    patches = totals > 1e-12 * totals.max()
    known = [i for i, one in zip(index, patches, strict=True) if one]
    width = [max(1, round(length / n ** (1 / len(size)))) for length in size]
    there = [energy for energy, one in zip(energies, patches, strict=True) if one]
    centres = np.array([_centre(energy, width) for energy in there])
    best: tuple[float, Layout] | None = None
    for prefix, suffix, grid, order in _hypotheses(n, known[0], n - 1 - known[-1], size):
        fit = _fit(np.array(known), centres, prefix, grid, order)
        if fit is not None and (best is None or fit[0] < 0.5 * best[0]):
            best = fit[0], _layout(prefix, suffix, grid, order, fit[1], size)
    return None if best is None else best[1]


def _spread(n: int, count: int) -> list[int]:
    """Tokens all over the input, the same each time."""
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:count]
    return [int(i) for i in drawn]


def _energies(each: Tensor, tokens: list[int], leaf: Tensor, axes: SignalAxes) -> dict[int, Tensor] | None:
    """Squared gradient of some tokens at each entry of the input, in the shape of a map, by two backward passes.

    The tokens are far apart. Their sum is differentiated, and their sum with weights 1, 2, 3 …: where one token
    dominates, the ratio of the two gradients is its weight. Entries without such a token count for none.
    """
    place = torch.tensor(tokens, device=each.device)
    weights = torch.arange(1, len(tokens) + 1, device=each.device, dtype=each.dtype)
    rows = []
    for weight in (torch.ones_like(weights), weights):
        (gradient,) = gradients((each[place] * weight).sum(), [leaf])
        if gradient is None:
            return None
        rows.append(axes.canvas(gradient.double())[0].cpu())
        if len(tokens) == 1:
            return {tokens[0]: rows[0].square().sum(0)}
    energy = rows[0].square().sum(0)
    ratio = (rows[0] * rows[1]).sum(0) / energy.clamp_min(1e-300)
    owner = ratio.round()
    clear = (ratio - owner).abs() < CLEAR
    return {
        token: torch.where(clear & (owner == i), energy, torch.zeros_like(energy)) for i, token in enumerate(tokens, 1)
    }


def _centre(energy: Tensor, width: list[int]) -> list[float]:
    """The centre of a token along each axis: the middle of what it sees, or the mean place of its energy."""
    found = []
    for axis, reach in enumerate(width):
        line = energy.movedim(axis, 0).reshape(energy.shape[axis], -1).sum(1).numpy()
        peak = int(np.convolve(line, np.ones(reach), "same").argmax())
        middle = _middle(line, peak, reach)
        if middle is None:
            places = np.arange(max(0, peak - 2 * reach), min(len(line), peak + 2 * reach + 1))
            weight = line[places]
            middle = float((places * weight).sum() / weight.sum()) if weight.sum() > 0 else float(peak)
        found.append(middle)
    return found


def _middle(line: Array, peak: int, reach: int) -> float | None:
    """The middle of the entries that a token sees, or None where it sees the whole input about as well.

    The weights of a convolution are larger on one side by chance, which moves the mean of the energy, not the middle.
    Norms over the whole input add a little energy everywhere, which does not count.

    Example:
        >>> _middle(np.array([0.0, 0, 9, 1, 1, 1, 0, 0, 0, 0, 0, 0]), 3, 1)
        3.5
    """
    distance = np.abs(np.arange(len(line)) - peak)
    near = distance <= 4 * reach
    elsewhere = float(line[~near].max()) if not near.all() else 0.0
    if elsewhere > FAINT * float(line.max()):
        return None
    seen = np.flatnonzero(near & (line > max(1e-12 * float(line.max()), 10 * elsewhere)))
    return float(seen[0] + seen[-1]) / 2 if len(seen) else None


def _hypotheses(
    n: int, prefix: int, suffix: int, size: tuple[int, ...]
) -> Iterator[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """Grids that the tokens may form: prefix, suffix, grid along the axes of a map, and axes from slow to fast."""
    if prefix > ENDS[0] or suffix > ENDS[1]:
        return
    for grid in _factors(n - prefix - suffix, len(size)):
        if all(cells <= length for cells, length in zip(grid, size, strict=True)):
            orders = {tuple(a for a in order if grid[a] > 1): order for order in permutations(range(len(size)))}
            for order in orders.values():
                yield prefix, suffix, grid, order


def _factors(count: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All products of some numbers.

    Example:
        >>> list(_factors(4, 2))
        [(1, 4), (2, 2), (4, 1)]
    """
    if parts == 1:
        yield (count,)
        return
    for first in range(1, count + 1):
        if count % first == 0:
            yield from ((first, *rest) for rest in _factors(count // first, parts - 1))


def _cells(tokens: NDArray[np.int64], prefix: int, grid: tuple[int, ...], order: tuple[int, ...]) -> NDArray[np.int64]:
    """The cell of each token along each axis, shape (tokens, axes)."""
    rest, cells = tokens - prefix, np.zeros((len(tokens), len(grid)), np.int64)
    for axis in reversed(order):
        cells[:, axis] = rest % grid[axis]
        rest = rest // grid[axis]
    return cells


def _fit(
    tokens: NDArray[np.int64], centres: Array, prefix: int, grid: tuple[int, ...], order: tuple[int, ...]
) -> tuple[float, list[tuple[float, float]]] | None:
    """Mean distance of the centres from a regular grid, and first centre and pitch along each axis; None if too far."""
    cells = _cells(tokens, prefix, grid, order)
    lines, errors = [], np.zeros(len(tokens))
    for axis, count in enumerate(grid):
        place, centre = cells[:, axis], centres[:, axis]
        if count == 1:
            if float(np.ptp(centre)) > 0 and len(tokens) > 1:
                errors = np.maximum(errors, np.abs(centre - np.median(centre)) / max(1.0, 2 * float(np.median(centre))))
            lines.append((float(np.median(centre)), 0.0))
            continue
        inside = (place > 0) & (place < count - 1)  # patches at the border may be cut off
        if np.ptp(place[inside]) < 1 if inside.any() else True:
            inside = np.ones(len(place), bool)
        if np.ptp(place[inside]) < 1:
            return None
        pitch, first = _robust_line(place[inside].astype(np.float64), centre[inside])
        if not pitch >= 0.5:
            return None
        errors = np.maximum(errors, np.abs(centre - first - pitch * place) / pitch)
        lines.append((float(first), float(pitch)))
    if float((errors < TOLERANCE).mean()) < AGREEING:
        return None
    return float(np.median(errors)) + 1e-9, lines


def _robust_line(place: Array, centre: Array) -> tuple[float, float]:
    """Slope and intercept of a line through most of the points, whatever the others are.

    Example:
        >>> _robust_line(np.arange(5.0), np.array([1.0, 3.0, 5.0, 70.0, 9.0]))
        (2.0, 1.0)
    """
    first, second = np.triu_indices(len(place), 1)
    apart = place[second] != place[first]
    first, second = first[apart], second[apart]
    slope = float(np.median((centre[second] - centre[first]) / (place[second] - place[first])))
    rest = centre - slope * place
    start = float(np.median(rest))
    near = np.abs(rest - start) <= 0.25 * abs(slope) + 1e-9
    if near.sum() > 2 and np.ptp(place[near]) > 0:
        slope, start = (float(round(value, 9)) for value in np.polyfit(place[near], centre[near], 1))
    return slope, start


def _stride(pitch: float) -> float:
    """The distance of patches; strides of convolutions are whole numbers."""
    return round(pitch) if abs(pitch - round(pitch)) < 0.1 else pitch


def _layout(
    prefix: int,
    suffix: int,
    grid: tuple[int, ...],
    order: tuple[int, ...],
    lines: list[tuple[float, float]],
    size: tuple[int, ...],
) -> Layout:
    places = np.arange(prefix, prefix + prod(grid)).reshape([grid[a] for a in order])
    table = tuple(int(i) for i in places.transpose([order.index(a) for a in range(len(grid))]).reshape(-1))
    regular = table == tuple(range(prefix, prefix + prod(grid)))
    start, extent = [], []
    for (first, pitch), count, length in zip(lines, grid, size, strict=True):
        whole = count == 1
        start.append(0 if whole else round(first + 0.5 - pitch / 2))
        extent.append(length if whole else max(1, round(_stride(pitch) * count)))
    area = Area(tuple(start), tuple(extent))
    covers = area == Area((0,) * len(size), size)
    return Layout(prefix, grid, None, suffix, None if regular else table, None if covers else area)
