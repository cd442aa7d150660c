"""Maps of many images as rows, in half precision; a failure of one image or method does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import error_line
from vitrail.methods.postprocess import normalise
from vitrail.models.loaded import LoadedModel
from vitrail.pipeline.explain import explain
from vitrail.pipeline.explanation import Explanation, Explanations
from vitrail.pipeline.memory import HasBatchSize, shrink_batch_to_fit


class MapRow(NamedTuple):
    """One map of one image, or the reason why there is none.

    Attributes:
        image: Id of the image.
        method: Spec of the method.
        label: Index of the explained class, −1 if there is none.
        name: Name of the class, if known.
        probability: Its probability, if known.
        flat: Whether the map is constant.
        check: Verdict of the check, if the map was checked.
        relevance: The map on the patch grid in half precision, shape (rows, columns).
        error: Why there is no map.
    """

    image: str
    method: str
    label: int = -1
    name: str | None = None
    probability: float | None = None
    flat: bool | None = None
    check: str | None = None
    relevance: Tensor | None = None
    error: str | None = None


def explain_rows(
    loaded: LoadedModel,
    ids: Sequence[str],
    images: Sequence[Tensor] | Tensor,
    methods: Sequence[str],
    target: Any,
    limit: HasBatchSize,
    patch_grid: tuple[int, int] | None = None,
    check: bool = False,
) -> Iterator[MapRow]:
    """Explain images; the rows of each method are in the order of the images and of their targets.

    Args:
        loaded: The model.
        ids: Ids of the images.
        images: Preprocessed images, shape (channels, height, width) each, or one tensor of them.
        methods: Method specs.
        target: As `vitrail.explain` takes it, the same for all images.
        limit: Most images in one pass; halved when memory runs out.
        patch_grid: Rows and columns of patches; finer maps are averaged over each patch.
        check: Whether to check each map.
    """

    def explain_images(specs: Sequence[str], rows: Sequence[int]) -> Explanations:
        all_rows = isinstance(images, Tensor) and len(rows) == len(images)
        inputs = images if all_rows else torch.stack([images[row] for row in rows])
        return shrink_batch_to_fit(
            limit,
            lambda size: explain(loaded, inputs, methods=specs, target=target, batch_size=size, check=check),
        )

    for method, rows, e in _explain_or_errors(explain_images, methods, range(len(ids))):
        if isinstance(e, str):
            yield MapRow(ids[rows[0]], method, error=e)
            continue
        half = to_half(e.grid, e.signed, patch_grid)
        # Each is copied from the device once, not for each image.
        targets, probabilities, constant = map(_to_lists, (e.targets, e.probabilities, e.constant))
        for (i, row), k in product(enumerate(rows), range(half.shape[1])):
            label = targets[i][k] if targets else -1
            yield MapRow(
                ids[row], method, label, _class_name(e, label, i, k), probabilities[i][k] if probabilities else None,
                constant[i][k], e.checks[i, k].verdict if (i, k) in e.checks else None, half[i, k],
            )  # fmt: skip


def _explain_or_errors(
    explain_images: Callable[[Sequence[str], Sequence[int]], Explanations],
    methods: Sequence[str],
    images: Sequence[int],
) -> Iterator[tuple[str, Sequence[int], Explanation | str]]:
    """Explain images; if that fails, try methods and then images one by one, and give the error of one image."""
    if not images:
        return
    try:
        explanations = explain_images(methods, images)
    except Exception as error:  # noqa: BLE001 - a failure of one image becomes a row of the results
        if len(methods) == len(images) == 1:
            yield methods[0], images, error_line(error)
            return
        singles = [([m], images) for m in methods] if len(methods) > 1 else [(methods, [image]) for image in images]
        for some_methods, some_images in singles:
            yield from _explain_or_errors(explain_images, some_methods, some_images)
    else:
        yield from ((method, images, e) for method, e in explanations.items())


def _to_lists(values: Tensor | None) -> list[list[Any]]:
    """Values of each image and target; an empty list for None."""
    return [] if values is None else values.tolist()


def _class_name(e: Explanation, index: int, image: int, k: int) -> str | None:
    """Name of a class with all its synonyms, of a group of classes, a prompt or a box; None if it is unknown."""
    if e.named_targets is not None:
        return e.target_name(image, k)
    if e.classes is None or not 0 <= index < len(e.classes):
        return e.target_name(image, k) if e.groups else None
    return e.classes[index]


def to_half(grid: Tensor, signed: bool, patch_grid: tuple[int, int] | None) -> Tensor:
    """Maps in half precision on the patch grid, each scaled to [0, 1], or [-1, 1] if signed; on the CPU.

    Args:
        grid: Maps as the method returned them, shape (B, K, rows, columns); finer ones are averaged over each patch.
        signed: Whether negative relevance has a meaning.
        patch_grid: Rows and columns of patches, or None to keep the size.
    """
    scaled = normalise(grid.float(), signed)
    if patch_grid is not None and scaled.shape[-2] > patch_grid[0]:
        scaled = F.adaptive_avg_pool2d(scaled.flatten(0, 1), patch_grid).reshape(*scaled.shape[:2], *patch_grid)
    return scaled.half().cpu()
