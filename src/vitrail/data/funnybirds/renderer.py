"""Render FunnyBirds scenes: a batched rasteriser with a depth buffer, in torch, on a CPU or a GPU.

Camera, light, toon shading in three steps, outlines and colours are those of the authors' scene page. An image is
rendered with two by two samples per pixel. The same scenes give the same image on the same device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.funnybirds.birds import BirdScene
from vitrail.data.funnybirds.placement import Instances, on_sphere, place_scenes, read_meshes

#: Vertical field of view in degrees, and the depth below which triangles are not drawn.
FIELD_OF_VIEW, NEAR = 40.0, 1.0
#: Background in sRGB; ambient light; brightness and reach of the point light; brightness of the three toon steps.
BACKGROUND_COLOUR = (85 / 255, 85 / 255, 153 / 255)
AMBIENT, LIGHT, REACH = 136 / 255, 4.0, 800.0
STEPS = (0.0, 51 / 255, 102 / 255)
#: Width of an outline as a fraction of half the image.
OUTLINE = 0.003
#: Samples per pixel in each direction.
SAMPLES = 2


class _Library(NamedTuple):
    """All meshes in one array each: vertices as (x, y, z, stretch, 1), and where each mesh begins."""

    vertices: Tensor
    normals: Tensor
    faces: Tensor
    vertex_start: Tensor
    vertex_count: Tensor
    face_start: Tensor
    face_count: Tensor


class _Faces(NamedTuple):
    """Triangles of a batch in pixels: corners, instance, and whether they belong to an outline."""

    corners: Tensor
    points: Tensor
    instance: Tensor
    outline: Tensor
    vertex: Tensor


class BirdRenderer:
    """Renders scenes to images and part maps.

    Args:
        folder: Folder of the part models: bird01.glb, and beak, eye, foot, tail and wing with .glb files.
        size: Height and width of the images.
        device: Device of the rendering and of the results.
        batch: Most scenes that are rendered together; bounds the memory (about 50 MB each).
    """

    def __init__(
        self, folder: Path | str, size: int = 256, device: torch.device | str = "cpu", batch: int = 16
    ) -> None:
        meshes = read_meshes(Path(folder).resolve())
        self.size, self.device, self.batch = size, torch.device(device), batch
        self._numbers = {key: number for number, key in enumerate(meshes)}
        own = list(meshes.values())
        vertices = [np.concatenate([m.positions, m.stretch[:, None], np.ones((len(m.stretch), 1))], 1) for m in own]
        counts = [torch.tensor([len(getattr(m, name)) for m in own]) for name in ("positions", "faces")]
        starts = [count.cumsum(0) - count for count in counts]
        library = _Library(
            torch.from_numpy(np.concatenate(vertices)).float(),
            torch.from_numpy(np.concatenate([m.normals for m in own])).float(),
            torch.from_numpy(np.concatenate([m.faces for m in own])),
            starts[0], counts[0], starts[1], counts[1],
        )  # fmt: skip
        self._library = _Library(*(values.to(self.device) for values in library))

    def render(self, scenes: Sequence[BirdScene]) -> Tensor:
        """Render the images of scenes, uint8, shape (B, 3, size, size)."""
        return torch.cat([self._images(*self._faces(own)) for own in self._batches(scenes)])

    def render_with_parts(self, scenes: Sequence[BirdScene]) -> tuple[Tensor, Tensor]:
        """Render images and part maps.

        Returns:
            Images, uint8, shape (B, 3, size, size); and part maps without outlines, uint8, shape (B, size, size), whose
            values are ``LABELS`` of parts, ``FIRST_OBJECT`` + i for background object i, and 0 for empty background.
        """
        images, labels = [], []
        for own in self._batches(scenes):
            placed, light, faces = self._faces(own)
            images.append(self._images(placed, light, faces))
            labels.append(self._labels(placed, faces, len(own)))
        return torch.cat(images), torch.cat(labels)

    def _batches(self, scenes: Sequence[BirdScene]) -> Iterator[Sequence[BirdScene]]:
        for start in range(0, len(scenes), self.batch):
            yield scenes[start : start + self.batch]

    @torch.inference_mode()
    def _faces(self, scenes: Sequence[BirdScene]) -> tuple[Instances, Tensor, _Faces]:
        """What is placed, where the lights are, and the triangles that face the cameras."""
        placed = Instances(*(values.to(self.device) for values in place_scenes(scenes, self._numbers)))
        projection, light = self._cameras(scenes)
        return placed, light, self._project(placed, projection)

    @torch.inference_mode()
    def _images(self, placed: Instances, light: Tensor, faces: _Faces) -> Tensor:
        side, count = self.size * SAMPLES, len(light)
        winner = self._visible(faces, placed.scene[faces.instance], count, side)
        colour = torch.tensor(BACKGROUND_COLOUR, device=self.device).repeat(len(winner), 1)
        covered = (winner >= 0).nonzero()[:, 0]
        colour[covered] = self._shade(faces, placed, light, winner[covered], covered % side, covered // side % side)
        samples: Tensor = colour.view(count, self.size, SAMPLES, self.size, SAMPLES, 3).mean((2, 4)) * 255
        return samples.round().to(torch.uint8).permute(0, 3, 1, 2).contiguous()

    @torch.inference_mode()
    def _labels(self, placed: Instances, faces: _Faces, count: int) -> Tensor:
        scale = torch.tensor([1 / SAMPLES, 1 / SAMPLES, 1.0], device=self.device)
        kept = ~faces.outline
        surfaces = faces._replace(
            corners=faces.corners[kept], instance=faces.instance[kept], points=faces.points * scale
        )
        winner = self._visible(surfaces, placed.scene[surfaces.instance], count, self.size)
        label: Tensor = placed.label[surfaces.instance[winner.clamp_min(0)]].where(winner >= 0, 0)
        return label.to(torch.uint8).view(count, self.size, self.size)

    def _cameras(self, scenes: Sequence[BirdScene]) -> tuple[Tensor, Tensor]:
        """Matrix from world to clip coordinates without depth (x, y, w), shape (B, 3, 4), and the light (B, 3)."""
        values = {
            name: np.array([float(scene[name]) for scene in scenes])
            for name in ("camera_distance", "camera_pitch", "camera_roll", "light_pitch", "light_roll")
        }
        distance = values["camera_distance"]
        # As on the scene page: the camera keeps its distance along z, and the light has the distance of the camera.
        camera = on_sphere(distance, values["camera_pitch"], values["camera_roll"])
        camera[:, 2] = distance
        light = on_sphere(distance, values["light_pitch"], values["light_roll"])
        back = camera / np.linalg.norm(camera, axis=1, keepdims=True)
        right = np.cross([0.0, 1.0, 0.0], back)
        right /= np.linalg.norm(right, axis=1, keepdims=True)
        up = np.cross(back, right)
        focal = 1 / math.tan(math.radians(FIELD_OF_VIEW / 2))
        rows = np.stack([focal * right, focal * up, -back], 1)
        matrix = np.concatenate([rows, -(rows @ camera[:, :, None])], 2)
        return tuple(torch.from_numpy(v).float().to(self.device) for v in (matrix, light))  # type: ignore[return-value]

    def _project(self, placed: Instances, projection: Tensor) -> _Faces:
        """Surfaces that face the camera, and their outlines: inner sides of slightly larger surfaces."""
        library, side = self._library, self.size * SAMPLES
        camera = projection[placed.scene]
        # (x, y, z, stretch, 1) of a mesh to clip coordinates, and its normals to directions in clip coordinates.
        world = torch.cat([placed.linear, placed.stretch[:, :, None], placed.position[:, :, None]], 2)
        clip = camera[:, :, :3] @ world
        clip[:, :, 4] += camera[:, :, 3]
        across = camera[:, :, :3] @ placed.normal
        count = library.vertex_count[placed.mesh]
        owner, vertex, first = _expand(count, library.vertex_start[placed.mesh])
        points = (clip.index_select(0, owner) @ library.vertices.index_select(0, vertex)[:, :, None])[:, :, 0]
        grown = (across.index_select(0, owner) @ library.normals.index_select(0, vertex)[:, :, None])[:, :, 0]
        # The length counts the depth, which changes as w does.
        length = (grown.square().sum(1) + grown[:, 2].square()).sqrt().clamp_min(1e-12)
        larger = points + grown * (OUTLINE * points[:, 2] / length)[:, None]
        points = torch.cat([points, larger])
        depth = points[:, 2]
        inverse = 1 / depth.where(depth > NEAR, math.nan)
        pixels = torch.stack([(points[:, 0] * inverse + 1) * (side / 2), (1 - points[:, 1] * inverse) * (side / 2),
                              inverse], 1)  # fmt: skip
        instance, face, _ = _expand(library.face_count[placed.mesh], library.face_start[placed.mesh])
        corners = library.faces.index_select(0, face) + first[instance][:, None]
        mirrored = torch.linalg.det(placed.linear)[instance] < 0  # turns the triangles inside out
        corners = torch.where(mirrored[:, None], corners.flip(1), corners)
        corners = torch.cat([corners, corners.flip(1) + len(owner)])
        a, b, c = (pixels.index_select(0, corners[:, i]) for i in range(3))
        # Triangles that face the camera are counterclockwise, and y points down; comparisons with NaN are false.
        facing = (b[:, 0] - a[:, 0]) * (c[:, 1] - a[:, 1]) - (b[:, 1] - a[:, 1]) * (c[:, 0] - a[:, 0]) < 0
        kept = facing.nonzero()[:, 0]
        outline = kept >= len(instance)
        original = kept.where(~outline, kept - len(instance))
        corners = corners[kept]
        known = vertex[(corners - len(owner)).where(corners >= len(owner), corners)]
        return _Faces(corners, pixels, instance[original], outline, known)

    def _visible(self, faces: _Faces, scene: Tensor, count: int, side: int) -> Tensor:
        """The face that is seen in each sample, or −1; shape (count · side · side,)."""
        triangle = faces.points.index_select(0, faces.corners.flatten()).view(-1, 3, 3)
        low = (triangle[:, :, :2].amin(1) - 0.5).ceil().clamp(0, side).long()
        high = (triangle[:, :, :2].amax(1) - 0.5).floor().clamp(-1, side - 1).long()
        extent = (high - low + 1).clamp_min(0)
        area = extent[:, 0] * extent[:, 1]
        sampled = area.nonzero()[:, 0]  # most triangles are smaller than a sample
        low, extent, area, triangle, scene = (v.index_select(0, sampled) for v in (low, extent, area, triangle, scene))
        boxes = torch.cat([low, extent[:, :1], (sampled + 1)[:, None], scene[:, None]], 1)
        depths = torch.zeros(count * side * side, dtype=torch.int64, device=self.device)
        tests = _edge_tests(triangle)
        for rows in _chunks(area):
            index, offset, _ = _expand(area[rows], torch.zeros_like(area[rows]))
            index = index + rows.start
            left, top, width, number, image = boxes.index_select(0, index).unbind(1)
            x, y = left + offset % width, top + offset // width
            own = tests.index_select(0, index)
            right, down = x + 0.5 - own[:, 0], y + 0.5 - own[:, 1]
            second, third = own[:, 2] * right + own[:, 3] * down, own[:, 4] * right + own[:, 5] * down
            inside = (second >= 0) & (third >= 0) & (second + third <= 1)
            inverse = own[:, 6] + own[:, 7] * second + own[:, 8] * third
            # The nearest face has the largest inverse depth, whose bits are ordered as integers because it is positive.
            hit = inside.nonzero()[:, 0]
            key = (inverse[hit].view(torch.int32).long() << 32) | number[hit]
            depths.scatter_reduce_(0, (image[hit] * side + y[hit]) * side + x[hit], key, "amax")
        return (depths & 0xFFFFFFFF) - 1

    def _shade(self, faces: _Faces, placed: Instances, light: Tensor, face: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Colours in sRGB of samples of faces, shape (S, 3)."""
        library = self._library
        triangle = faces.points[faces.corners.index_select(0, face)]
        test = _edge_tests(triangle)
        right, down = x + 0.5 - test[:, 0], y + 0.5 - test[:, 1]
        second, third = test[:, 2] * right + test[:, 3] * down, test[:, 4] * right + test[:, 5] * down
        weight = torch.stack([1 - second - third, second, third], 1) * triangle[:, :, 2]
        weight = weight / weight.sum(1, keepdim=True)
        instance, vertex = faces.instance[face], faces.vertex[face]
        point = (library.vertices[vertex] * weight[:, :, None]).sum(1)
        normal = (library.normals[vertex] * weight[:, :, None]).sum(1)
        where = (placed.linear[instance] * point[:, None, :3]).sum(2) + placed.position[instance]
        where = where + placed.stretch[instance] * point[:, 3:4]
        normal = (placed.normal[instance] * normal[:, None]).sum(2)
        towards = light[placed.scene[instance]] - where
        distance = towards.norm(dim=1)
        cosine = (normal * towards).sum(1) / (normal.norm(dim=1) * distance).clamp_min(1e-12)
        step = ((cosine * 0.5 + 0.5) * len(STEPS)).floor().clamp(0, len(STEPS) - 1).long()
        shade = torch.tensor(STEPS, device=self.device)[step] * LIGHT * (1 - distance / REACH).clamp(0, 1) + AMBIENT
        linear = (placed.colour[instance] * shade[:, None]).clamp(0, 1)
        return encode_srgb(linear) * ~faces.outline[face][:, None]


