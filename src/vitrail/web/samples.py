"""Things to try the page on: embedded scenes, two of them pairs, and a few short texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from vitrail.data.scenes import CLASSES, Scene, Scenes
from vitrail.web.model import ServedModel

#: Held-out scenes: (id, pairs or single objects, index).
SCENES = (
    ("scene-1", False, 3), ("scene-2", False, 8), ("pair-1", True, 5), ("pair-2", True, 11), ("scene-3", False, 15),
    ("scene-4", False, 21),
)  # fmt: skip
TEXTS = (
    ("text-1", "praise", "A superb film with a lovely story and music that stays with you for days."),
    ("text-2", "blame", "The plot is tedious, the dialogue dreadful, and I nearly left before the end."),
    ("text-3", "both", "Not a bad idea, but the actors look bored and the camera never finds the light."),
    ("text-4", "negated", "I expected the worst and was not disappointed in the least."),
)


@dataclass(frozen=True)
class SampleInput:
    """Something to try.

    Attributes:
        id: Its name in requests.
        title: Its name for people.
        classes: What is in it, where that is known.
        text: The text, or "" for a scene.
    """

    id: str
    title: str
    classes: tuple[str, ...] = ()
    text: str = ""

    def card(self, served: ServedModel) -> dict[str, Any]:
        """What clients are told of it."""
        known = served.about.classes == CLASSES
        return {
            "id": self.id, "title": self.title, "text": self.text or None,
            "url": None if self.text else f"/api/samples/{self.id}.png?model={served.id}",
            "classes": list(self.classes) if known and self.classes else None,
        }  # fmt: skip


def samples_of(served: ServedModel) -> tuple[SampleInput, ...]:
    """What can be tried on a model."""
    if served.kind == "text":
        return tuple(SampleInput(name, title, text=text) for name, title, text in TEXTS)
    return tuple(
        SampleInput(name, " and ".join(_scene(name, _tagged(served)).names), _scene(name, _tagged(served)).names)
        for name, _, _ in SCENES
    )


def pixels_of(sample: str, served: ServedModel) -> np.ndarray[Any, Any] | None:
    """A scene's bytes, shape (height, width, 3), or None if there is no such scene."""
    if served.kind == "text" or sample not in {name for name, _, _ in SCENES}:
        return None
    return _scene(sample, _tagged(served)).image


def _tagged(served: ServedModel) -> bool:
    return served.title == "scenes-tagged"


@lru_cache(maxsize=32)
def _scene(name: str, tagged: bool) -> Scene:
    _, pairs, index = next(line for line in SCENES if line[0] == name)
    return Scenes("test", objects=1, pairs=pairs, tagged=tagged)[index]
