"""Read the meshes of a binary glTF file (.glb)."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.errors import DataError

#: NumPy type of each component type, and number of components of each element type, that part models use.
_COMPONENTS = {5121: np.uint8, 5123: np.uint16, 5125: np.uint32, 5126: np.float32}
_WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}


class GlbMesh(NamedTuple):
    """One mesh in the coordinates of the file's scene.

    Attributes:
        name: Name of its node.
        positions: Vertices, shape (V, 3).
        normals: Unit normals of the vertices, shape (V, 3).
        faces: Vertices of each triangle, counterclockwise from outside, shape (F, 3).
    """

    name: str
    positions: np.ndarray
    normals: np.ndarray
    faces: np.ndarray


def read_glb(path: Path) -> list[GlbMesh]:
    """Read all triangle meshes of a .glb file (version 2, not compressed), with the transforms of their nodes applied.

    Raises:
        DataError: The file is not binary glTF 2 with packed triangles.
    """
    data = path.read_bytes()
    if len(data) < 20 or data[:4] != b"glTF" or struct.unpack_from("<I", data, 4)[0] != 2:
        raise DataError(f"{path} is not a binary glTF 2 file")
    length = struct.unpack_from("<I", data, 12)[0]
    content = json.loads(data[20 : 20 + length])
    binary = data[20 + length + 8 :]
    found: list[GlbMesh] = []

    def array(index: int) -> np.ndarray:
        accessor = content["accessors"][index]
        view = content["bufferViews"][accessor["bufferView"]]
        if "byteStride" in view or "sparse" in accessor or accessor["componentType"] not in _COMPONENTS:
            raise DataError(f"{path}: accessor {index} is interleaved, sparse or of an unsupported type")
        width = _WIDTHS[accessor["type"]]
        start = view.get("byteOffset", 0) + accessor.get("byteOffset", 0)
        kind = _COMPONENTS[accessor["componentType"]]
        return np.frombuffer(binary, kind, accessor["count"] * width, start).reshape(-1, width)

    def visit(index: int, parent: np.ndarray) -> None:
        node = content["nodes"][index]
        matrix = parent @ _node_matrix(node)
        mesh = content["meshes"][node["mesh"]]["primitives"] if "mesh" in node else []
        for primitive in mesh:
            if primitive.get("mode", 4) != 4:
                raise DataError(f"{path}: mode {primitive['mode']} of {node.get('name')} is not triangles (4)")
            positions, normals = (array(primitive["attributes"][a]).astype(np.float64) for a in ("POSITION", "NORMAL"))
            faces = array(primitive["indices"]).reshape(-1, 3).astype(np.int64)
            linear = matrix[:3, :3]
            if np.linalg.det(linear) < 0:  # a reflection turns the triangles inside out
                faces = faces[:, ::-1]
            turned = normals @ np.linalg.inv(linear)
            turned /= np.linalg.norm(turned, axis=1, keepdims=True).clip(1e-12)
            found.append(GlbMesh(node.get("name", ""), positions @ linear.T + matrix[:3, 3], turned, faces))
        for child in node.get("children", ()):
            visit(child, matrix)

    for root in content["scenes"][content.get("scene", 0)]["nodes"]:
        visit(root, np.eye(4))
    return found


def _node_matrix(node: dict[str, Any]) -> np.ndarray:
    """Matrix of a node: given as such, or scale, then rotation by a quaternion, then translation."""
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
    x, y, z, w = node.get("rotation", (0, 0, 0, 1))
    rotation = np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ])  # fmt: skip
    matrix = np.eye(4)
    matrix[:3, :3] = rotation * np.array(node.get("scale", (1, 1, 1)))
    matrix[:3, 3] = node.get("translation", (0, 0, 0))
    return matrix
