"""Scenes: small synthetic images with known ground truth, rendered from a seed and an index.

A scene records which objects it contains, which pixels of each are visible, and whether a tag in a corner gives the
class away. No files are read. The same seed and index give the same bytes on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from vitrail.data import textures
from vitrail.data.shapes import SCENE_CLASSES, Box, DrawnObject, bounding_box, draw_object, place_object, window_slices
from vitrail.data.textures import uniform, uniform_int
from vitrail.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Scene", "Scenes", "render"]

Tag = bool | int | Literal["wrong"] | None
PlacedObject = tuple[DrawnObject, tuple[int, int], NDArray[np.bool_]]

MIN_VISIBLE, MIN_VISIBLE_PAIR = 0.35, 0.80
"""Minimum visible fraction of each object, and of each object of a pair."""

COUNTS = {"train": 60_000, "val": 2_000, "test": 2_000}
"""Default number of scenes of each split."""

MAX_OBJECTS, MIN_SIZE = 6, 64
_TAG_NAMES = {"None": "tagged", "True": "tagged", "False": "untagged"}
SPLIT_OFFSETS = {name: k << 48 for k, name in enumerate(COUNTS)}  # splits are far apart and cannot overlap


@dataclass(frozen=True, eq=False)
class Scene:
    """A rendered image and its ground truth. Objects are listed from front to back; the first is never covered.

    Attributes:
        image: uint8, shape (size, size, 3).
        classes: Class index of each object.
        masks: Visible pixels of each object, shape (objects, size, size). No pixel belongs to two objects.
        boxes: x0, y0, x1, y1 around the visible pixels of each object with exclusive ends, shape (objects, 4).
        areas: Pixels of each object without occlusion and without the image border, shape (objects,).
        background: Name of the background texture.
        tag: Box of the tag, or None if there is none.
        tag_class: Class whose pattern the tag shows, or None.
        colours: Index of the colour of each object in `SCENE_COLOURS`; empty if the scene is not coloured.
    """

    image: NDArray[np.uint8]
    classes: tuple[int, ...]
    masks: NDArray[np.bool_]
    boxes: NDArray[np.int64]
    areas: NDArray[np.int64]
    background: str
    tag: Box | None = None
    tag_class: int | None = None
    colours: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for array in (self.image, self.masks, self.boxes, self.areas):
            array.flags.writeable = False

    @property
    def present(self) -> frozenset[int]:
        """The classes in the image, each once."""
        return frozenset(self.classes)

    @property
    def names(self) -> tuple[str, ...]:
        """Class name of each object."""
        return tuple(SCENE_CLASSES[c] for c in self.classes)

    @property
    def labels(self) -> NDArray[np.float32]:
        """Target distribution: 1, shared equally by the classes present, shape (12,)."""
        labels = np.zeros(len(SCENE_CLASSES), dtype=np.float32)
        labels[sorted(self.present)] = 1 / len(self.present)
        return labels

    @property
    def visible(self) -> NDArray[np.float64]:
        """Visible fraction of each object, shape (objects,)."""
        fraction: NDArray[np.float64] = self.masks.sum((1, 2)) / self.areas
        return fraction

    def class_mask(self, label: int) -> NDArray[np.bool_]:
        """Visible pixels of all objects of a class, shape (size, size); all False if the class is absent."""
        masks = [mask for mask, kind in zip(self.masks, self.classes, strict=True) if kind == label]
        return np.logical_or.reduce(masks) if masks else np.zeros(self.image.shape[:2], bool)

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
    coloured: bool = False,
) -> Scene:
    """Render one scene.

    Args:
        seed: Seed of a family of scenes, 0 or more.
        index: Index of the scene, 0 or more.
        size: Height and width in pixels, at least 64.
        objects: Number of objects, or the minimum and the maximum; at most 6.
        pairs: Render exactly two objects of two different classes and similar size with little occlusion, regardless of
            ``objects``.
        tagged: Keep a corner free for a tag: a small pattern that gives away the class of the first object.
        tag: What the corner shows: None or True for the tag of the first object's class, False for no tag, a class
            index for the tag of that class, "wrong" for the tag of a class that is not in the image. The rest of the
            image does not depend on it, including the noise.
        coloured: Give each object one of the named colours, so that it can be described in words. Otherwise the two
            tones of an object have random hues.

    Returns:
        The scene.

    Raises:
        InputError: An option is out of range, or ``tag`` is given without ``tagged``.

    Example:
        >>> scene = render(0, 3, objects=2)
        >>> scene.names, scene.masks.shape, scene.boxes.shape
        (('house', 'star'), (2, 128, 128), (2, 4))
        >>> with_tag, without_tag = render(0, 3, tagged=True), render(0, 3, tagged=True, tag=False)
        >>> x0, y0, x1, y1 = with_tag.tag
        >>> changed = (with_tag.image != without_tag.image).any(2)
        >>> bool(changed.sum() == changed[y0:y1, x0:x1].sum()), x1 - x0
        (True, 16)
    """
    min_objects, max_objects = _check_options(seed, index, size, objects, pairs, tagged, tag)
    tag_rng = scene_generator(seed, index, 1)  # a separate generator, so that the tag changes nothing else
    side, (right, bottom) = size // 32 * 4, (uniform_int(tag_rng, 0, 1), uniform_int(tag_rng, 0, 1))
    x, y = (size - side) * right, (size - side) * bottom
    corner = (x, y, x + side, y + side) if tagged else None
    rng = scene_generator(seed, index, 0)
    count = uniform_int(rng, min_objects, max_objects)
    colour_rng = scene_generator(seed, index, 2)
    colours = [uniform_int(colour_rng, 0, len(textures.SCENE_COLOURS) - 1) for _ in range(count)] if coloured else None
    placed = None
    while placed is None:  # objects of a crowded scene may not fit; then all are drawn again
        placed = _place_objects(rng, size, _choose_classes(rng, count, pairs), pairs, corner, colours)
    background, planes = textures.background(rng, size)
    for drawn, position, _ in reversed(placed):
        in_image, in_window = window_slices(position, len(drawn.alpha), size)
        view = planes[(slice(None), *in_image)]
        view += drawn.alpha[in_window] * (drawn.colours[(slice(None), *in_window)] - view)
    classes = tuple(drawn.label for drawn, _, _ in placed)
    tag_class = None
    if corner is not None and tag is not False:
        absent = [c for c in range(len(SCENE_CLASSES)) if c not in classes]
        wrong = absent[uniform_int(tag_rng, 0, len(absent) - 1)]
        tag_class = classes[0] if tag is None or tag is True else wrong if tag == "wrong" else int(tag)
        planes[:, corner[1] : corner[3], corner[0] : corner[2]] = textures.tag_pattern(tag_class, size // 32)
    masks = np.stack([mask for _, _, mask in placed])
    boxes = np.array([bounding_box(mask) for mask in masks], dtype=np.int64)
    areas = np.array([drawn.area for drawn, _, _ in placed], dtype=np.int64)
    tag_box = corner if tag_class is not None else None
    image = _to_image(rng, planes)
    return Scene(image, classes, masks, boxes, areas, background, tag_box, tag_class, tuple(colours or ()))


def _check_options(
    seed: int, index: int, size: int, objects: int | tuple[int, int], pairs: bool, tagged: bool, tag: Tag
) -> tuple[int, int]:
    """Check the options; returns the minimum and maximum number of objects."""
    min_objects, max_objects = (objects, objects) if isinstance(objects, int) else objects
    if not (0 <= seed < 1 << 64 and 0 <= index < 1 << 64):
        raise InputError(f"seed={seed} and index={index} must be whole numbers from 0 to 2**64 - 1")
    if size < MIN_SIZE:
        raise InputError(f"size={size} is too small for the objects: use {MIN_SIZE} or more")
    if not 1 <= min_objects <= max_objects <= MAX_OBJECTS:
        raise InputError(
            f"objects={objects} must be a number from 1 to {MAX_OBJECTS}, or a pair of them with the minimum first"
        )
    if not tagged and tag is not None and tag is not False:
        raise InputError(f"tag={tag!r} needs a free corner: pass tagged=True as well")
    if tag not in (None, "wrong", *range(len(SCENE_CLASSES))):  # True and False count as 1 and 0
        raise InputError(f'tag={tag!r} must be a class from 0 to {len(SCENE_CLASSES) - 1}, True, False or "wrong"')
    return (2, 2) if pairs else (min_objects, max_objects)


def scene_generator(seed: int, index: int, purpose: int) -> Generator:
    """Random generator for one purpose of one scene. Seed and index take two words each, so that no two collide."""
    words = [part for number in (seed, index) for part in (number & 0xFFFFFFFF, number >> 32)]
    return Generator(PCG64(SeedSequence([*words, purpose])))


def _choose_classes(rng: Generator, count: int, pairs: bool) -> list[int]:
    """Classes of the objects: all different, but in 10 % of the scenes the last repeats the first (never in pairs)."""
    classes = [int(c) for c in np.argsort(rng.random(len(SCENE_CLASSES)), kind="stable")[:count]]
    if count > 1 and rng.random() < 0.1 and not pairs:
        classes[-1] = classes[0]
    return classes


def _place_objects(
    rng: Generator, size: int, classes: list[int], pairs: bool, corner: Box | None, colours: list[int] | None
) -> list[PlacedObject] | None:
    """Draw the objects and place them front to back; returns each with its position (x, y) and its visible pixels.

    Later objects lie behind earlier ones, so the visible part of a placed object is final. An object that does not fit
    is drawn again at a smaller size; returns None if the smallest size does not fit either.
    """
    occupied, reserved = np.zeros((2, size, size), dtype=np.bool_)
    if corner is not None:
        reserved[corner[1] : corner[3], corner[0] : corner[2]] = True
    min_radius = max(0.105 * size, 12.0)
    max_radius = max(0.25 * size, 16.0)
    pair_radius = uniform(rng, max(0.15 * size, min_radius), max(0.23 * size, max_radius * 0.9))
    placed: list[PlacedObject] = []
    for k, label in enumerate(classes):
        colour = None if colours is None else colours[k]
        radius = pair_radius * uniform(rng, 0.9, 1.1) if pairs else uniform(rng, min_radius, max_radius)
        smallest = radius * 0.8 if pairs else min_radius  # keeps the two objects of a pair similar in size
        placement = None
        while placement is None:
            drawn = draw_object(rng, label, radius, colour)
            placement = place_object(rng, drawn, occupied, reserved, MIN_VISIBLE_PAIR if pairs else MIN_VISIBLE)
            if placement is None and radius <= smallest:
                return None
            radius = max(radius * 0.85, smallest)
        position, mask = placement
        occupied |= mask
        placed.append((drawn, position, mask))
    return placed


def _to_image(rng: Generator, planes: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Apply random contrast, brightness and noise, and convert to uint8, shape (size, size, 3); changes its input."""
    contrast, brightness, noise = uniform(rng, 0.88, 1.08), uniform(rng, -0.05, 0.05), uniform(rng, 0.02, 0.08)
    planes -= 0.5
    planes *= contrast
    planes += 0.5 + brightness - noise / 2
    planes += noise * rng.random(planes.shape)
    planes *= 255
    levels = np.rint(np.clip(planes, 0, 255)).astype(np.uint8)
    return np.ascontiguousarray(np.moveaxis(levels, 0, 2))


