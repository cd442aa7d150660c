"""Explain the images in a column of a table, batch by batch: the step that Ray Data and Spark run on their workers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.capture.inputs import ModelInputs
from vitrail.capture.structure import read_structure
from vitrail.data.source import FileSource, SourceItem
from vitrail.errors import InputError, ModelError, OptionError, VitrailError, error_line
from vitrail.methods import find
from vitrail.models import load
from vitrail.models.loaded import LoadedModel
from vitrail.models.preprocess import open_image, to_rgb
from vitrail.pipeline.explain import DEFAULT
from vitrail.pipeline.map_rows import MapRow, explain_rows
from vitrail.pipeline.memory import BatchLimit, keep_to_gpu_share

#: Columns that an `Explainer` adds.
MAP_COLUMNS = ("maps", "targets", "names", "probabilities", "checks", "errors")


class Explainer:
    """A callable that replaces a column of images by columns with maps, one row for each row.

    It is made once in each worker and holds the model. Every other column is kept. The added columns are

    - ``maps``: the maps of all methods, compressed; `read_maps` reads them. Empty if there is none.
    - ``targets``, ``names``, ``probabilities``: the explained classes, their names ("" if unknown) and probabilities.
    - ``checks``: verdicts by method, one for each target, as JSON; "{}" without ``check``.
    - ``errors``: reasons for missing maps by method, as JSON; "{}" if there is none.

    A row that cannot be explained does not affect the others.

    Args:
        model: A name that `vitrail.load` takes, or a loaded model.
        methods: Method specs.
        target: As `vitrail.explain` takes it, the same for all images.
        weights: A weights file, or "random".
        column: Column of the images: content of image files, arrays of pixels (height, width, channels), paths or
            addresses, or the dicts of Hugging Face data sets.
        batch: Most images in one pass; halved when memory runs out.
        check: Whether to check each map, see `vitrail.check`.
        device: Device of the model. Default: the GPU that the worker sees, else the CPU.

    Example:
        >>> from vitrail.data import render
        >>> explain_columns = Explainer("scenes", ["rollout"])
        >>> found = explain_columns({"id": ["a"], "image": [render(0, 1).image]})
        >>> sorted(found)
        ['checks', 'errors', 'id', 'maps', 'names', 'probabilities', 'targets']
        >>> maps = read_maps(*found["maps"])
        >>> maps["rollout"].shape
        torch.Size([1, 16, 16])
    """

    def __init__(
        self,
        model: str | LoadedModel = "scenes",
        methods: Sequence[str] = (DEFAULT,),
        target: Any = None,
        *,
        weights: str | None = None,
        column: str = "image",
        batch: int = 32,
        check: bool = False,
        device: str | None = None,
    ) -> None:
        if isinstance(methods, str):
            raise OptionError(f"methods must be a list, such as [{methods!r}]")
        if isinstance(model, str):
            file = None if weights == "random" else weights
            model = load(model, file, pretrained=False if weights == "random" else None)
        if model.preprocess is None:
            raise ModelError(f"the preprocessing of {model.name} is unknown: pass a LoadedModel with a preprocess")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        keep_to_gpu_share(device)
        self.loaded = replace(model, module=model.module.to(device))
        self.preprocess = model.preprocess
        self.methods = [find(spec)[0] for spec in dict.fromkeys(methods)]
        self.target, self.column, self.check = target, column, check
        self.limit = BatchLimit(batch)
        self._patch_grid: tuple[int, int] | None = None
        self._found_grid = False

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Explain one batch of rows.

        Args:
            columns: Values by column, each of the same length.

        Raises:
            InputError: There is no column of images, or a column has the name of one that is added.
        """
        if self.column not in columns:
            raise InputError(f"there is no column {self.column!r}, only {', '.join(columns)}: pass column=…")
        kept = {name: values for name, values in columns.items() if name != self.column}
        taken = set(kept) & set(MAP_COLUMNS)
        if taken:
            raise InputError(f"the column {min(taken)!r} would be overwritten: rename it first")
        rows: list[list[MapRow]] = [[] for _ in columns[self.column]]
        prepared: dict[str, Tensor] = {}
        for i, value in enumerate(columns[self.column]):
            try:
                prepared[str(i)] = self.preprocess(_to_image(value, f"row {i}"))
            except VitrailError as error:
                rows[i] = [MapRow(str(i), method, error=error_line(error)) for method in self.methods]
        for start in range(0, len(prepared), self.limit.batch):
            names = list(prepared)[start : start + self.limit.batch]
            some = [prepared[name] for name in names]
            grid = self._grid(some[0])
            for row in explain_rows(self.loaded, names, some, self.methods, self.target, self.limit, grid, self.check):
                rows[int(row.image)].append(row)
        added = [_join_row(self.methods, found) for found in rows]
        return {name: np.asarray(values) for name, values in kept.items()} | {
            name: _object_array([one[name] for one in added]) for name in MAP_COLUMNS
        }

    def _grid(self, image: Tensor) -> tuple[int, int] | None:
        """Rows and columns of patches, found once."""
        if not self._found_grid:
            try:
                module = self.loaded.module
                self._patch_grid = read_structure(module, ModelInputs((image[None],)).onto(module)).layout.plane
            except VitrailError:  # each row then has the reason
                self._patch_grid = None
            self._found_grid = True
        return self._patch_grid


def read_maps(content: bytes) -> dict[str, Tensor]:
    """Read a value of the column ``maps``: by method the maps of all targets, float16, shape (K, rows, columns)."""
    from safetensors.torch import load as load_tensors

    return load_tensors(zlib.decompress(content)) if content else {}


def _join_row(methods: Sequence[str], rows: Sequence[MapRow]) -> dict[str, Any]:
    """Values of the added columns for one image."""
    from safetensors.torch import save

    by_method = {method: [row for row in rows if row.method == method] for method in methods}
    maps = {
        method: torch.stack([row.relevance for row in own if row.relevance is not None])
        for method, own in by_method.items()
        if own and own[0].relevance is not None
    }
    first = next((own for method, own in by_method.items() if method in maps), [])
    checks = {method: [row.check for row in own] for method, own in by_method.items() if own and own[0].check}
    errors = {method: own[0].error for method, own in by_method.items() if own and own[0].error}
    return {
        "maps": zlib.compress(save(maps)) if maps else b"",
        "targets": [row.label for row in first],
        "names": [row.name or "" for row in first],
        "probabilities": [float("nan") if row.probability is None else row.probability for row in first],
        "checks": json.dumps(checks),
        "errors": json.dumps(errors),
    }


def _object_array(values: Sequence[Any]) -> NDArray[Any]:
    """Values as they are: numpy would otherwise cut zeros off the end of bytes, and make a matrix of lists."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _to_image(value: Any, name: str) -> Any:
    """Convert a value of the column of images to an RGB image."""
    from PIL import Image

    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        return open_image(value, FileSource().open(SourceItem(value, value)))
    if isinstance(value, bytes | bytearray):
        return open_image(name, bytes(value))
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim in (2, 3):
        return to_rgb(Image.fromarray(value))
    if isinstance(value, Image.Image):
        return to_rgb(value)
    raise InputError(f"{name} holds {type(value).__name__}, expected the content of an image file, pixels or a path")