def encode_srgb(linear: Tensor) -> Tensor:
    """Encode linear colours from 0 to 1 in sRGB.

    Example:
        >>> encode_srgb(torch.tensor([0.0, 0.5, 1.0])).mul(255).round().tolist()
        [0.0, 188.0, 255.0]
    """
    return torch.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear.clamp_min(1e-8) ** (1 / 2.4) - 0.055)


def _edge_tests(triangle: Tensor) -> Tensor:
    """What the second and third barycentric coordinates and the inverse depth of triangles (F, 3, 3) depend on, (F, 9).

    Coordinates are relative to the first corner: x, y of it; two rows of the inverse of the edges; the inverse depth of
    the first corner and its differences to the others.
    """
    a, b, c = triangle.unbind(1)
    u, v = b - a, c - a
    area = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
    rows = (v[:, 1] / area, -v[:, 0] / area, -u[:, 1] / area, u[:, 0] / area)
    return torch.stack([a[:, 0], a[:, 1], *rows, a[:, 2], u[:, 2], v[:, 2]], 1)


def _expand(count: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Entries ``start … start + count − 1`` of each item: item and entry of each, and the first of each item."""
    item = torch.repeat_interleave(count)
    first = count.cumsum(0) - count
    return item, torch.arange(len(item), device=count.device) - first[item] + start[item], first


def _chunks(area: Tensor, most: int = 20_000_000) -> Iterator[slice]:
    """Consecutive ranges of faces with about as many samples in their boxes as memory allows."""
    total = area.cumsum(0)
    largest = int(total[-1]) if len(area) else 0
    ends = torch.arange(most, largest + most, most, device=area.device)
    for low, high in itertools.pairwise([0, *torch.searchsorted(total, ends, right=True).tolist()]):
        if high > low:
            yield slice(low, high)
