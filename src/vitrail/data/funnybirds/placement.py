"""Place the meshes of scenes: which mesh stands where, in which colour and with which label."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.funnybirds.birds import ABSENT, BACKGROUND, PARTS, VARIANTS, BirdScene, split
from vitrail.data.funnybirds.glb import read_glb
from vitrail.data.funnybirds.labels import FIRST_OBJECT, LABELS
from vitrail.data.funnybirds.primitives import (
    Mesh,
    join,
    make_box,
    make_capsule,
    make_cylinder,
    make_sphere,
)
from vitrail.errors import DataError

#: Colours as the scene page names them; they are used as linear values.
COLOURS = {
    "red": (1.0, 0.0, 0.0), "green": (0.0, 128 / 255, 0.0), "blue": (0.0, 0.0, 1.0), "yellow": (1.0, 1.0, 0.0),
    "grey": (170 / 255,) * 3, "white": (1.0,) * 3, "black": (0.0,) * 3,
}  # fmt: skip
#: Part, label, scale, rotation and position of each mesh of a bird; the rotations are Euler angles in the order xyz.
PLACES = (
    ("body", "body", (20, 20, 20), (0, 0, 0), (0, 0, 0)),
    ("beak", "beak", (8, 8, 8), (0, 3.14, 0), (0, 35, 60)),
    ("foot", "foot01", (8, 8, 8), (0, 3.14, 0.01), (-15, -10, 0)),
    ("foot", "foot02", (8, 8, 8), (0, 3.14, -0.01), (15, -10, 0)),
    ("eye", "eye01", (5, 5, 5), (0, -0.2, 0), (-10, 45, 50)),
    ("eye", "eye02", (5, 5, 5), (0, 0.2, 0), (10, 45, 50)),
    ("tail", "tail", (15, 15, 15), (0, 0, 0), (0, -2, -47)),
    ("wing", "wing01", (35, -35, 35), (-0.3, 0, 0), (-20, 5, 10)),
    ("wing", "wing02", (-35, -35, 35), (-0.3, 0, 0), (20, 5, 10)),
)
BODY_MODEL = "bird01.glb"
#: Name of the node of an eye that is its pupil.
PUPIL = "Sphere.001"
#: Sizes of background objects, which are also numbers of segments.
SIZES = range(5, 21)

#: Key of a mesh: the file of a part, whether it is a pupil; or the kind of a background object and what shapes it.
MeshKey = tuple[str | int, ...]


class Instances(NamedTuple):
    """Meshes placed in a batch of scenes.

    Attributes:
        mesh: Number of the mesh, shape (N,).
        scene: Number of the scene, shape (N,).
        linear: Matrix of positions, shape (N, 3, 3).
        normal: Matrix of normals, shape (N, 3, 3).
        position: Position of the origin of the mesh, shape (N, 3).
        stretch: Movement of vertices with a stretch of 1, shape (N, 3).
        colour: Linear colour, shape (N, 3).
        label: Label in the part map, shape (N,).
    """

    mesh: Tensor
    scene: Tensor
    linear: Tensor
    normal: Tensor
    position: Tensor
    stretch: Tensor
    colour: Tensor
    label: Tensor


@cache
def read_meshes(folder: Path) -> dict[MeshKey, Mesh]:
    """All meshes by key: those of the part models in a folder, and those of background objects."""
    meshes: dict[MeshKey, Mesh] = {}
    files = [(BODY_MODEL, folder / BODY_MODEL)]
    for part in PARTS:
        files += [(name, folder / part / name) for name in sorted({variant["model"] for variant in VARIANTS[part]})]
    for name, path in files:
        if not path.is_file():
            raise DataError(f"{path} is missing: {folder} must have {BODY_MODEL} and the folders {', '.join(PARTS)}")
        nodes: dict[MeshKey, list[Mesh]] = {}
        for node in read_glb(path):
            key = (name, int(name.startswith("eye") and node.name == PUPIL))
            own = Mesh(node.positions, node.normals, node.faces, np.zeros(len(node.positions)))
            nodes.setdefault(key, []).append(own)
        meshes |= {key: join(parts) for key, parts in nodes.items()}
    meshes[0, 0, 0] = make_box()
    for first in SIZES:
        meshes |= {(1, first, 0): make_cylinder(0, 1, first), (4, first, 0): make_capsule(first)}
        for second in SIZES:
            meshes |= {(2, first, second): make_sphere(first, second), (3, first, second): make_cylinder(first, second)}
    return meshes


@cache
def bird_matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matrices of positions and of normals, and positions, of the meshes of a bird, shapes (9, 3, 3) and (9, 3)."""
    scale, angles, position = (np.array([place[i] for place in PLACES], np.float64) for i in (2, 3, 4))
    turned = rotate(angles)
    return turned * scale[:, None], turned / scale[:, None], position


