"""A data set of images from any source, for benchmarks."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.addresses import open_source
from vitrail.data.image_files import read_rgb
from vitrail.data.sample import BaseDataset, Sample

__all__ = ["ImageSource"]


class ImageSource(BaseDataset):
    """Images of a folder, of tar shards, tables, lists or Hugging Face data sets, in any store.

    Labels, where the source has them, are indices of the model's classes.

    Args:
        root: Address, as `open_source` takes it.
        column: Column of the images or paths.
        label: Column of class indices.
        split: Split of a Hugging Face data set.
        recursive: Whether to include subfolders.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> with TemporaryDirectory() as root:
        ...     Image.new("RGB", (4, 3)).save(Path(root, "x.png"))
        ...     sample = ImageSource(root)[0]
        >>> sample.id, sample.image.size, sample.label
        ('x.png', (4, 3), None)
    """

    name = "images"

    def __init__(
        self, root: str | Path, *, column: str = "", label: str = "", split: str = "", recursive: bool = True
    ) -> None:
        self.source = open_source(root, recursive=recursive, column=column, label=label, split=split)
        super().__init__(item.id for item in self.source.items)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by index, or None if unknown."""
        return self.source.classes

    def _read(self, index: int) -> Sample:
        item = self.source.items[index]
        return Sample(item.id, read_rgb(self.source.open(item), item.id), label=item.label)
