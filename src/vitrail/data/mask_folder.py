"""Mask folders: images, a mask for each, and a table of classes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from vitrail.data.image_files import read_mask, read_rgb
from vitrail.data.sample import Listing, Sample
from vitrail.errors import DataError

__all__ = ["MaskFolder"]

SUFFIXES = (".jpg", ".jpeg", ".png")
LABELS = ("imagenet_class", "label", "class")


class MaskFolder(Listing):
    """Images with masks of your own: ``images/x.jpg``, ``masks/x.png``, and ``labels.csv``.

    In a mask, 1 is the object, 0 is the background and 255 is to be ignored. The table has the column ``file`` and one
    of ``imagenet_class`` (an index of ILSVRC2012), ``label`` or ``class`` (any index); without a table the samples
    have no labels. A file whose name starts with a dot is passed over.

    Args:
        root: The folder above ``images`` and ``masks``.

    Raises:
        DataError: Images, masks and table do not belong together.

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
            lone = sorted(set(images) ^ set(masks))
            raise DataError(
                f"{self.root} has {len(images):,} images and {len(masks):,} masks, of which {len(both):,} belong "
                "together: expected images/x.jpg and masks/x.png for every x"
                + (f"; {lone[0]} stands alone" if lone else "")
            )
        self._images, self._masks = {k: images[k] for k in both}, {k: masks[k] for k in both}
        self._column = ""
        self.labels: tuple[int | None, ...] = (None,) * len(both)
        if (self.root / "labels.csv").is_file():
            table = self._table(self.root / "labels.csv")
            lost = [stem for stem in both if images[stem] not in table]
            if lost:
                raise DataError(
                    f"{self.root / 'labels.csv'} has no line for {len(lost):,} images, as {images[lost[0]]}"
                )
            self.labels = tuple(table[images[stem]] for stem in both)
        super().__init__(both)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of ILSVRC2012 where the table speaks of them and an installed library carries them, else None."""
        from vitrail.models.classes import imagenet_classes

        return imagenet_classes() if self._column == "imagenet_class" else None

    def _table(self, path: Path) -> dict[str, int]:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                columns = reader.fieldnames or []
                self._column = next(name for name in LABELS if name in columns)
                labels = {row["file"]: int(row[self._column]) for row in reader}
        except (StopIteration, KeyError, TypeError, ValueError, csv.Error) as error:
            raise DataError(
                f"{path} needs the column file and one of {', '.join(LABELS)} with whole numbers"
            ) from error
        if min(labels.values(), default=0) < 0 or (self._column == LABELS[0] and max(labels.values(), default=0) > 999):
            raise DataError(f"{path} has a class outside of 0 to 999")
        return labels

    def _read(self, index: int) -> Sample:
        stem = self.ids[index]
        picture, drawn = self.root / "images" / self._images[stem], self.root / "masks" / self._masks[stem]
        image = read_rgb(picture, picture)
        mask = read_mask(drawn, image)
        strange = sorted(set(np.unique(mask).tolist()) - {0, 1, 255})
        if strange:
            raise DataError(f"{drawn} holds the number {strange[0]}: a mask holds 1 object, 0 background, 255 ignore")
        return Sample(stem, image, label=self.labels[index], mask=mask)


def _stems(folder: Path) -> dict[str, str]:
    """File names of the images in a folder, by name without ending."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: expected images/x.jpg and masks/x.png for every x below the root")
    names = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
    stems = {Path(name).stem: name for name in names}
    if len(stems) < len(names):
        raise DataError(f"{folder} has two files of one name that differ in the ending only")
    return stems
