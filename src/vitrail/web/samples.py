"""Sample inputs: photographs, embedded scenes for models of scenes, and a few short texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from vitrail.data import SCENE_CLASSES, Scene, Scenes
from vitrail.web.model import ServedModel

#: Held-out scenes: (id, whether it has two objects, index).
SCENES = (
    ("scene-1", False, 3), ("scene-2", False, 8), ("pair-1", True, 5), ("pair-2", True, 11), ("scene-3", False, 15),
    ("scene-4", False, 21),
)  # fmt: skip
#: Photographs: (id, title, credit). See ``photos/CREDITS.md``.
PHOTOS = (
    ("cat", "cat", "Stéfan van der Walt, CC0"),
    ("cat-and-coffee", "cat and cup", "Stéfan van der Walt and Rachel Michetti, CC0"),
    ("coffee", "cup of espresso", "Rachel Michetti, CC0"),
    ("rocket", "rocket", "SpaceX, public domain"),
)
#: Long enough to be checked: at least 20 words.
TEXTS = {
    ("text-1", "positive"): "A superb film with a lovely story, actors who seem to enjoy every scene of it, and music "
    "that stays with you for days.",
    ("text-2", "negative"): "The plot is tedious, the dialogue dreadful, and half an hour in I was looking at my "
    "watch; I nearly left before the end.",
    ("text-3", "mixed"): "Not a bad idea, and the first scenes in the city are fun, but then the actors look bored and "
    "the camera never finds the light.",
    ("text-4", "negated"): "After the trailer and all those reviews I expected the worst, and I have to say that I was "
    "not disappointed in the least.",
}


@dataclass(frozen=True)
class SampleInput:
    """A sample image or text.

    Attributes:
        id: Its id in requests.
        title: Its display name.
        classes: The classes in a scene.
        text: The text, or "" for an image.
        credit: Author and licence of a photograph.
    """

    id: str
    title: str
    classes: tuple[str, ...] = ()
    text: str = ""
    credit: str = ""

    def to_json(self, served: ServedModel) -> dict[str, Any]:
        """Convert the sample to JSON; classes are given for models of the scenes only."""
        has_classes = _knows_scenes(served) and bool(self.classes)
        return {
            "id": self.id, "title": self.title, "text": self.text or None,
            "url": None if self.text else f"/api/samples/{self.id}.png?model={served.id}",
            "classes": list(self.classes) if has_classes else None, "credit": self.credit or None,
        }  # fmt: skip


def samples_for(served: ServedModel) -> tuple[SampleInput, ...]:
    """The samples for a model: scenes for a model of scenes, photographs for any other image model."""
    if served.kind == "text":
        return tuple(SampleInput(name, title, text=text) for (name, title), text in TEXTS.items())
    if not _knows_scenes(served):
        return tuple(SampleInput(name, title, credit=credit) for name, title, credit in PHOTOS)
    scenes = {name: _scene(name, _is_tagged(served)) for name, _, _ in SCENES}
    return tuple(SampleInput(name, " and ".join(scene.names), scene.names) for name, scene in scenes.items())


def sample_pixels(sample: str, served: ServedModel) -> np.ndarray[Any, Any] | None:
    """The pixels of a sample image as bytes of shape (height, width, 3), or None if it does not exist.

    Any sample can be used with any image model.
    """
    if served.kind == "text":
        return None
    if sample in {name for name, _, _ in PHOTOS}:
        return _photo(sample)
    if sample not in {name for name, _, _ in SCENES}:
        return None
    return _scene(sample, _is_tagged(served)).image


def _knows_scenes(served: ServedModel) -> bool:
    return served.loaded.classes == SCENE_CLASSES


def _is_tagged(served: ServedModel) -> bool:
    return served.title == "scenes-tagged"


@lru_cache(maxsize=32)
def _scene(name: str, tagged: bool) -> Scene:
    _, pairs, index = next(entry for entry in SCENES if entry[0] == name)
    return Scenes("test", objects=1, pairs=pairs, tagged=tagged)[index]


@lru_cache(maxsize=len(PHOTOS))
def _photo(name: str) -> np.ndarray[Any, Any]:
    from PIL import Image

    with files("vitrail.web").joinpath("photos", f"{name}.jpg").open("rb") as file, Image.open(file) as image:
        return np.asarray(image.convert("RGB"))
