"""Sample inputs: photographs, embedded scenes for models of scenes, and a few short texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from vitrail.data import (
    MOVEMENTS,
    SCENE_CLASSES,
    TONES,
    Scene,
    Scenes,
    ask_questions,
    describe_objects,
    draw_recall,
    render_motion,
    render_tones,
)
from vitrail.data.motions import MotionScene
from vitrail.data.tones import ToneScene
from vitrail.models import EMBEDDED_MODELS
from vitrail.web.served_model import ServedModel
from vitrail.web.token_structure import QUESTION

#: Held-out scenes: (id, whether it has two objects, index).
SCENES = (
    ("scene-1", False, 3), ("scene-2", False, 8), ("pair-1", True, 5), ("pair-2", True, 11), ("scene-3", False, 15),
    ("scene-4", False, 21),
)  # fmt: skip
#: Coloured scenes with two objects, for models of prompts, boxes and regions, and their indices.
COLOURED = (("colours-1", 3), ("colours-2", 5), ("colours-3", 11), ("colours-4", 20))
#: Moving scenes, and spectrograms, each with two classes: ids and indices. Samples are in the order of their indices,
#: whatever a check finds on them.
MOTIONS = (("motion-1", 0), ("motion-2", 3), ("motion-3", 6), ("motion-4", 9))
SOUNDS = (("tones-1", 1), ("tones-2", 2), ("tones-3", 5), ("tones-4", 8))
#: Prompts of the embedded language model: tasks, in the order of the data set, and indices.
RECALL = (("lookup", 5), ("mention", 3), ("sum", 2), ("copy", 3))
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

#: Prompts of language models, which the model continues.
PROMPTS = {
    (
        "prompt-1",
        "capital",
    ): "My sister moved from Berlin to Paris last year, and I often visit her there. The "
    "language that most people in her new city speak is",
    ("prompt-2", "story"): "Once upon a time there was a small dragon who was afraid of fire. Every evening, when the "
    "other dragons met at the lake, the small dragon",
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
        prompts: Prompts that fit the image, and one that does not.
    """

    id: str
    title: str
    classes: tuple[str, ...] = ()
    text: str = ""
    credit: str = ""
    prompts: tuple[str, ...] = ()

    def to_json(self, served: ServedModel) -> dict[str, Any]:
        """Convert the sample to JSON; classes are given for models of the scenes only."""
        named = served.loaded.classes or ()
        has_classes = bool(self.classes) and set(self.classes) <= set(named)
        return {
            "id": self.id, "title": self.title, "text": self.text or None,
            "url": None if self.text else f"/api/samples/{self.id}.png?model={served.id}",
            "classes": list(self.classes) if has_classes else None, "credit": self.credit or None,
            "prompts": _prompts_of(self, served),
        }  # fmt: skip


def samples_for(served: ServedModel) -> tuple[SampleInput, ...]:
    """The samples for a model: scenes for a model of scenes, photographs for any other image model."""
    if served.title == "lm-recall":
        drawn = [draw_recall(0, index, task=task, split="test")[0] for task, index in RECALL]
        return tuple(SampleInput(f"recall-{i}", one.task, text=one.text) for i, one in enumerate(drawn, 1))
    if served.kind == "text":
        given = PROMPTS if served.target_kind == "token" else TEXTS
        return tuple(SampleInput(name, title, text=text) for (name, title), text in given.items())
    if served.media == "video":
        return tuple(_sample(name, [MOVEMENTS[m] for m in _motion(name).movements if m is not None])
                     for name, _ in MOTIONS)  # fmt: skip
    if served.media == "sound":
        return tuple(_sample(name, [TONES[k] for k in _sound(name).tones]) for name, _ in SOUNDS)
    if served.title in EMBEDDED_MODELS and served.target_kind != "class":
        return tuple(_coloured_sample(name) for name, _ in COLOURED)
    if not _knows_scenes(served):
        return tuple(SampleInput(name, title, credit=credit) for name, title, credit in PHOTOS)
    scenes = {name: _scene(name, _is_tagged(served)) for name, _, _ in SCENES}
    return tuple(SampleInput(name, " and ".join(scene.names), scene.names) for name, scene in scenes.items())


def _sample(name: str, classes: list[str]) -> SampleInput:
    return SampleInput(name, " and ".join(classes), tuple(classes))


def _coloured_sample(name: str) -> SampleInput:
    scene = _coloured(name)
    shapes = tuple(f"a {shape}" for shape in scene.names)
    described = tuple(str(caption) for caption in describe_objects(scene))
    absent = next(f"a {shape}" for shape in SCENE_CLASSES if shape not in scene.names)
    return SampleInput(name, " and ".join(scene.names), scene.names, prompts=(*shapes, *described, absent))


def _prompts_of(sample: SampleInput, served: ServedModel) -> list[str]:
    """Prompts that fit an image, or questions that have one answer."""
    if served.target_kind == "prompt":
        return list(sample.prompts)
    if served.processor is None:
        return []
    if sample.id not in dict(COLOURED):
        return [QUESTION]
    asked = {one.kind: one.text for one in ask_questions(_coloured(sample.id))}
    return [sentence_case(asked[kind]) for kind in ("colour", "list", "shape", "relation") if kind in asked]


def sentence_case(question: str) -> str:
    """A question as one writes it.

    Example:
        >>> sentence_case("which colour has the house ?")
        'Which colour has the house?'
    """
    return question[:1].upper() + question[1:].replace(" ?", "?")


def sample_pixels(sample: str, served: ServedModel) -> np.ndarray[Any, Any] | None:
    """The pixels of a sample image as bytes of shape (height, width, 3), or None if it does not exist.

    Any sample image can be used with any image model. Videos have shape (frames, height, width, 3), spectrograms
    (time, bins).
    """
    if served.kind == "text":
        return None
    if served.media == "video":
        return _motion(sample).frames if sample in dict(MOTIONS) else None
    if served.media == "sound":
        return _sound(sample).levels if sample in dict(SOUNDS) else None
    if sample in dict(COLOURED):
        return _coloured(sample).image
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


@lru_cache(maxsize=len(COLOURED))
def _coloured(name: str) -> Scene:
    return Scenes("test", pairs=True, coloured=True)[dict(COLOURED)[name]]


@lru_cache(maxsize=len(MOTIONS))
def _motion(name: str) -> MotionScene:
    return render_motion(0, dict(MOTIONS)[name], pairs=True, split="test")


@lru_cache(maxsize=len(SOUNDS))
def _sound(name: str) -> ToneScene:
    return render_tones(0, dict(SOUNDS)[name], pairs=True, split="test")


@lru_cache(maxsize=len(PHOTOS))
def _photo(name: str) -> np.ndarray[Any, Any]:
    from PIL import Image

    with files("vitrail.web").joinpath("photos", f"{name}.jpg").open("rb") as file, Image.open(file) as image:
        return np.asarray(image.convert("RGB"))
