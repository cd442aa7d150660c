"""FunnyBirds: classes, scenes and interventions as parameters [hesse2023funnybirds].

A class is a choice of one variant for each of five parts. A scene is a dictionary of the parameters of its camera,
light, parts and background objects, as in the JSON files of the authors. An intervention is a scene with other
parameters.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

from vitrail.errors import OptionError

#: Parts that make the classes, in the order of the authors' tables.
PARTS = ("beak", "eye", "foot", "tail", "wing")
#: Variants of each part.
VARIANTS: dict[str, list[dict[str, str]]] = {
    "beak": [{"model": f"beak0{i}.glb", "color": "yellow"} for i in (1, 2, 3, 4)],
    "eye": [{"model": f"eye0{i}.glb"} for i in (1, 2, 3)],
    "foot": [{"model": f"foot0{i}.glb"} for i in (1, 2, 3, 4)],
    "tail": [{"model": f"tail0{i}.glb", "color": color} for color in ("red", "green", "blue") for i in (1, 2, 3)],
    "wing": [{"model": f"wing0{i}.glb", "color": color} for color in ("red", "green", "blue") for i in (1, 2)],
}
#: Parameters of background objects: lists of one value per object, each followed by a comma.
BACKGROUND = (
    "bg_objects", "bg_radius", "bg_pitch", "bg_roll", "bg_scale_x", "bg_scale_y", "bg_scale_z",
    "bg_rot_x", "bg_rot_y", "bg_rot_z", "bg_color",
)  # fmt: skip
#: Value of the model of a part that is left out.
ABSENT = "placeholder"
#: Most background objects of a scene.
MAX_OBJECTS = 34

#: Variant of each part.
BirdClass = dict[str, int]
#: Parameters of a scene.
BirdScene = dict[str, Any]
#: An intervention: the number of a scene, and the parts that are kept or the background object that is left out.
Intervention = tuple[int, tuple[str, ...] | int]


def draw_bird_classes(count: int = 50, seed: int = 0) -> list[BirdClass]:
    """Draw different classes.

    Args:
        count: Number of classes.
        seed: Seed of the draw.

    Example:
        >>> draw_bird_classes(2)
        [{'beak': 3, 'eye': 1, 'foot': 0, 'tail': 4, 'wing': 4}, {'beak': 3, 'eye': 1, 'foot': 2, 'tail': 7, 'wing': 2}]
    """
    possible = math.prod(len(variants) for variants in VARIANTS.values())
    if not 1 <= count <= possible:
        raise OptionError(f"count={count} must be from 1 to {possible}, the number of combinations of parts")
    generator = random.Random(seed)  # noqa: S311 -- not for secrets
    classes: list[BirdClass] = []
    while len(classes) < count:
        drawn = {part: generator.randrange(len(VARIANTS[part])) for part in PARTS}
        if drawn not in classes:
            classes.append(drawn)
    return classes


def draw_bird_scenes(classes: Sequence[BirdClass], per_class: int, *, removed: bool, seed: int = 0) -> list[BirdScene]:
    """Draw scenes of every class with the distributions of the paper.

    Camera, light and up to 34 background objects are random. In half of the training scenes a random number of parts
    is left out, so that images of interventions are like images of the training set.

    Args:
        classes: The classes.
        per_class: Scenes of each.
        removed: Whether half of the scenes leave parts out, as in training.
        seed: Seed of the draw.

    Example:
        >>> scene = draw_bird_scenes(draw_bird_classes(), 1, removed=False)[7]
        >>> scene["class_idx"], scene["camera_distance"], scene["tail_model"], len(scene["bg_color"].split(",")) - 1
        (7, 311, 'tail01.glb', 2)
    """
    generator = random.Random(seed)  # noqa: S311 -- not for secrets
    scenes = []
    for index, variants in enumerate(classes):
        for _ in range(per_class):
            scene: BirdScene = {"class_idx": index, "camera_distance": generator.randint(200, 400)}
            for name in ("camera_pitch", "camera_roll"):
                scene[name] = generator.uniform(0, 2 * math.pi)
            scene |= {"light_distance": 300}
            for name in ("light_pitch", "light_roll"):
                scene[name] = generator.uniform(0, 2 * math.pi)
            for part in PARTS:
                scene |= {f"{part}_{key}": value for key, value in VARIANTS[part][variants[part]].items()}
            if removed and generator.random() < 0.5:
                scene = without_parts(scene, generator.sample(PARTS, generator.randint(0, len(PARTS))))
            scenes.append(scene | _draw_background(generator))
    return scenes


def _draw_background(generator: random.Random) -> BirdScene:
    """Parameters of a random number of background objects."""
    count = generator.randint(0, MAX_OBJECTS)

    def listed(draw: Any) -> str:
        return "".join(f"{draw()}," for _ in range(count))

    def angle() -> float:
        return generator.uniform(0, 2 * math.pi)

    def size() -> int:
        return generator.randint(5, 20)

    draws = [lambda: generator.randint(0, 4), lambda: generator.randint(100, 200), angle, angle, size, size, size,
             angle, angle, angle, lambda: generator.choice(("red", "green", "blue", "yellow"))]  # fmt: skip
    return {name: listed(draw) for name, draw in zip(BACKGROUND, draws, strict=True)}


def without_parts(scene: BirdScene, parts: Iterable[str]) -> BirdScene:
    """The scene with some parts left out.

    Raises:
        OptionError: A name is not a part.
    """
    unknown = sorted(set(parts := tuple(parts)) - set(PARTS))
    if unknown:
        raise OptionError(f"unknown parts {', '.join(unknown)}; choose from {', '.join(PARTS)}")
    left_out = {key: ABSENT for key in scene if key.partition("_")[0] in parts}
    return scene | left_out


def without_object(scene: BirdScene, index: int) -> BirdScene:
    """The scene without one of its background objects.

    Raises:
        OptionError: The scene has fewer objects.
    """
    count = count_objects(scene)
    if not 0 <= index < count:
        raise OptionError(f"object {index} does not exist: the scene has {count} background objects")
    changed = {}
    for name in BACKGROUND:
        values = split(scene[name])
        changed[name] = "".join(f"{value}," for i, value in enumerate(values) if i != index)
    return scene | changed


def split(values: str) -> list[str]:
    """Values of a comma-separated list, with or without a comma at the end."""
    return [value for value in values.split(",") if value]


def count_objects(scene: BirdScene) -> int:
    """Number of background objects."""
    return len(split(scene["bg_objects"]))


def part_subsets() -> list[tuple[str, ...]]:
    """All 32 sets of parts, the empty set first and all parts last.

    Example:
        >>> part_subsets()[6], len(part_subsets())
        (('beak', 'eye'), 32)
    """
    return [kept for size in range(len(PARTS) + 1) for kept in itertools.combinations(PARTS, size)]


def list_interventions(scenes: Sequence[BirdScene]) -> list[Intervention]:
    """All interventions of the protocols: each set of parts of each scene, then each scene without each object."""
    kept: list[Intervention] = [(i, parts) for i in range(len(scenes)) for parts in part_subsets()]
    return kept + [(i, k) for i, scene in enumerate(scenes) for k in range(count_objects(scene))]


def intervene(scenes: Sequence[BirdScene], intervention: Intervention) -> BirdScene:
    """The scene of an intervention."""
    index, change = intervention
    if isinstance(change, int):
        return without_object(scenes[index], change)
    return without_parts(scenes[index], set(PARTS) - set(change))


def present_parts(scene: BirdScene) -> BirdClass:
    """Variant of each part that is present in a scene."""
    found = {}
    for part in PARTS:
        variant = {key.partition("_")[2]: value for key, value in scene.items() if key.startswith(f"{part}_")}
        if variant in VARIANTS[part]:
            found[part] = VARIANTS[part].index(variant)
    return found


def possible_classes(scene: BirdScene, classes: Sequence[BirdClass]) -> list[int]:
    """Classes that agree with all parts present in a scene; training shares the target equally among them."""
    present = present_parts(scene).items()
    return [index for index, variants in enumerate(classes) if present <= variants.items()]
