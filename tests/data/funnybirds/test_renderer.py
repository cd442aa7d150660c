"""The renderer against a ray caster: every sample tests every triangle."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.funnybirds import renderer as renderer_module
from vitrail.data.funnybirds.birds import (
    PARTS,
    VARIANTS,
    count_objects,
    draw_bird_classes,
    draw_bird_scenes,
    possible_classes,
    present_parts,
    without_object,
    without_parts,
)
from vitrail.data.funnybirds.glb import read_glb
from vitrail.data.funnybirds.labels import FIRST_OBJECT, LABELS
from vitrail.data.funnybirds.placement import place_scenes, read_meshes
from vitrail.data.funnybirds.primitives import make_capsule, make_cylinder, make_sphere
from vitrail.data.funnybirds.renderer import BirdRenderer
from vitrail.errors import DataError, OptionError

CLASSES = draw_bird_classes(6)
SIZE = 16


def write_cube(path: Path, names: tuple[str, ...] = ("Cube",), scale: tuple[float, ...] = (1, 1, 1)) -> None:
    """A .glb file with a cube of edge 2 for each name; each stands 0.5 in front of the one before it."""
    corners = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float32)
    sides = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    positions = np.concatenate([corners[list(side)] for side in sides])
    normals = np.repeat([(-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1)], 4, axis=0)
    faces = np.concatenate([np.array([(0, 1, 2), (0, 2, 3)]) + 4 * i for i in range(6)]).astype(np.uint16)
    chunks = [positions.tobytes(), normals.astype(np.float32).tobytes(), faces.tobytes()]
    starts = np.cumsum([0, *map(len, chunks)])
    content = {
        "asset": {"version": "2.0"}, "scenes": [{"nodes": list(range(len(names)))}],
        "nodes": [{"name": name, "mesh": 0, "scale": list(scale), "translation": [0, 0, 0.5 * i]}
                  for i, name in enumerate(names)],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0, "NORMAL": 1}, "indices": 2}]}],
        "bufferViews": [{"buffer": 0, "byteOffset": int(s), "byteLength": len(c)}
                        for s, c in zip(starts, chunks, strict=False)],
        "accessors": [
            {"bufferView": 0, "componentType": 5126, "count": 24, "type": "VEC3"},
            {"bufferView": 1, "componentType": 5126, "count": 24, "type": "VEC3"},
            {"bufferView": 2, "componentType": 5123, "count": 36, "type": "SCALAR"},
        ],
    }  # fmt: skip
    text = json.dumps(content).encode()
    text += b" " * (-len(text) % 4)
    binary = b"".join(chunks)
    head = struct.pack("<4sII", b"glTF", 2, 12 + 8 + len(text) + 8 + len(binary))
    data = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(binary), b"BIN\0") + binary
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + data)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Part models that are cubes."""
    folder = tmp_path_factory.mktemp("parts")
    write_cube(folder / "bird01.glb")
    for part in PARTS:
        for model in {variant["model"] for variant in VARIANTS[part]}:
            write_cube(folder / part / model, ("Cube", "Sphere.001") if part == "eye" else ("Cube",), (0.5, 0.4, -0.45))
    return folder


