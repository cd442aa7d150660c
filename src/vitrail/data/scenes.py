"""Scenes: small pictures of known things, drawn on the spot from a seed and an index.

A scene says by itself what a model ought to see in it: which things, which pixels of each are visible, and whether a
tag in the corner gives the answer away. No files are read, and the same numbers give the same bytes on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from vitrail.data import textures
from vitrail.data.shapes import CLASSES, Box, Thing, box, draw, overlap, place
from vitrail.data.textures import between, whole
from vitrail.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CLASSES", "Scene", "Scenes", "render"]

Tag = bool | int | Literal["wrong"] | None
Placed = tuple[Thing, tuple[int, int], NDArray[np.bool_]]

LEAST_VISIBLE, LEAST_VISIBLE_PAIR = 0.35, 0.80
"""Share of a thing that others leave uncovered, at least; the same for the two things of a pair."""

COUNTS = {"train": 60_000, "val": 2_000, "test": 2_000}
"""Scenes in each split, unless told otherwise."""

MOST_OBJECTS, SMALLEST = 6, 64
_TAG_NAMES = {"None": "tagged", "True": "tagged", "False": "untagged"}
_SPLITS = {name: k << 48 for k, name in enumerate(COUNTS)}  # far apart: no split is ever long enough to meet the next


@dataclass(frozen=True, eq=False)
class Scene:
    """A picture and the truth about it. Things are listed from front to back; the first is never covered.

    Attributes:
        image: Bytes, shape (size, size, 3).
        classes: The class of each thing.
        masks: Pixels where each thing is seen, shape (things, size, size). No pixel belongs to two things.
        boxes: x0, y0, x1, y1 around the visible pixels of each thing, the ends left out, shape (things, 4).
        areas: Pixels each thing would show if nothing covered it and the picture had no edge, shape (things,).
        ground: Name of the texture behind the things.
        tag: Box of the tag, or None where there is none.
        tag_class: The class whose pattern the tag shows, or None.
    """

    image: NDArray[np.uint8]
    classes: tuple[int, ...]
    masks: NDArray[np.bool_]
    boxes: NDArray[np.int64]
    areas: NDArray[np.int64]
    ground: str
    tag: Box | None = None
    tag_class: int | None = None

    def __post_init__(self) -> None:
        for array in (self.image, self.masks, self.boxes, self.areas):
            array.flags.writeable = False  # the truth is not changed by accident

    @property
    def present(self) -> frozenset[int]:
        """The classes in the picture, each once."""
        return frozenset(self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each thing's class."""
        return tuple(CLASSES[kind] for kind in self.classes)

    @property
    def labels(self) -> NDArray[np.float32]:
        """One, shared equally by the classes present, shape (12,)."""
        shares = np.zeros(len(CLASSES), dtype=np.float32)
        shares[sorted(self.present)] = 1 / len(self.present)
        return shares

    @property
    def visible(self) -> NDArray[np.float64]:
        """Share of each thing that is seen, shape (things,)."""
        seen: NDArray[np.float64] = self.masks.sum((1, 2)) / self.areas
        return seen

    def class_mask(self, label: int) -> NDArray[np.bool_]:
        """Visible pixels of all objects of a class, shape (size, size); all False if the class is absent."""
        own = [mask for mask, kind in zip(self.masks, self.classes, strict=True) if kind == label]
        return np.logical_or.reduce(own) if own else np.zeros(self.image.shape[:2], bool)

    def to_tensor(self) -> Tensor:
        """The image as input of the embedded models: values from -1 to 1, shape (3, size, size)."""
        import torch

        return torch.from_numpy(self.image.copy()).permute(2, 0, 1).float() / 127.5 - 1


