"""Open data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.data.cifar import CIFAR10, CIFAR100
from vitrail.data.funnybirds.bird_folder import FunnyBirds
from vitrail.data.image_grids import ImageGrids
from vitrail.data.image_source import ImageSource
from vitrail.data.imagenet import ImageNet
from vitrail.data.imagenet_segmentation import ImageNetSegmentation
from vitrail.data.mask_folder import MaskFolder
from vitrail.data.movies import Movies
from vitrail.data.sample import Dataset
from vitrail.data.scene_dataset import SceneDataset
from vitrail.data.voc import VOC2012
from vitrail.data.world_pairs import WorldPairs
from vitrail.errors import DataError

__all__ = ["DATASETS", "open_dataset"]

DATASETS: dict[str, Callable[..., Dataset]] = {
    dataset.name: dataset
    for dataset in (
        CIFAR10,
        CIFAR100,
        FunnyBirds,
        ImageGrids,
        ImageNet,
        ImageNetSegmentation,
        ImageSource,
        MaskFolder,
        Movies,
        SceneDataset,
        VOC2012,
        WorldPairs,
    )
}  # fmt: skip
"""Data set classes by name."""

RENDERED = ("scenes", "worlds")
"""Data sets that are rendered, and need no files."""


def open_dataset(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """Open a data set by name.

    Args:
        name: cifar10, cifar100, funnybirds, grids, images, imagenet, imagenet-segmentation, masks, movies, scenes,
            voc2012 or worlds.
        root: Folder, archive or file of the data set, or for ``images`` any address that `open_source` takes; not used
            for scenes and worlds, which are rendered.
        **options: Further arguments of the data set's class, such as ``split``.

    Returns:
        The data set.

    Raises:
        DataError: The name or an option is unknown, or files are missing.

    Example:
        >>> open_dataset("scenes", split="val", count=5)
        SceneDataset(5 samples)
        >>> open_dataset("mnist", ".")
        Traceback (most recent call last):
        ...
        vitrail.errors.DataError: unknown data set 'mnist': use one of cifar10, cifar100, funnybirds, grids,
        imagenet, imagenet-segmentation, images, masks, movies, scenes, voc2012, worlds
    """
    if name not in DATASETS:
        raise DataError(f"unknown data set {name!r}: use one of {', '.join(DATASETS)}")
    dataset_class = DATASETS[name]
    if name in RENDERED:
        if root is not None:
            raise DataError(f"{name} are rendered, not read from {root}: leave out the root")
    elif root is None:
        raise DataError(f"{name} is read from files: pass its folder as root")
    parameters = inspect.signature(dataset_class).parameters
    accepted = [option for option in parameters if option not in ("root", "file", "options")]
    unknown = [option for option in options if option not in accepted]
    if unknown and "options" not in parameters:
        only = f": use {', '.join(accepted)}" if accepted else ": it has no options"
        raise DataError(f"{name} takes no option {unknown[0]!r}{only}")
    if name not in RENDERED:
        return dataset_class(root, **options)
    needed = [option for option in accepted if parameters[option].default is inspect.Parameter.empty]
    missing = [option for option in needed if option not in options]
    if missing:
        raise DataError(f"{name} needs the option {missing[0]!r}")
    return dataset_class(**options)
