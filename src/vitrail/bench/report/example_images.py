"""Images of examples: read from the data set, with maps that the run kept or that are computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.bench.map_store import INDEX, open_maps
from vitrail.bench.report.examples import SelectedExample
from vitrail.bench.report.run_folder import Run
from vitrail.errors import VitrailError
from vitrail.methods import find
from vitrail.models.percentages import percent
from vitrail.viz.colormap import overlay, to_image

if TYPE_CHECKING:
    from vitrail.bench.context import BenchContext

#: Longest side of an image on the page, in pixels.
MAX_SIDE = 224


@dataclass(frozen=True, eq=False)
class ExampleImages:
    """Images of an example as JPEG files in memory.

    Attributes:
        example: The example.
        explained: Name and probability of the explained class.
        image: The preprocessed image, with the object outlined where its mask is known.
        maps: By method the map over the image; methods without a map are missing.
        reason: Reason why there are no images, or "".
    """

    example: SelectedExample
    explained: str = ""
    image: bytes = b""
    maps: dict[str, bytes] = field(default_factory=dict)
    reason: str = ""


def render_examples(
    run: Run, examples: Sequence[SelectedExample], device: str = "cpu", advance: Callable[[], None] = lambda: None
) -> list[ExampleImages]:
    """Render all examples; one whose model or data are not available has a reason instead of images."""
    from vitrail.bench.context import open_context

    context = open_context(run.plan.model_dump_json(), device)
    rendered = []
    for example in examples:
        try:
            rendered.append(_render(run, context, example))
        except (VitrailError, OSError) as error:
            rendered.append(ExampleImages(example, reason=str(error).splitlines()[0]))
        advance()
    return rendered


def _render(run: Run, context: BenchContext, example: SelectedExample) -> ExampleImages:
    from vitrail.bench.explainer import ChunkExplainer
    from vitrail.bench.ground_truth import prepare_ground_truth

    plan = run.plan
    indices = {network.title: i for i, network in enumerate(plan.models)}
    model = context.model(indices[example.model])
    if model.weights_hash != run.manifest["weights"][example.model]:
        return ExampleImages(example, reason=f"the weights of {example.model} differ from those of the run")
    data = next(i for i, d in enumerate(plan.dataset) if d.title == example.dataset)
    images = context.images(data)
    truth = prepare_ground_truth(
        images.dataset,
        images.dataset.ids.index(example.image),
        model.preprocess,
        context.same_classes(indices[example.model], data),
    )
    label, probability = _explained_class(run, example)
    pixels: NDArray[np.uint8] = model.preprocess.denormalise(truth.image[None])[0]
    maps = {name: _stored_map(run, example, name, pixels.shape[:2]) for name in example.scores}
    missing = [name for name, relevance in maps.items() if relevance is None]
    if missing:
        explain = ChunkExplainer(context, model, run.manifest["key"])
        image = truth.image[None].to(context.device)
        explanations, _ = explain([example.image], image, torch.tensor([[label]]), missing)
        maps |= {name: one.maps[0, 0].float().cpu() for name, one in explanations.items()}
    overlays = {
        name: encode_jpeg(overlay(pixels, relevance.numpy(), _signed(name)))
        for name, relevance in maps.items()
        if relevance is not None
    }
    names = model.loaded.classes
    name = names[label].split(",")[0] if names and label < len(names) else f"class {label}"
    outlined = draw_outline(pixels, truth.mask_of(label))
    return ExampleImages(example, f"{name} ({percent(float(probability))})", encode_jpeg(outlined), overlays)


def _explained_class(run: Run, example: SelectedExample) -> tuple[int, float]:
    """The explained class and its probability."""
    import polars as pl

    row = run.scores().filter(
        pl.col("model") == example.model, pl.col("dataset") == example.dataset, pl.col("image") == example.image,
        pl.col("target") == example.target, pl.col("protocol") == "explain", pl.col("score") == "probability",
    ).select("explained", "value").head(1).collect()  # fmt: skip
    return int(row["explained"][0]), float(row["value"][0])


def _stored_map(run: Run, example: SelectedExample, method: str, size: tuple[int, ...]) -> Tensor | None:
    """A map that the run saved, upsampled to the image; None if it was not saved."""
    if not (run.folder / INDEX).is_file():
        return None
    where = {"model": example.model, "dataset": example.dataset, "method": method, "target": example.target}
    try:
        grid = open_maps(run.folder).read(example.image, **where)
    except VitrailError:  # computed again
        return None
    return F.interpolate(grid[None, None], size=size[:2], mode="bilinear", align_corners=False)[0, 0]


def _signed(spec: str) -> bool:
    _, method, options = find(spec)
    return method.is_signed(options)


def draw_outline(image: NDArray[np.uint8], mask: Tensor | None) -> NDArray[np.uint8]:
    """Draw the outline of an object in white on black.

    Args:
        image: Bytes, shape (height, width, 3).
        mask: 0 for background, 255 for ignored pixels, other values for the object, shape (height, width); None draws
            nothing.
    """
    if mask is None:
        return image
    inside = ((mask != 0) & (mask != 255)).float()[None, None]
    near, far = (F.max_pool2d(inside, 2 * r + 1, 1, r)[0, 0].bool().numpy() for r in (1, 2))
    outlined = image.copy()
    outlined[far & ~near], outlined[near & ~inside[0, 0].bool().numpy()] = 0, 255
    return outlined


def encode_jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an image of shape (height, width, 3) as a small JPEG file."""
    image = to_image(pixels)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    buffer = BytesIO()
    image.save(buffer, format="JPEG", quality=88, subsampling=0)
    return buffer.getvalue()
