"""Triangle meshes of background objects: box, cone, sphere, cylinder and capsule, with the tessellation of three.js."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Segments of a cylinder and of a capsule around their axis.
RADIAL_SEGMENTS = 8


class Mesh(NamedTuple):
    """A triangle mesh around the origin.

    Attributes:
        positions: Vertices, shape (V, 3).
        normals: Normals of the vertices, shape (V, 3).
        faces: Vertices of each triangle, counterclockwise from outside, shape (F, 3).
        stretch: How far a vertex moves along y when the mesh is lengthened by 1, shape (V,).
    """

    positions: np.ndarray
    normals: np.ndarray
    faces: np.ndarray
    stretch: np.ndarray


def join(meshes: list[Mesh]) -> Mesh:
    """One mesh of several."""
    starts = np.cumsum([0, *(len(m.positions) for m in meshes[:-1])])
    faces = [m.faces + start for m, start in zip(meshes, starts, strict=True)]
    positions, normals, _, stretch = (list(column) for column in zip(*meshes, strict=True))
    return Mesh(np.concatenate(positions), np.concatenate(normals), np.concatenate(faces), np.concatenate(stretch))


def oriented(positions: np.ndarray, normals: np.ndarray, faces: np.ndarray, stretch: np.ndarray | None = None) -> Mesh:
    """A mesh without degenerate triangles, all turned so that they agree with the normals of their vertices."""
    stretch = np.zeros(len(positions)) if stretch is None else stretch
    lengthened = positions + stretch[:, None] * np.array([0.0, 1.0, 0.0])
    a, b, c = (lengthened[faces[:, i]] for i in range(3))
    across = np.cross(b - a, c - a)
    proper = np.linalg.norm(across, axis=1) > 1e-12
    faces, across = faces[proper], across[proper]
    inside = (across * normals[faces].sum(1)).sum(1) < 0
    faces[inside] = faces[inside][:, ::-1]
    return Mesh(positions, normals, faces, stretch)


def revolve(profile: np.ndarray, segments: int, phase: float = 0.0) -> Mesh:
    """Turn a profile around the y axis.

    Args:
        profile: Radius, height, radial and axial normal and stretch of each point, shape (P, 5).
        segments: Number of segments around the axis.
        phase: Angle of the first column from the z axis.
    """
    angle = phase + np.arange(segments + 1) * 2 * np.pi / segments
    around = np.stack([np.sin(angle), np.zeros_like(angle), np.cos(angle)], 1)[:, None]
    radius, height, radial, axial, stretch = profile.T[:, None, :, None]
    up = np.array([0.0, 1.0, 0.0])
    positions, normals = radius * around + height * up, radial * around + axial * up
    rows = len(profile)
    corner = (np.arange(segments)[:, None] * rows + np.arange(rows - 1)).reshape(-1)
    faces = np.concatenate([
        np.stack([corner, corner + rows, corner + 1], 1),
        np.stack([corner + rows, corner + rows + 1, corner + 1], 1),
    ])  # fmt: skip
    along = np.broadcast_to(stretch, (*positions.shape[:2], 1))
    return oriented(positions.reshape(-1, 3), normals.reshape(-1, 3), faces, along.reshape(-1))


def make_box() -> Mesh:
    """A cube with edges of length 1."""
    sides = []
    for axis in range(3):
        for sign in (-0.5, 0.5):
            corners = np.array([(sign, u, v) for u in (-0.5, 0.5) for v in (-0.5, 0.5)])
            normals = np.tile([2 * sign, 0, 0], (4, 1))
            faces = np.array([(0, 1, 2), (1, 3, 2)])
            sides.append(oriented(np.roll(corners, axis, 1), np.roll(normals, axis, 1), faces))
    return join(sides)


def make_sphere(segments: int, rows: int) -> Mesh:
    """A sphere of radius 1."""
    angle = np.arange(rows + 1) * np.pi / rows
    sine, cosine = np.sin(angle), np.cos(angle)
    return revolve(np.stack([sine, cosine, sine, cosine, 0 * sine], 1), segments, -np.pi / 2)


def make_cylinder(top: float, bottom: float, segments: int = RADIAL_SEGMENTS) -> Mesh:
    """A closed cylinder or cone of height 1 with the given radii."""
    slope = np.array([1.0, bottom - top]) / np.hypot(1.0, bottom - top)
    side = np.array([(top, 0.5, *slope, 0), (bottom, -0.5, *slope, 0)])
    caps = [np.array([(0, y, 0, 2 * y, 0), (r, y, 0, 2 * y, 0)]) for r, y in ((top, 0.5), (bottom, -0.5)) if r]
    return join([revolve(profile, segments) for profile in (side, *caps)])


def make_capsule(rows: int) -> Mesh:
    """A capsule of radius 1 and length 0 between its caps; lengthening moves one cap up and one down."""
    angle = np.concatenate([np.linspace(-np.pi / 2, 0, 2 * rows + 1), np.linspace(0, np.pi / 2, 2 * rows + 1)])
    stretch = np.repeat([-0.5, 0.5], 2 * rows + 1)
    profile = np.stack([np.cos(angle), np.sin(angle), np.cos(angle), np.sin(angle), stretch], 1)
    return revolve(profile, RADIAL_SEGMENTS)
