"""Images to train on: a data set by name, a folder of image files, or a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data import DATASETS, open_dataset
from vitrail.errors import DataError
from vitrail.models.loaded import Transform
from vitrail.models.preprocess import open_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
#: Scenes rendered for ``--data scenes``, every fourth of them a pair of objects.
SCENES = 4000


@dataclass(frozen=True)
class TrainingImages:
    """Images that are read in batches.

    Attributes:
        count: Number of images.
        read: From indices to normalised images, shape (b, channels, height, width).
        description: What the images are, for the card.
    """

    count: int
    read: Callable[[Sequence[int]], Tensor]
    description: str

    def __post_init__(self) -> None:
        if self.count < 1:
            raise DataError(f"there is no image to train on: {self.description}")

    def batch(self, size: int, step: int, seed: int) -> Tensor:
        """The images of a training step: each image once in an epoch, in an order that depends on the seed.

        Example:
            >>> images = TrainingImages(4, lambda rows: torch.tensor(rows), "numbers")
            >>> torch.cat([images.batch(2, step, 0) for step in (0, 1)]).sort().values
            tensor([0, 1, 2, 3])
        """
        size = min(size, self.count)
        steps = self.count // size
        order = _epoch_order(self.count, seed, step // steps)
        first = step % steps * size
        return self.read(order[first : first + size])


@lru_cache(maxsize=2)
def _epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed((seed << 20) + epoch)
    return torch.randperm(count, generator=generator).tolist()


def open_training_images(data: str, preprocess: Transform, limit: int | None = None) -> TrainingImages:
    """Open what ``--data`` names.

    Args:
        data: "scenes", ``NAME=PATH`` for a data set of `vitrail.data.DATASETS`, or a folder of image files, which is
            searched with its subfolders.
        preprocess: From an image to the model's input.
        limit: Use only so many images, evenly spread.

    Raises:
        DataError: The folder, the data set or its training split does not exist, or has no images.

    Example:
        >>> from vitrail.models.preprocess import Preprocess
        >>> images = open_training_images("scenes", Preprocess((128, 128)), limit=8)
        >>> images.count, images.batch(2, 0, 0).shape
        (8, torch.Size([2, 3, 128, 128]))
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit} leaves no image to train on: pass at least 1")
    name, equals, root = data.partition("=")
    if data == "scenes":
        return _scenes(preprocess, limit)
    if equals and name in DATASETS:
        return _dataset(name, root, preprocess, limit)
    folder = Path(data)
    if not folder.is_dir():
        raise DataError(
            f"no training data at {data!r}: pass a folder of images, 'scenes', or NAME=PATH with one of "
            f"{', '.join(sorted(DATASETS))}"
        )
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(f"{folder} holds no image files ({', '.join(SUFFIXES)}): pass a folder with training images")
    paths = [files[i] for i in _spread(len(files), limit)]
    return TrainingImages(
        len(paths),
        lambda rows: torch.stack([preprocess(open_image(paths[i])) for i in rows]),
        f"{len(paths):,} image files of the folder {folder.name}",
    )


def _scenes(preprocess: Transform, limit: int | None) -> TrainingImages:
    count = min(limit or SCENES, SCENES)
    pairs, single = (open_dataset("scenes", split="train", count=count, pairs=paired) for paired in (True, False))

    def read(rows: Sequence[int]) -> Tensor:
        samples = [(pairs if i % 4 == 0 else single)[i] for i in rows]
        return torch.stack([preprocess(sample.image) for sample in samples if sample.image is not None])

    return TrainingImages(count, read, f"{count:,} scenes of the train split, every fourth a pair of objects")


def _dataset(name: str, root: str, preprocess: Transform, limit: int | None) -> TrainingImages:
    try:
        dataset = open_dataset(name, root, split="train")
    except DataError as error:
        if "takes no option 'split'" not in str(error):
            raise
        dataset = open_dataset(name, root)
    if dataset[0].image is None:
        raise DataError(f"{name} has no images: an explainer of patches is trained on images")

    def read(rows: Sequence[int]) -> Tensor:
        chosen = (dataset[indices[i]].image for i in rows)
        return torch.stack([preprocess(image) for image in chosen if image is not None])

    indices = _spread(len(dataset), limit)
    return TrainingImages(len(indices), read, f"{len(indices):,} images of {name}")


def _spread(count: int, limit: int | None) -> list[int]:
    """Indices of at most ``limit`` samples, evenly spread, because many data sets are ordered by class."""
    chosen = min(limit or count, count)
    return [i * count // chosen for i in range(chosen)]
