"""Sample inputs: embedded scenes, two of them with two objects, and a few short texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from vitrail.data.scenes import CLASSES, Scene, Scenes
from vitrail.web.model import ServedModel

#: Held-out scenes: (id, whether it has two objects, index).
SCENES = (
    ("scene-1", False, 3), ("scene-2", False, 8), ("pair-1", True, 5), ("pair-2", True, 11), ("scene-3", False, 15),
    ("scene-4", False, 21),
)  # fmt: skip
TEXTS = (
    ("text-1", "positive", "A superb film with a lovely story and music that stays with you for days."),
    ("text-2", "negative", "The plot is tedious, the dialogue dreadful, and I nearly left before the end."),
    ("text-3", "mixed", "Not a bad idea, but the actors look bored and the camera never finds the light."),
    ("text-4", "negated", "I expected the worst and was not disappointed in the least."),
)


@dataclass(frozen=True)
class SampleInput:
    """A sample image or text.

    Attributes:
        id: Its id in requests.
        title: Its display name.
        classes: The classes in a scene.
        text: The text, or "" for a scene.
    """

    id: str
    title: str
    classes: tuple[str, ...] = ()
    text: str = ""

    def to_json(self, served: ServedModel) -> dict[str, Any]:
        """Convert the sample to JSON; classes are given for models of the scenes only."""
        has_classes = served.loaded.classes == CLASSES and bool(self.classes)
        return {
            "id": self.id, "title": self.title, "text": self.text or None,
            "url": None if self.text else f"/api/samples/{self.id}.png?model={served.id}",
            "classes": list(self.classes) if has_classes else None,
        }  # fmt: skip


def samples_for(served: ServedModel) -> tuple[SampleInput, ...]:
    """The samples for a model."""
    if served.kind == "text":
        return tuple(SampleInput(name, title, text=text) for name, title, text in TEXTS)
    scenes = {name: _scene(name, _is_tagged(served)) for name, _, _ in SCENES}
    return tuple(SampleInput(name, " and ".join(scene.names), scene.names) for name, scene in scenes.items())


def sample_pixels(sample: str, served: ServedModel) -> np.ndarray[Any, Any] | None:
    """The pixels of a scene as bytes of shape (height, width, 3), or None if it does not exist."""
    if served.kind == "text" or sample not in {name for name, _, _ in SCENES}:
        return None
    return _scene(sample, _is_tagged(served)).image


def _is_tagged(served: ServedModel) -> bool:
    return served.title == "scenes-tagged"


@lru_cache(maxsize=32)
def _scene(name: str, tagged: bool) -> Scene:
    _, pairs, index = next(entry for entry in SCENES if entry[0] == name)
    return Scenes("test", objects=1, pairs=pairs, tagged=tagged)[index]
