"""Sample, the Dataset protocol, and the base class of the data sets."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError, DataWarning

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["BaseDataset", "Dataset", "Sample"]


@dataclass(frozen=True, eq=False)
class Sample:
    """An image or a text with its annotations. Fields that a data set does not provide are None.

    Attributes:
        id: Name of the sample, the same on every machine and in every order.
        image: RGB image in the pixels of the file. The EXIF orientation is not applied, because masks and boxes refer
            to the pixels as stored.
        text: The tokens joined by single spaces.
        tokens: The words of the text.
        spans: First token and end (exclusive) of each passage that annotators marked as evidence, in order.
        label: The class: an index into the data set's classes.
        labels: All classes present, each once, in order.
        mask: 1 object, 0 background, 255 ignore; for VOC the class of each pixel, 0 to 20, and 255.
            Shape (height, width).
        boxes: x0, y0, x1, y1 in pixels of the image with exclusive ends, shape (n, 4).
        box_labels: Class of each box, or -1 if it is not among the data set's classes, shape (n,).
        difficult: Which boxes the annotators marked as difficult, shape (n,).

    Example:
        >>> sample = Sample("one", label=3, boxes=np.array([[0, 0, 4, 2]], np.float32), box_labels=np.array([3]))
        >>> sample.labels, sample.boxes_of(3).tolist(), sample.boxes_of(4).shape
        ((3,), [[0.0, 0.0, 4.0, 2.0]], (0, 4))
    """

    id: str
    image: Image | None = None
    text: str | None = None
    tokens: tuple[str, ...] | None = None
    spans: tuple[tuple[int, int], ...] | None = None
    label: int | None = None
    labels: tuple[int, ...] = ()
    mask: NDArray[np.uint8] | None = None
    boxes: NDArray[np.float32] | None = None
    box_labels: NDArray[np.int64] | None = None
    difficult: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.label is not None and not self.labels:
            object.__setattr__(self, "labels", (self.label,))

    def boxes_of(self, label: int) -> NDArray[np.float32]:
        """Boxes of one class, shape (n, 4); n is 0 if the sample has no boxes."""
        if self.boxes is None or self.box_labels is None:
            return np.zeros((0, 4), np.float32)
        selected: NDArray[np.float32] = self.boxes[self.box_labels == label]
        return selected


@runtime_checkable
class Dataset(Protocol):
    """Interface of a data set. Samples are read on access; the ids are known without opening an image."""

    @property
    def name(self) -> str:
        """Short name, as `open_dataset` takes it."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by index, or None if unknown."""

    @property
    def ids(self) -> Sequence[str]:
        """Ids of the samples, in order."""

    @property
    def expected(self) -> int | None:
        """Number of samples of the published data set, or None if it has no fixed number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Sample: ...


class BaseDataset:
    """Base class of the data sets: a list of ids, and a method ``_read`` that reads one sample.

    Args:
        ids: Id of each sample; they must be unique.
        expected: Number of samples of the published data set, or None. Another number causes a `DataWarning`.
        advice: How to get the complete data set, as the end of a sentence.

    Raises:
        DataError: There are no ids, or an id occurs twice.

    Example:
        >>> class Letters(BaseDataset):
        ...     name = "letters"
        ...
        ...     def _read(self, index):
        ...         return Sample(self.ids[index], text=self.ids[index].upper())
        >>> letters = Letters("abc")
        >>> letters, letters[-1].text, [sample.id for sample in letters]
        (Letters(3 samples), 'C', ['a', 'b', 'c'])
    """

    name = ""

    def __init__(self, ids: Iterable[str], expected: int | None = None, advice: str = "") -> None:
        self.ids: tuple[str, ...] = tuple(ids)
        self.expected = expected
        if not self.ids:
            raise DataError(f"{self.name} has no samples: {advice}")
        if len(set(self.ids)) != len(self.ids):
            twice = Counter(self.ids).most_common(1)[0][0]
            raise DataError(f"{self.name} has two samples with the id {twice}: ids must be unique")
        if expected is not None and len(self.ids) != expected:
            warnings.warn(
                f"{self.name}: {len(self.ids):,} samples found, the published data set has {expected:,}. "
                f"If you did not intend to use a subset, {advice}",
                DataWarning,
                stacklevel=3,
            )

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names by index, or None if unknown."""
        return None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        if not -len(self.ids) <= index < len(self.ids):
            raise IndexError(f"index {index} is out of range for {len(self.ids)} samples")
        return self._read(index % len(self.ids))

    def __iter__(self) -> Iterator[Sample]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        of = f" of {self.expected:,}" if self.expected not in (None, len(self)) else ""
        return f"{type(self).__name__}({len(self):,}{of} samples)"

    def _read(self, index: int) -> Sample:
        """Read the sample at an index from 0."""
        raise NotImplementedError
