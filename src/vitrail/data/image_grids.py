"""Grids of n × n images of different classes, for the grid pointing game."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitrail.data.imagenet import ImageNet
from vitrail.data.sample import BaseDataset, Sample
from vitrail.errors import DataError

__all__ = ["ImageGrids", "draw_grids"]

#: Number of grids unless another one is asked for.
COUNT = 200


def draw_grids(labels: ArrayLike, count: int, n: int = 2, seed: int = 0) -> NDArray[np.int64]:
    """Draw the images of grids: every image is used about equally often, and a grid has n² different classes.

    Args:
        labels: Class of each eligible image, shape (N,).
        count: Number of grids.
        n: Cells in a row and in a column.
        seed: Seed of the order.

    Returns:
        Positions in ``labels``, shape (count, n²), the cells row by row.

    Raises:
        DataError: There are fewer than n² classes.

    Example:
        >>> draw_grids([7, 7, 8, 9, 5], 2).shape
        (2, 4)
    """
    classes = np.asarray(labels)
    if len(set(classes.tolist())) < n * n:
        raise DataError(
            f"a grid of {n} × {n} cells needs {n * n} different classes, the {len(classes)} eligible images have "
            f"{len(set(classes.tolist()))}: give more images or lower the confidence that is required"
        )
    generator = np.random.default_rng(seed)
    used = np.zeros(len(classes), dtype=np.int64)
    grids = np.empty((count, n * n), dtype=np.int64)
    for grid in grids:
        # The least used images first, in random order, skipping classes the grid already has.
        order = np.lexsort((generator.random(len(classes)), used))
        _, first = np.unique(classes[order], return_index=True)
        grid[:] = generator.permutation(order[np.sort(first)[: n * n]])
        used[grid] += 1
    return grids


class ImageGrids(BaseDataset):
    """Images of ImageNet joined to grids of n × n cells, each cell of another class.

    The game asks for images that the model classifies with confidence. Which ones these are depends on the model, so a
    file can name them.

    Args:
        root: The folder of `ImageNet`.
        count: Number of grids.
        n: Cells in a row and in a column.
        size: Side of a cell in pixels; images are resized to it without keeping the aspect ratio.
        among: File with the ids of eligible images, one a line; all images by default.
        seed: Seed of the choice of images.

    Raises:
        DataError: There are too few classes, or ids that are not in the data set.
    """

    name = "grids"

    def __init__(
        self,
        root: str | Path,
        count: int = COUNT,
        n: int = 2,
        size: int = 224,
        among: str | Path | None = None,
        seed: int = 0,
    ) -> None:
        if count < 1 or n < 2 or size < 1:
            raise DataError(f"expected count ≥ 1, n ≥ 2 and size ≥ 1, got {count=}, {n=} and {size=}")
        self.images, self.n, self.size = ImageNet(root), n, size
        eligible = list(range(len(self.images)))
        if among is not None:
            position = {name: i for i, name in enumerate(self.images.ids)}
            wanted = Path(among).read_text(encoding="utf-8").split()
            missing = [name for name in wanted if name not in position]
            if missing:
                raise DataError(f"{among} names {missing[0]}, which {self.images.root} does not have: correct the ids")
            eligible = [position[name] for name in wanted]
        labels = [self.images.labels[i] for i in eligible]
        drawn = draw_grids([-1 if label is None else label for label in labels], count, n, seed)
        self.cells = np.asarray(eligible)[drawn]
        super().__init__(f"grid-{n}x{n}-{seed}-{i:05d}" for i in range(count))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names of ImageNet."""
        return self.images.classes

    def _read(self, index: int) -> Sample:
        from PIL import Image

        grid = Image.new("RGB", (self.n * self.size, self.n * self.size))
        labels = []
        for cell, image in enumerate(self.cells[index].tolist()):
            sample = self.images[image]
            assert sample.image is not None and sample.label is not None  # noqa: PT018
            row, column = divmod(cell, self.n)
            resized = sample.image.resize((self.size, self.size), Image.Resampling.BILINEAR)
            grid.paste(resized, (column * self.size, row * self.size))
            labels.append(sample.label)
        return Sample(self.ids[index], grid, labels=tuple(labels))

    def cell_masks(self, index: int) -> dict[int, NDArray[np.uint8]]:
        """The cell of each class as a mask: 1 inside, 0 outside."""
        side, masks = self.n * self.size, {}
        for cell, image in enumerate(self.cells[index].tolist()):
            row, column = divmod(cell, self.n)
            mask = np.zeros((side, side), np.uint8)
            mask[row * self.size : (row + 1) * self.size, column * self.size : (column + 1) * self.size] = 1
            label = self.images.labels[image]
            assert label is not None
            masks[label] = mask
        return masks