class Scenes(Sequence[Scene]):
    """A split of scenes. Each scene is rendered when it is accessed; nothing is cached.

    Args:
        split: "train", "val" or "test". No two splits share a scene.
        count: Number of scenes; by default 60,000 for training and 2,000 otherwise.
        objects: Number of objects in each, as in `render`.
        pairs: Render two objects of two classes in each scene.
        tagged: Keep a corner free for a tag.
        tag: What the corner shows, as in `render`.
        seed: Seed of the family of scenes.
        size: Height and width in pixels.
        coloured: Give each object a named colour.

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
        coloured: bool = False,
    ) -> None:
        if split not in COUNTS:
            raise InputError(f"unknown split {split!r}: use one of {', '.join(COUNTS)}")
        self._length = COUNTS[split] if count is None else count
        if not 1 <= self._length <= 1 << 32:
            raise InputError(f"count={count} must be from 1 to 2**32")
        self.objects = _check_options(seed, 0, size, objects, pairs, tagged, tag)
        self.split, self.seed, self.size = split, seed, size
        self.pairs, self.tagged, self.tag, self.coloured = pairs, tagged, tag, coloured

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Scene: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scene]: ...
    def __getitem__(self, index: int | slice) -> Scene | list[Scene]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        return render(
            self.seed, SPLIT_OFFSETS[self.split] + self._check_index(index), size=self.size, objects=self.objects,
            pairs=self.pairs, tagged=self.tagged, tag=self.tag, coloured=self.coloured,
        )  # fmt: skip

    def id(self, index: int) -> str:
        """Name of a scene, which contains all that is needed to render it again."""
        low, high = self.objects
        objects = "pairs" if self.pairs else f"{low}" if low == high else f"{low}to{high}"
        tag = "-" + _TAG_NAMES.get(str(self.tag), f"tag{self.tag}") if self.tagged else ""
        tag += "-coloured" if self.coloured else ""
        return f"{self.split}-{self.seed}-{self.size}-{objects}{tag}-{self._check_index(index):06d}"

    def batch(self, indices: Iterable[int]) -> tuple[Tensor, Tensor]:
        """Render scenes as a batch for a model.

        Args:
            indices: Indices of the scenes.

        Returns:
            Images with values from -1 to 1 (mean and standard deviation 0.5), shape (b, 3, size, size), and
            `Scene.labels`, shape (b, 12); both float32.
        """
        import torch

        scenes = [self[int(i)] for i in indices]
        if not scenes:
            raise InputError("indices is empty: a batch needs at least one scene")
        images = torch.from_numpy(np.stack([scene.image for scene in scenes])).permute(0, 3, 1, 2)
        return images.float().div_(127.5).sub_(1.0).contiguous(), torch.from_numpy(np.stack([s.labels for s in scenes]))

    def _check_index(self, index: int) -> int:
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} is out of range for {self._length} scenes")
        return index % self._length
