"""RISE: random coarse masks, averaged with the class probability of the masked image as weight."""

import math

import torch
from torch import Tensor

from . import vit
from .record import softmax_rows
from .vit import Classes, Pass


def logits_of(pass_: Pass, images: Tensor, chunk: int = 32) -> Tensor:
    """Logits of other images in the model of a pass, by the slow forward.

    Args:
        pass_: The recorded forward pass.
        images: Pixels, shape k, channels, height, width.
        chunk: How many images go through at a time.

    Returns:
        Logits, shape k, classes.
    """
    with torch.no_grad():
        return torch.cat([vit.run(pass_.model, part).logits for part in images.split(chunk)])


def probability(pass_: Pass, images: Tensor, c: int) -> Tensor:
    """Softmax probability of class c for other images, shape k, channels, height, width; shape k."""
    return softmax_rows(logits_of(pass_, images))[:, c]


def interpolation(size: int, length: int, align_corners: bool = False) -> Tensor:
    """The matrix that stretches a line of numbers by linear interpolation.

    Args:
        size: How many numbers there are.
        length: How many are wanted.
        align_corners: True puts the first and last point on each other; False aligns the borders of the cells, and
            repeats the first and last number beyond their centres.

    Returns:
        Shape length, size; every row sums to 1.
    """
    matrix = torch.zeros(length, size, dtype=torch.float64)
    for i in range(length):
        if align_corners:
            place = i * (size - 1) / (length - 1) if length > 1 else 0.0
        else:
            place = max((i + 0.5) * size / length - 0.5, 0.0)
        low = min(math.floor(place), size - 1)
        high = min(low + 1, size - 1)
        matrix[i, low] += 1 - (place - low)
        matrix[i, high] += place - low
    return matrix


def upsample(maps: Tensor, height: int, width: int, align_corners: bool = False) -> Tensor:
    """Stretch maps, shape ..., rows, columns, to ..., height, width: linearly down, then linearly across."""
    down = interpolation(maps.shape[-2], height, align_corners)
    across = interpolation(maps.shape[-1], width, align_corners)
    return down @ maps.double() @ across.T


def random_masks(count: int, height: int, width: int, cells: int, keep: float, seed: int) -> Tensor:
    """Coarse random grids, stretched and cut out at a random shift of less than one cell.

    Args:
        count: Number of masks.
        height: Height of the image.
        width: Width of the image.
        cells: Cells of the grid along each side.
        keep: Probability that a cell is 1.
        seed: Seed of a fresh generator. It gives all grids first, then all shifts, down before across.

    Returns:
        Masks between 0 and 1, shape count, height, width.
    """
    generator = torch.Generator().manual_seed(seed)
    grids = (torch.rand(count, cells, cells, generator=generator) < keep).float()
    places = torch.rand(count, 2, generator=generator)
    cell_h, cell_w = math.ceil(height / cells), math.ceil(width / cells)
    masks = []
    for i in range(count):
        large = upsample(grids[i], (cells + 1) * cell_h, (cells + 1) * cell_w)
        top = int(torch.floor(places[i, 0] * cell_h))
        left = int(torch.floor(places[i, 1] * cell_w))
        masks.append(large[top : top + height, left : left + width])
    return torch.stack(masks)


def replica(
    pass_: Pass, classes: Classes, masks: int = 4000, cells: int = 8, keep: float = 0.5, seed: int = 0
) -> Tensor:
    """Sum of the masks times the probability under each, over the expected number of masks that show a pixel.

    Args:
        pass_: The recorded forward pass.
        classes: One class per image.
        masks: Number of masks, the same ones for every image.
        cells: Cells of each grid along each side.
        keep: Probability that a cell is shown.
        seed: Seed of the masks.

    Returns:
        Pixel relevance, shape b, height, width.
    """
    height, width = pass_.images.shape[-2:]
    drawn = random_masks(masks, height, width, cells, keep, seed)
    maps = []
    for image, c in enumerate(classes):
        total = torch.zeros(height, width, dtype=torch.float64)
        scores = probability(pass_, pass_.images[image].detach() * drawn[:, None], int(c))
        for score, mask in zip(scores, drawn, strict=True):
            total = total + score * mask
        maps.append(total / (masks * keep))
    return torch.stack(maps)
