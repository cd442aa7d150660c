"""Mask folders: your own images with a mask for each and a table of classes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from vitrail.data.image_files import read_mask, read_rgb
from vitrail.data.sample import BaseDataset, Sample
from vitrail.errors import DataError

__all__ = ["MaskFolder"]

SUFFIXES = (".jpg", ".jpeg", ".png")
LABEL_COLUMNS = ("imagenet_class", "label", "class")


class MaskFolder(BaseDataset):
    """Your own images with masks: ``images/x.jpg``, ``masks/x.png``, and ``labels.csv``.

    In a mask, 1 is the object, 0 is the background and 255 is ignored. The table has the column ``file`` and one of
    ``imagenet_class`` (an index of ILSVRC2012), ``label`` or ``class`` (any index); without a table the samples have no
    labels. Files whose names start with a dot are skipped.

    Args:
        root: The folder above ``images`` and ``masks``.

    Raises:
        DataError: Images, masks and table do not match.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> with TemporaryDirectory() as root:
        ...     for part, mode in (("images", "RGB"), ("masks", "L")):
        ...         Path(root, part).mkdir()
        ...         Image.new(mode, (4, 3)).save(Path(root, part, "x.png"))
        ...     sample = MaskFolder(root)[0]
        >>> sample.id, sample.image.size, sample.mask.shape, sample.label
        ('x', (4, 3), (3, 4), None)
    """

    name = "masks"

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        images, masks = _stems(self.root / "images"), _stems(self.root / "masks")
        both = sorted(set(images) & set(masks))
        if not both or len(both) < max(len(images), len(masks)):
            unpaired = sorted(set(images) ^ set(masks))
            raise DataError(
                f"{self.root} has {len(images):,} images and {len(masks):,} masks, {len(both):,} of them with the same "
                "name: expected images/x.jpg and masks/x.png for every x"
                + (f"; {unpaired[0]} has only one of them" if unpaired else "")
            )
        self._images, self._masks = {k: images[k] for k in both}, {k: masks[k] for k in both}
        self._column = ""
        self.labels: tuple[int | None, ...] = (None,) * len(both)
        if (self.root / "labels.csv").is_file():
            table = self._read_table(self.root / "labels.csv")
            missing = [stem for stem in both if images[stem] not in table]
            if missing:
                raise DataError(
                    f"{self.root / 'labels.csv'} has no line for {len(missing):,} images, for example "
                    f"{images[missing[0]]}: add a line for every image"
                )
            self.labels = tuple(table[images[stem]] for stem in both)
        super().__init__(both)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """ImageNet class names if the table has the column ``imagenet_class`` and a library has them, else None."""
        from vitrail.models import imagenet_classes

        return imagenet_classes() if self._column == "imagenet_class" else None

    def _read_table(self, path: Path) -> dict[str, int]:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                columns = reader.fieldnames or []
                self._column = next(name for name in LABEL_COLUMNS if name in columns)
                labels = {row["file"]: int(row[self._column]) for row in reader}
        except (StopIteration, KeyError, TypeError, ValueError, csv.Error) as error:
            raise DataError(
                f"{path} needs the column file and one of {', '.join(LABEL_COLUMNS)} with whole numbers"
            ) from error
        lowest, highest = min(labels.values(), default=0), max(labels.values(), default=0)
        if lowest < 0 or (self._column == "imagenet_class" and highest > 999):
            raise DataError(f"{path} has classes from {lowest} to {highest}: expected 0 to 999")
        return labels

    def _read(self, index: int) -> Sample:
        stem = self.ids[index]
        image_path, mask_path = self.root / "images" / self._images[stem], self.root / "masks" / self._masks[stem]
        image = read_rgb(image_path, image_path)
        mask = read_mask(mask_path, image)
        invalid = sorted(set(np.unique(mask).tolist()) - {0, 1, 255})
        if invalid:
            raise DataError(f"{mask_path} has the value {invalid[0]}: expected 1 object, 0 background, 255 ignore")
        return Sample(stem, image, label=self.labels[index], mask=mask)


def _stems(folder: Path) -> dict[str, str]:
    """File names of the images in a folder, by name without suffix."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: expected images/x.jpg and masks/x.png for every x in the root")
    names = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    stems = {Path(name).stem: name for name in names}
    if len(stems) < len(names):
        raise DataError(f"{folder} has two files whose names differ only in the suffix: rename one of them")
    return stems
