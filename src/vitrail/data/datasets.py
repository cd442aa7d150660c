"""Data sets by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.data.cifar import CIFAR10, CIFAR100
from vitrail.data.imagenet import ImageNet
from vitrail.data.imagenet_segmentation import ImageNetSegmentation
from vitrail.data.mask_folder import MaskFolder
from vitrail.data.movies import Movies
from vitrail.data.sample import Dataset
from vitrail.data.scene_set import SceneSet
from vitrail.data.voc import VOC2012
from vitrail.errors import DataError

__all__ = ["DATASETS", "open_dataset"]

DATASETS: dict[str, Callable[..., Dataset]] = {
    kind.name: kind
    for kind in (CIFAR10, CIFAR100, ImageNet, ImageNetSegmentation, MaskFolder, Movies, SceneSet, VOC2012)
}
"""The data sets, by name."""


def open_dataset(name: str, root: str | Path | None = None, **options: Any) -> Dataset:
    """Open a data set by name.

    Args:
        name: cifar10, cifar100, imagenet, imagenet-segmentation, masks, movies, scenes or voc2012.
        root: Where its files are; scenes are drawn and need none.
        **options: What the data set's class takes besides, as ``split``.

    Returns:
        The data set.

    Raises:
        DataError: There is no such data set, an option is not its own, or its files are not there.

    Example:
        >>> open_dataset("scenes", split="val", count=5)
        SceneSet(5 samples)
        >>> open_dataset("mnist", ".")
        Traceback (most recent call last):
        ...
        vitrail.errors.DataError: there is no data set 'mnist': take one of cifar10, cifar100, imagenet,
        imagenet-segmentation, masks, movies, scenes, voc2012
    """
    if name not in DATASETS:
        raise DataError(f"there is no data set {name!r}: take one of {', '.join(DATASETS)}")
    kind = DATASETS[name]
    if kind is SceneSet:
        if root is not None:
            raise DataError("scenes are drawn, not read: leave the root out")
        return SceneSet(**options)
    if root is None:
        raise DataError(f"{name} is read from files: give the folder it is in")
    taken = [option for option in inspect.signature(kind).parameters if option not in ("root", "file")]
    strange = [option for option in options if option not in taken]
    if strange:
        raise DataError(f"{name} takes no option {strange[0]!r}" + (f", only {', '.join(taken)}" if taken else ""))
    return kind(root, **options)
