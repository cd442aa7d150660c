"""Samples: one picture or text with what is known about it, and what every data set has in common."""

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

__all__ = ["Dataset", "Listing", "Sample"]


@dataclass(frozen=True, eq=False)
class Sample:
    """A picture or a text and the truth about it. What a data set does not know is None.

    Attributes:
        id: A name that stays the same on every machine and in every order.
        image: In RGB, in the pixels of the file: cameras' orientation tags are not applied, as masks and boxes refer
            to the pixels as stored.
        text: The tokens joined by single spaces.
        tokens: The words of the text.
        spans: First token and the one after the last of each passage that people marked as evidence, in order.
        label: The class, where there is one: an index into the data set's classes.
        labels: Every class present, each once, in order.
        mask: 1 object, 0 background, 255 to be ignored; for VOC the class of each pixel, 0 to 20, and 255.
            Shape (height, width).
        boxes: x0, y0, x1, y1 in pixels of the image, the ends left out, shape (n, 4).
        box_labels: The class of each box, -1 where it is none of the classes, shape (n,).
        difficult: Boxes that the annotators called difficult, shape (n,).

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
        """The boxes of one class, shape (n, 4); none where the sample has no boxes."""
        if self.boxes is None or self.box_labels is None:
            return np.zeros((0, 4), np.float32)
        chosen: NDArray[np.float32] = self.boxes[self.box_labels == label]
        return chosen


@runtime_checkable
class Dataset(Protocol):
    """What every data set can do. Samples are read when asked for; ids are known without opening any image."""

    @property
    def name(self) -> str:
        """Short name, as `open_dataset` takes it."""

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, by index, where they are known."""

    @property
    def ids(self) -> Sequence[str]:
        """The samples' ids, in order."""

    @property
    def expected(self) -> int | None:
        """How many samples the published set has, where that is fixed."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Sample: ...


class Listing:
    """What the data sets here share: a list of ids, and a sample read for each as it is asked for.

    Args:
        ids: One for each sample, no two alike.
        expected: How many the published set has, or None. Another number draws a `DataWarning`.
        advice: What to do then, as the end of a sentence.

    Raises:
        DataError: Two ids are the same, or there are none.

    Example:
        >>> class Letters(Listing):
        ...     name = "letters"
        ...
        ...     def _read(self, index):
        ...         return Sample(self.ids[index], text=self.ids[index].upper())
        >>> letters = Letters("abc")
        >>> letters, letters[-1].text, [sample.id for sample in letters]
        (Letters(3 samples), 'C', ['a', 'b', 'c'])
    """

    name = "listing"

    def __init__(self, ids: Iterable[str], expected: int | None = None, advice: str = "") -> None:
        self.ids: tuple[str, ...] = tuple(ids)
        self.expected = expected
        if not self.ids:
            raise DataError(f"{self.name}: there are no samples; {advice}")
        if len(set(self.ids)) != len(self.ids):
            twice = Counter(self.ids).most_common(1)[0][0]
            raise DataError(f"{self.name}: two samples are called {twice}")
        if expected is not None and len(self.ids) != expected:
            warnings.warn(
                f"{self.name}: {len(self.ids):,} samples found, {expected:,} in the published set. "
                f"Right for a selection of your own; if none was meant, {advice}",
                DataWarning,
                stacklevel=3,
            )

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, by index, where they are known."""
        return None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Sample:
        if not -len(self.ids) <= index < len(self.ids):
            raise IndexError(f"sample {index} is outside a set of {len(self.ids)}")
        return self._read(index % len(self.ids))

    def __iter__(self) -> Iterator[Sample]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        of = f" of {self.expected:,}" if self.expected not in (None, len(self)) else ""
        return f"{type(self).__name__}({len(self):,}{of} samples)"

    def _read(self, index: int) -> Sample:
        """The sample at an index from 0 up."""
        raise NotImplementedError
