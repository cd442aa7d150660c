"""List what a detector detects: boxes with their queries, labels and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitrail.capture.frozen import frozen
from vitrail.capture.model_call import run_model
from vitrail.errors import TargetError
from vitrail.inputs.user_inputs import Inputs, to_model_inputs
from vitrail.models.image_geometry import ImageGeometry
from vitrail.models.loaded import LoadedModel, describe
from vitrail.targets.named_target import Corners
from vitrail.targets.output_reader import CallContext, OutputReader
from vitrail.targets.text_call import add_texts

#: Number of detections that are listed.
COUNT = 10


@dataclass(frozen=True)
class Detection:
    """One detected object.

    Attributes:
        query: Number of its query, for `vitrail.targets.box`.
        label: Index of its label.
        name: Name of its label.
        probability: Probability of its label.
        box: Left, top, right and bottom in pixels.
    """

    query: int
    label: int
    name: str
    probability: float
    box: Corners

    def __str__(self) -> str:
        x0, y0, x1, y1 = (round(v) for v in self.box)
        return f"query {self.query}: {self.name} ({100 * self.probability:.1f} %) at {x0}, {y0}, {x1}, {y1}"


def detections(
    model: nn.Module | LoadedModel,
    inputs: Inputs,
    *,
    texts: Sequence[str] = (),
    processor: Any = None,
    count: int = COUNT,
    threshold: float = 0.0,
    geometries: Sequence[ImageGeometry | None] = (),
) -> list[list[Detection]]:
    """Detected objects of each image, most probable first; each query is listed with its likeliest label.

    Args:
        model: A detector.
        inputs: Images as `vitrail.explain` takes them. Boxes are in pixels of the model's input.
        texts: Labels for models that read them (OWL-ViT, Grounding DINO).
        processor: Processor or tokenizer for these.
        count: Most detections of an image.
        threshold: Smallest probability.
        geometries: Where the model's inputs lie in the images, to give boxes in their pixels.

    Raises:
        TargetError: The model is no detector.
    """
    loaded = describe(model)
    model_inputs = to_model_inputs(inputs, loaded)
    columns = None
    if texts:
        loaded, model_inputs, columns = add_texts(loaded, model_inputs, tuple(texts), processor)
    with frozen(loaded.module), torch.no_grad():
        output = run_model(loaded.module, model_inputs)
    image = model_inputs.image
    size = None if image is None else (int(image.shape[-2]), int(image.shape[-1]))
    context = CallContext(loaded.module, loaded.classes, size, columns)
    return read_detections(OutputReader(output, context), count, threshold, geometries)


def read_detections(
    output: OutputReader,
    count: int = COUNT,
    threshold: float = 0.0,
    geometries: Sequence[ImageGeometry | None] = (),
) -> list[list[Detection]]:
    """Detected objects in a model's output, for each image.

    Args:
        output: The output.
        count: Most detections of an image.
        threshold: Smallest probability.
        geometries: Where the model's inputs lie in the images, to give boxes in their pixels.
    """
    boxes, probabilities = output.boxes(), output.query_probabilities()
    if probabilities is None:
        raise TargetError(f"{output.context.name} has boxes without scores")
    height, width = output.context.size or (1, 1)
    found = []
    for i, (own, corners) in enumerate(zip(probabilities, boxes, strict=True)):
        best, labels = own.max(-1)
        listed = []
        for query in best.argsort(descending=True)[:count].tolist():
            if float(best[query]) < threshold:
                break
            x0, y0, x1, y1 = corners[query].tolist()
            low, high = (x0 * width, y0 * height), (x1 * width, y1 * height)
            geometry = geometries[i] if geometries else None
            if geometry is not None:
                low, high = geometry.to_image(*low), geometry.to_image(*high)
            label = int(labels[query])
            listed.append(Detection(query, label, output.label_name(label), float(best[query]), (*low, *high)))
        found.append(listed)
    return found