def render(
    seed: int,
    index: int,
    *,
    size: int = 128,
    objects: int | tuple[int, int] = (1, 4),
    pairs: bool = False,
    tagged: bool = False,
    tag: Tag = None,
) -> Scene:
    """Draw one scene.

    Args:
        seed: Names a world of scenes, 0 or more.
        index: Names one scene in it, 0 or more.
        size: Height and width in pixels, 64 or more.
        objects: How many things, or the fewest and the most; six at the most.
        pairs: Draw exactly two things, whatever objects says, of two different classes and about one size, hardly
            covering each other.
        tagged: Keep a corner free for a tag: a small pattern that gives away the class of the first thing.
        tag: What is drawn in that corner: None or True for the right tag, False for nothing at all, a class for the
            pattern of that class, "wrong" for that of a class not in the picture. Nothing else of the scene depends
            on it, down to the last bit of noise.

    Returns:
        The scene.

    Raises:
        InputError: An option is out of range, or a tag is asked for without its corner.

    Example:
        >>> scene = render(0, 3, objects=2)
        >>> scene.names, scene.masks.shape, scene.boxes.shape
        (('house', 'star'), (2, 128, 128), (2, 4))
        >>> marked, plain = render(0, 3, tagged=True), render(0, 3, tagged=True, tag=False)
        >>> x0, y0, x1, y1 = marked.tag
        >>> changed = (marked.image != plain.image).any(2)
        >>> bool(changed.sum() == changed[y0:y1, x0:x1].sum()), x1 - x0
        (True, 16)
    """
    fewest, most = _check(seed, index, size, objects, pairs, tagged, tag)
    aside = _stream(seed, index, 1)  # the tag has dice of its own, so that it moves nothing else
    side, (right, low) = size // 32 * 4, (whole(aside, 0, 1), whole(aside, 0, 1))
    x, y = (size - side) * right, (size - side) * low
    corner = (x, y, x + side, y + side) if tagged else None
    rng = _stream(seed, index, 0)
    count = whole(rng, fewest, most)
    placed = None
    while placed is None:  # now and then the things of a crowded scene find no room; then they are drawn anew
        placed = _arrange(rng, size, _kinds(rng, count, pairs), pairs, corner)
    name, planes = textures.ground(rng, size)
    for thing, spot, _ in reversed(placed):
        here, own = overlap(spot, len(thing.cover), size)
        view = planes[(slice(None), *here)]
        view += thing.cover[own] * (thing.paint[(slice(None), *own)] - view)
    kinds = tuple(thing.kind for thing, _, _ in placed)
    shown = None
    if corner is not None and tag is not False:
        others = [kind for kind in range(len(CLASSES)) if kind not in kinds]
        wrong = others[whole(aside, 0, len(others) - 1)]
        shown = kinds[0] if tag is None or tag is True else wrong if tag == "wrong" else int(tag)
        planes[:, corner[1] : corner[3], corner[0] : corner[2]] = textures.tag(shown, size // 32)
    masks = np.stack([mask for _, _, mask in placed])
    boxes = np.array([box(mask) for mask in masks], dtype=np.int64)
    areas = np.array([thing.area for thing, _, _ in placed], dtype=np.int64)
    where = corner if shown is not None else None
    return Scene(_develop(rng, planes), kinds, masks, boxes, areas, name, tag=where, tag_class=shown)


def _check(
    seed: int, index: int, size: int, objects: int | tuple[int, int], pairs: bool, tagged: bool, tag: Tag
) -> tuple[int, int]:
    """The fewest and the most things, once every option has been found good."""
    fewest, most = (objects, objects) if isinstance(objects, int) else objects
    if not (0 <= seed < 1 << 64 and 0 <= index < 1 << 64):
        raise InputError(f"seed and index are whole numbers from 0 up, not {seed} and {index}")
    if size < SMALLEST:
        raise InputError(f"a scene of {size} pixels has no room for things: take {SMALLEST} or more")
    if not 1 <= fewest <= most <= MOST_OBJECTS:
        raise InputError(f"a scene holds from 1 to {MOST_OBJECTS} things, the fewest first, not {objects}")
    if not tagged and tag is not None and tag is not False:
        raise InputError("a tag needs a free corner: give tagged=True as well")
    if tag not in (None, "wrong", *range(len(CLASSES))):  # True and False pass as 1 and 0
        raise InputError(f'a tag is a class from 0 to {len(CLASSES) - 1}, True, False or "wrong", not {tag!r}')
    return (2, 2) if pairs else (fewest, most)


def _stream(seed: int, index: int, purpose: int) -> Generator:
    """Dice for one purpose of one scene. Each number takes two words, so that no two scenes share a stream."""
    words = [part for number in (seed, index) for part in (number & 0xFFFFFFFF, number >> 32)]
    return Generator(PCG64(SeedSequence([*words, purpose])))


def _kinds(rng: Generator, count: int, pairs: bool) -> list[int]:
    """The classes of the things: all different, but for a second one of the first's kind now and then."""
    kinds = [int(kind) for kind in np.argsort(rng.random(len(CLASSES)), kind="stable")[:count]]
    if count > 1 and rng.random() < 0.1 and not pairs:
        kinds[-1] = kinds[0]
    return kinds


def _arrange(rng: Generator, size: int, kinds: list[int], pairs: bool, corner: Box | None) -> list[Placed] | None:
    """Draw the things and find them room, front to back: each with its spot (x, y) and its visible pixels.

    Whatever comes later lies behind, so a thing once placed stays as visible as it is. One that finds no room is
    drawn again, smaller; None if even the smallest finds none.
    """
    taken, kept_free = np.zeros((2, size, size), dtype=np.bool_)
    if corner is not None:
        kept_free[corner[1] : corner[3], corner[0] : corner[2]] = True
    smallest = max(0.105 * size, 12.0)
    largest = max(0.25 * size, 16.0)
    common = between(rng, max(0.15 * size, smallest), max(0.23 * size, largest * 0.9))
    placed: list[Placed] = []
    for kind in kinds:
        radius = common * between(rng, 0.9, 1.1) if pairs else between(rng, smallest, largest)
        floor = radius * 0.8 if pairs else smallest  # the two of a pair stay of one size
        found = None
        while found is None:
            thing = draw(rng, kind, radius)
            found = place(rng, thing, taken, kept_free, LEAST_VISIBLE_PAIR if pairs else LEAST_VISIBLE)
            if found is None and radius <= floor:
                return None
            radius = max(radius * 0.85, floor)
        spot, mask = found
        taken |= mask
        placed.append((thing, spot, mask))
    return placed


def _develop(rng: Generator, planes: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours to bytes, with a little noise and a slightly different exposure each time; changes what it is given."""
    contrast, brightness, grain = between(rng, 0.88, 1.08), between(rng, -0.05, 0.05), between(rng, 0.02, 0.08)
    planes -= 0.5
    planes *= contrast
    planes += 0.5 + brightness - grain / 2
    planes += grain * rng.random(planes.shape)
    planes *= 255
    levels = np.rint(np.clip(planes, 0, 255)).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(levels, 0, 2))


class Scenes(Sequence[Scene]):
    """A split of a world of scenes, drawn one by one as they are asked for. Nothing is kept.

    Args:
        split: "train", "val" or "test". No two splits share a scene.
        count: How many scenes; 60,000 for training and 2,000 otherwise unless told.
        objects: How many things are in each, as in `render`.
        pairs: Two things of two classes in each scene.
        tagged: A corner is kept free for a tag.
        tag: What is drawn there, as in `render`.
        seed: Names the world.
        size: Height and width in pixels.

    Example:
        >>> scenes = Scenes("val", objects=1)
        >>> len(scenes), scenes.id(7), scenes[7].names
        (2000, 'val-0-128-1-000007', ('honeycomb',))
        >>> images, labels = scenes.batch([0, 7])
        >>> images.shape, labels.shape, labels.sum(1).tolist()
        (torch.Size([2, 3, 128, 128]), torch.Size([2, 12]), [1.0, 1.0])
    """

    def __init__(
        self,
        split: str = "train",
        count: int | None = None,
        *,
        objects: int | tuple[int, int] = (1, 4),
        pairs: bool = False,
        tagged: bool = False,
        tag: Tag = None,
        seed: int = 0,
        size: int = 128,
    ) -> None:
        if split not in COUNTS:
            raise InputError(f"there is no split {split!r}: take one of {', '.join(COUNTS)}")
        self._length = COUNTS[split] if count is None else count
        if not 1 <= self._length <= 1 << 32:
            raise InputError(f"a split cannot hold {count} scenes")
        fewest, most = _check(seed, 0, size, objects, pairs, tagged, tag)
        self.split, self.seed, self.size = split, seed, size
        self.objects, self.pairs, self.tagged, self.tag = (fewest, most), pairs, tagged, tag

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Scene: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scene]: ...
    def __getitem__(self, index: int | slice) -> Scene | list[Scene]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        at, how_many = _SPLITS[self.split] + self._at(index), self.objects
        return render(
            self.seed, at, size=self.size, objects=how_many, pairs=self.pairs, tagged=self.tagged, tag=self.tag
        )

    def id(self, index: int) -> str:
        """A name for a scene that says all it takes to draw it again."""
        fewest, most = self.objects
        kind = "pairs" if self.pairs else f"{fewest}" if fewest == most else f"{fewest}to{most}"
        mark = "-" + _TAG_NAMES.get(str(self.tag), f"tag{self.tag}") if self.tagged else ""
        return f"{self.split}-{self.seed}-{self.size}-{kind}{mark}-{self._at(index):06d}"

    def batch(self, indices: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Scenes as a model takes them.

        Args:
            indices: Which scenes.

        Returns:
            Images with values from -1 to 1 (mean and deviation 0.5 each), shape (b, 3, size, size), and what
            `Scene.labels` says, shape (b, 12); both 32-bit floats.
        """
        import torch

        scenes = [self[int(i)] for i in indices]
        if not scenes:
            raise InputError("a batch needs one scene at least")
        images = torch.from_numpy(np.stack([scene.image for scene in scenes])).permute(0, 3, 1, 2)
        return images.float().div_(127.5).sub_(1.0).contiguous(), torch.from_numpy(np.stack([s.labels for s in scenes]))

    def _at(self, index: int) -> int:
        if not -self._length <= index < self._length:
            raise IndexError(f"scene {index} is outside a split of {self._length}")
        return index % self._length
