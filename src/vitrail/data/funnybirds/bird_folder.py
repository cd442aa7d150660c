"""The folder of FunnyBirds: scenes, images, part maps and interventions in the layout of the authors' release."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.funnybirds.birds import (
    MAX_OBJECTS,
    PARTS,
    VARIANTS,
    BirdClass,
    BirdScene,
    Intervention,
    count_objects,
)
from vitrail.data.funnybirds.labels import FIRST_OBJECT, LABELS
from vitrail.data.sample import BaseDataset, Sample
from vitrail.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

#: Colour of each label in a part map.
PART_COLOURS: dict[int, tuple[int, int, int]] = {
    LABELS[name]: colour
    for name, colour in {
        "body": (170, 170, 170), "beak": (255, 255, 0), "eye01": (255, 255, 253), "eye02": (255, 255, 254),
        "foot01": (255, 0, 1), "foot02": (255, 0, 2), "tail": (0, 0, 255), "wing01": (0, 255, 1), "wing02": (0, 255, 2),
    }.items()
} | {FIRST_OBJECT + i: (204, 204, 204 + i) for i in range(MAX_OBJECTS)}  # fmt: skip


class FunnyBirds(BaseDataset):
    """A split of FunnyBirds in the layout of the authors.

    The folder has ``classes.json``, ``dataset_<split>.json``, images in ``<split>/<class>/NNNNNN.png``, part maps in
    ``<split>_part_map``, and for the protocols ``<split>_interventions``. `BirdRenderer` makes images of the same
    scenes; `save_birds` writes them in this layout.

    Args:
        root: The folder.
        split: "train" or "test".

    Raises:
        DataError: A file is missing or does not fit.
    """

    name = "funnybirds"

    def __init__(self, root: str | Path, split: str = "test") -> None:
        self.root, self.split = Path(root), split
        content: list[Any] = []
        for name in ("classes.json", f"dataset_{split}.json"):
            path = self.root / name
            if not path.is_file():
                raise DataError(
                    f"{path} is missing: FunnyBirds has classes.json and dataset_<split>.json in its folder"
                )
            content.append(json.loads(path.read_text(encoding="utf-8")))
        ordered = sorted(content[0], key=lambda entry: int(entry["class_idx"]))
        self.bird_classes: list[BirdClass] = [entry["parts"] for entry in ordered]
        self.scenes: list[BirdScene] = content[1]
        for index, own in enumerate(self.bird_classes):
            if set(own) != set(PARTS) or not all(own[part] in range(len(VARIANTS[part])) for part in PARTS):
                raise DataError(
                    f"class {index} of {self.root / 'classes.json'} is {own}: expected a variant of each part"
                )
        super().__init__(f"{split}-{index:06d}" for index in range(len(self.scenes)))

    @property
    def classes(self) -> tuple[str, ...]:
        """The variants of each class, such as ``beak 3, eye 1, foot 0, tail 4, wing 3``."""
        return tuple(", ".join(f"{part} {own[part]}" for part in PARTS) for own in self.bird_classes)

    def _read(self, index: int) -> Sample:
        label, mask = int(self.scenes[index]["class_idx"]), None
        if (self.root / f"{self.split}_part_map").is_dir():
            labels = self.part_map(index)
            mask = ((labels >= 1) & (labels < FIRST_OBJECT)).astype(np.uint8)
        return Sample(self.ids[index], self._image(self.split, index, ".png"), label=label, mask=mask)

    def part_map(self, index: int) -> NDArray[np.uint8]:
        """Labels of an image's pixels, as `BirdRenderer` gives them, shape (height, width); 0 for other colours."""
        image = np.asarray(self._image(f"{self.split}_part_map", index, ".png")).astype(np.int64)
        codes = (image[..., 0] << 16) | (image[..., 1] << 8) | image[..., 2]
        labels = np.zeros(codes.shape, np.uint8)
        for label, (red, green, blue) in PART_COLOURS.items():
            labels[codes == (red << 16 | green << 8 | blue)] = label
        return labels

    def intervention(self, index: int, change: Iterable[str] | int) -> Image:
        """The image of a bird with only some of its parts, or without one of its background objects."""
        ending = f"background_interventions/{change}" if isinstance(change, int) else f"body_{'_'.join(sorted(change))}"
        return self._image(f"{self.split}_interventions", index, f"/{ending}.png")

    def _image(self, folder: str, index: int, ending: str) -> Image:
        path = self.root / folder / str(self.scenes[index]["class_idx"]) / f"{index:06d}{ending}"
        if not path.is_file():
            raise DataError(f"{path} is missing: {folder} of FunnyBirds is not complete")
        from PIL import Image

        with Image.open(path) as image:
            return image.convert("RGB")


def save_birds(
    root: str | Path, split: str, classes: Sequence[BirdClass], scenes: Sequence[BirdScene],
    images: NDArray[np.uint8], labels: NDArray[np.uint8],
    interventions: dict[Intervention, NDArray[np.uint8]] | None = None,
) -> None:  # fmt: skip
    """Write rendered scenes in the layout that `FunnyBirds` reads.

    Args:
        root: The folder.
        split: "train" or "test".
        classes: The classes.
        scenes: The scenes.
        images: Their images, shape (N, height, width, 3).
        labels: Their part maps, shape (N, height, width).
        interventions: Images of scenes by index and what is changed: the parts that are kept, or the number of the
            background object that is left out.

    Raises:
        DataError: A background object does not exist.
    """
    from PIL import Image

    folder = Path(root)
    palette = np.zeros((256, 3), np.uint8)
    for label, colour in PART_COLOURS.items():
        palette[label] = colour

    def save(values: NDArray[np.uint8], kind: str, index: int, ending: str) -> None:
        path = folder / kind / str(scenes[index]["class_idx"]) / f"{index:06d}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path)

    for index in range(len(scenes)):
        save(images[index], split, index, ".png")
        save(palette[labels[index]], f"{split}_part_map", index, ".png")
    for (index, change), image in (interventions or {}).items():
        if isinstance(change, int) and not 0 <= change < count_objects(scenes[index]):
            raise DataError(f"scene {index} has {count_objects(scenes[index])} background objects, none is {change}")
        ending = f"background_interventions/{change}" if isinstance(change, int) else f"body_{'_'.join(sorted(change))}"
        save(image, f"{split}_interventions", index, f"/{ending}.png")
    described = [{"class_idx": index, "parts": own} for index, own in enumerate(classes)]
    for name, content in (("classes", described), ("parts", VARIANTS), (f"dataset_{split}", list(scenes))):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