def cast_rays(scene: dict[str, object], folder: Path, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Colours and labels of samples: the nearest triangle that a ray from the camera meets, without outlines."""
    meshes = read_meshes(folder)
    keys = list(meshes)
    placed = place_scenes([scene], {key: number for number, key in enumerate(keys)})
    distance = float(scene["camera_distance"])
    turn = {k: float(scene[k]) for k in ("camera_pitch", "camera_roll", "light_pitch", "light_roll")}

    def point(pitch: float, roll: float) -> np.ndarray:
        return distance * np.array(
            [math.sin(pitch) * math.cos(roll), -math.sin(roll), math.cos(pitch) * math.cos(roll)]
        )

    camera = point(turn["camera_pitch"], turn["camera_roll"])
    camera[2] = distance
    light = point(turn["light_pitch"], turn["light_roll"])
    back = camera / np.linalg.norm(camera)
    right = np.cross([0, 1, 0], back)
    right /= np.linalg.norm(right)
    up = np.cross(back, right)
    steps = ((np.arange(side) + 0.5) / side * 2 - 1) * math.tan(math.radians(20))
    rays = steps[None, :, None] * right - steps[:, None, None] * up - back
    nearest = np.full((side, side), np.inf)
    colours = np.tile(np.array([85, 85, 153]) / 255, (side, side, 1))
    labels = np.zeros((side, side), int)
    for i, number in enumerate(placed.mesh.tolist()):
        mesh = meshes[keys[number]]
        linear, normal = placed.linear[i].double().numpy(), placed.normal[i].double().numpy()
        points = mesh.positions @ linear.T + placed.position[i].numpy()
        points = points + mesh.stretch[:, None] * placed.stretch[i].numpy()
        normals = mesh.normals @ normal.T
        for face in mesh.faces:
            a, b, c = points[face]
            across = np.cross(rays, c - a)
            with np.errstate(divide="ignore", invalid="ignore"):
                inverse = 1 / (across @ (b - a))
                u = inverse * (across @ (camera - a))
                other = np.cross(camera - a, b - a)
                v, t = inverse * (rays @ other), inverse * ((c - a) @ other)
            hit = (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 1) & (t < nearest)
            nearest[hit], labels[hit] = t[hit], int(placed.label[i])
            where = camera + t[..., None] * rays
            shaded = (1 - u - v)[..., None] * normals[face[0]] + u[..., None] * normals[face[1]]
            shaded = shaded + v[..., None] * normals[face[2]]
            towards = light - where
            away = np.linalg.norm(towards, axis=2)
            with np.errstate(divide="ignore", invalid="ignore"):
                cosine = (shaded * towards).sum(2) / np.linalg.norm(shaded, axis=2) / away
            step = np.where(cosine >= 1 / 3, 102 / 255, np.where(cosine >= -1 / 3, 51 / 255, 0))
            linear_light = 136 / 255 + 4 * step * (1 - away / 800).clip(0, 1)
            value = (placed.colour[i].numpy() * linear_light[..., None]).clip(0, 1)
            encoded = np.where(value <= 0.0031308, 12.92 * value, 1.055 * np.maximum(value, 1e-9) ** (1 / 2.4) - 0.055)
            colours[hit] = encoded[hit]
    return colours, labels


@pytest.mark.parametrize("index", [1, 3])
def test_images_and_part_maps_are_those_of_a_ray_caster(
    parts: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    monkeypatch.setattr(renderer_module, "OUTLINE", 0.0)
    scene = draw_bird_scenes(CLASSES, 1, removed=False, seed=3)[index]
    while count_objects(scene) > 4:
        scene = without_object(scene, 0)
    images, labels = BirdRenderer(parts, SIZE).render_with_parts([scene])
    colours, _ = cast_rays(scene, parts, 2 * SIZE)
    _, expected = cast_rays(scene, parts, SIZE)
    samples = colours.reshape(SIZE, 2, SIZE, 2, 3).mean((1, 3)) * 255
    off = np.abs(images[0].permute(1, 2, 0).numpy() - samples).max(2) > 1
    # Samples on an edge, or where the shade changes, may fall on either side.
    assert off.mean() <= 0.01
    assert (labels[0].numpy() != expected).mean() <= 0.01
    assert len(np.unique(expected)) > 4


def test_rendering_is_deterministic_and_does_not_depend_on_the_batch(parts: Path) -> None:
    scenes = draw_bird_scenes(CLASSES, 1, removed=True, seed=5)
    together, labels = BirdRenderer(parts, SIZE, batch=4).render_with_parts(scenes)
    alone = BirdRenderer(parts, SIZE, batch=1).render(scenes)
    assert torch.equal(together, alone)
    assert together.dtype == labels.dtype == torch.uint8
    assert labels.shape == (len(scenes), SIZE, SIZE)


def test_interventions_change_only_what_they_remove(parts: Path) -> None:
    scene = draw_bird_scenes(CLASSES, 1, removed=False, seed=6)[2]
    renderer = BirdRenderer(parts, 32)
    _, labels = renderer.render_with_parts([scene, without_parts(scene, ["wing"]), without_object(scene, 1)])
    before, no_wing, no_object = labels
    wings = (before == LABELS["wing01"]) | (before == LABELS["wing02"])
    assert wings.any()
    assert not torch.isin(no_wing, torch.tensor([LABELS["wing01"], LABELS["wing02"]])).any()
    assert torch.equal(no_wing[~wings], before[~wings])
    gone = before == FIRST_OBJECT + 1
    # Later objects move up by one.
    renumbered = before.where(before <= FIRST_OBJECT, before - 1)
    assert torch.equal(no_object[~gone], renumbered[~gone])


def test_outlines_are_black_and_outside(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_module, "OUTLINE", 0.2)
    scene = without_parts(draw_bird_scenes(CLASSES, 1, removed=False, seed=6)[0], PARTS)
    while count_objects(scene):
        scene = without_object(scene, 0)
    images, labels = BirdRenderer(parts, 64).render_with_parts([scene])
    body = labels[0] == LABELS["body"]
    black = images[0].amax(0) == 0
    assert black.sum() > 20
    assert not (black & body).any()


def test_scenes_say_what_is_present(parts: Path) -> None:
    scene = draw_bird_scenes(CLASSES, 1, removed=False, seed=6)[4]
    assert present_parts(scene) == CLASSES[4]
    assert possible_classes(scene, CLASSES) == [4]
    assert possible_classes(without_parts(scene, PARTS), CLASSES) == list(range(6))
    assert sum(present_parts(s) != CLASSES[s["class_idx"]] for s in draw_bird_scenes(CLASSES, 50, removed=True)) > 90
    with pytest.raises(OptionError, match="unknown parts leg"):
        without_parts(scene, ["leg"])
    with pytest.raises(OptionError, match="does not exist"):
        without_object(scene, 99)
    with pytest.raises(OptionError, match="must be from 1 to 2592"):
        draw_bird_classes(3000)
    with pytest.raises(DataError, match=r"beak_model is 'beak09\.glb'"):
        BirdRenderer(parts, 8).render([scene | {"beak_model": "beak09.glb"}])
    with pytest.raises(DataError, match="kinds are 0 to 4"):
        BirdRenderer(parts, 8).render([scene | {"bg_objects": "7," * count_objects(scene)}])


def test_glb_applies_the_transforms_of_nodes(tmp_path: Path) -> None:
    write_cube(tmp_path / "a.glb", ("first", "second"), (2, 1, -1))
    first, second = read_glb(tmp_path / "a.glb")
    assert (first.name, second.name) == ("first", "second")
    assert first.positions.max(0).tolist() == [2, 1, 1]
    assert second.positions.max(0).tolist() == [2, 1, 1.5]
    a, b, c = (first.positions[first.faces[:, i]] for i in range(3))
    outward = np.cross(b - a, c - a)
    assert (outward * a > 0).any(1).all()  # the reflection does not turn the faces inside out
    assert ((outward * first.normals[first.faces[:, 0]]).sum(1) > 0).all()
    (tmp_path / "b.glb").write_bytes(b"no mesh")
    with pytest.raises(DataError, match="not a binary glTF 2 file"):
        read_glb(tmp_path / "b.glb")
    with pytest.raises(DataError, match=r"bird01\.glb is missing"):
        read_meshes(tmp_path)


@pytest.mark.parametrize(
    ("mesh", "volume"),
    [(make_sphere(40, 40), 4 / 3 * math.pi), (make_cylinder(1, 2, 60), 7 / 3 * math.pi),
     (make_cylinder(0, 1, 60), math.pi / 3), (make_capsule(20), 4 / 3 * math.pi * 0.9)],
)  # fmt: skip
def test_primitives_are_closed_and_have_their_volume(mesh: object, volume: float) -> None:
    a, b, c = (mesh.positions[mesh.faces[:, i]] for i in range(3))
    assert np.linalg.det(np.stack([a, b, c], 1)).sum() / 6 == pytest.approx(volume, rel=0.02)
    assert np.cross(b - a, c - a).sum(0) == pytest.approx(np.zeros(3), abs=1e-9)