def rotate(angles: np.ndarray) -> np.ndarray:
    """Rotations by Euler angles in the order xyz, shape (N, 3) to (N, 3, 3)."""
    (a, b, c), (d, e, f) = np.cos(angles).T, np.sin(angles).T
    return np.stack([
        b * c, -b * f, e,
        a * f + d * e * c, a * c - d * e * f, -d * b,
        d * f - a * e * c, d * c + a * e * f, a * b,
    ], 1).reshape(-1, 3, 3)  # fmt: skip


def on_sphere(radius: np.ndarray, pitch: np.ndarray, roll: np.ndarray) -> np.ndarray:
    """Points of the z axis turned by roll around x, then by pitch around y, shape (N, 3)."""
    return np.stack(
        [radius * np.sin(pitch) * np.cos(roll), -radius * np.sin(roll), radius * np.cos(pitch) * np.cos(roll)], 1
    )


def place_scenes(scenes: Sequence[BirdScene], numbers: dict[MeshKey, int]) -> Instances:
    """Place the meshes of scenes."""
    birds: list[tuple[int, int, int, tuple[float, ...], int]] = []  # mesh, scene, place, colour, label
    lists: dict[str, list[str]] = {name: [] for name in BACKGROUND}
    owner: list[int] = []
    for index, scene in enumerate(scenes):
        for place, (part, label, *_) in enumerate(PLACES):
            model = BODY_MODEL if part == "body" else scene[f"{part}_model"]
            if model not in (ABSENT, "") and (model, 0) not in numbers:
                raise DataError(
                    f"{part}_model is {model!r}: use a .glb file of that part, or {ABSENT!r} to leave it out"
                )
            base = {"body": "grey", "eye": "white", "foot": "yellow"}.get(part) or scene[f"{part}_color"]
            for pupil, colour in ((0, base), (1, "black")):
                if (model, pupil) in numbers:
                    birds.append((numbers[model, pupil], index, place, COLOURS[colour], LABELS[label]))
        for name, values in lists.items():
            values.extend(split(scene[name]))
        owner += [index] * (len(lists["bg_objects"]) - len(owner))
    placed = [values[[bird[2] for bird in birds]] for values in bird_matrices()]
    meshes, numbered, colours, labels = (np.array([bird[i] for bird in birds]) for i in (0, 1, 3, 4))
    own: list[np.ndarray] = [meshes, numbered, *placed, np.zeros_like(placed[2]), colours, labels]
    if owner:
        others = _place_objects(lists, np.array(owner), numbers)
        own = [np.concatenate(pair) for pair in zip(own, others, strict=True)]
    tensors = (torch.from_numpy(values) for values in own)
    return Instances(*(values.float() if values.is_floating_point() else values for values in tensors))


def _place_objects(lists: dict[str, list[str]], owner: np.ndarray, numbers: dict[MeshKey, int]) -> list[np.ndarray]:
    """Place background objects: the arrays of `Instances`."""
    value = {name: np.array(values, np.float64) for name, values in lists.items() if name != "bg_color"}
    kind = value["bg_objects"].astype(int)
    x, y, z = (value[f"bg_scale_{axis}"] for axis in "xyz")
    one = np.ones_like(x)
    # What shapes the mesh and what scales it: the sizes are arguments of different meaning for each kind.
    integer = [np.round(size).astype(int) for size in (x, y, z)]
    keys = np.stack([kind, np.select([kind == 1, kind == 2, kind == 3, kind == 4],
                                     [integer[2], integer[1], integer[0], integer[2]]),
                     np.select([kind == 2, kind == 3], [integer[2], integer[1]])], 1)  # fmt: skip
    keys[kind == 0, 1:] = 0
    scale = np.select(
        [(kind == k)[:, None] for k in range(5)],
        [np.stack(sizes, 1) for sizes in ((x, y, z), (x, y, x), (x, x, x), (one, z, one), (x, x, x))],
    )
    turned = rotate(np.stack([value[f"bg_rot_{axis}"] for axis in "xyz"], 1))
    order = np.arange(len(owner)) - np.searchsorted(owner, owner)
    unknown = [tuple(key) for key in keys.tolist() if tuple(key) not in numbers]
    if unknown:
        raise DataError(
            f"there is no background object of kind {unknown[0][0]} with sizes {unknown[0][1:]}: "
            f"kinds are 0 to 4, sizes {SIZES[0]} to {SIZES[-1]}"
        )
    return [
        np.array([numbers[tuple(key)] for key in keys.tolist()]),
        owner,
        turned * scale[:, None],
        turned / scale[:, None],
        on_sphere(value["bg_radius"], value["bg_pitch"], value["bg_roll"]),
        turned[:, :, 1] * np.where(kind == 4, y, 0)[:, None],
        np.array([COLOURS[name] for name in lists["bg_color"]]),
        FIRST_OBJECT + order,
    ]
