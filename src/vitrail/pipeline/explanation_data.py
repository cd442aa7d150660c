"""Fields of an explanation, and the names, probabilities and images that are read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from vitrail.inputs.map_axis import MapAxis
from vitrail.inputs.map_source import CheckSource
from vitrail.inputs.targets import class_scores
from vitrail.models.class_group import ClassGroup
from vitrail.models.preprocess import Preprocess, rescale_to_bytes
from vitrail.pipeline.original_image import OriginalImage
from vitrail.pipeline.provenance import Provenance
from vitrail.pipeline.saved_files import slug
from vitrail.pipeline.smoothing import Smoothing
from vitrail.targets.bound_targets import TargetRecord

if TYPE_CHECKING:
    from vitrail.text.result import WordRelevance
    from vitrail.trust.map_check import MapCheck


@dataclass(frozen=True, eq=False, repr=False)
class ExplanationData:
    """The fields of `vitrail.Explanation`, which describes them."""

    method: str
    title: str
    maps: Tensor
    grid: Tensor
    targets: Tensor | None
    logits: Tensor | None
    options: Mapping[str, Any]
    seconds: float
    constant: Tensor
    signed: bool = False
    model: str = ""
    classes: tuple[str, ...] | None = None
    images: Tensor | None = field(default=None, repr=False)
    preprocess: Preprocess | None = field(default=None, repr=False)
    structure: Mapping[str, str] = field(default_factory=dict, repr=False)
    intermediates: Mapping[str, Any] = field(default_factory=dict, repr=False)
    text: Sequence[WordRelevance] | None = field(default=None, repr=False)
    provenance: Provenance | None = field(default=None, repr=False)
    groups: tuple[ClassGroup, ...] = ()
    source: CheckSource | None = field(default=None, repr=False)
    checks: Mapping[tuple[int, int], MapCheck] = field(default_factory=dict, repr=False)
    smoothing: Smoothing | None = None
    target_labels: tuple[str, ...] | None = None
    scores: str = "softmax"
    originals: tuple[OriginalImage, ...] | None = field(default=None, repr=False)
    named_targets: tuple[tuple[TargetRecord, ...], ...] | None = field(default=None, repr=False)
    axes: tuple[MapAxis, ...] = ()
    signal: Tensor | None = field(default=None, repr=False)

    @property
    def of_texts(self) -> bool:
        """Whether texts were explained, and no images."""
        return self.text is not None and self.images is None

    @property
    def probabilities(self) -> Tensor | None:
        """Probability of each target, shape (B, K); None where targets are no classes or values of a regression."""
        if self.logits is None or self.targets is None or self.scores == "identity":
            return None
        return class_scores(self.logits, "prob", self.groups, self.scores).gather(1, self.targets)

    @cached_property
    def rgb_images(self) -> np.ndarray[Any, Any] | None:
        """The images as uint8, shape (B, height, width, 3), or None for texts; computed at first access."""
        if self.images is None:
            return None
        known = self.preprocess is not None and len(self.preprocess.mean) == self.images.shape[1]
        return self.preprocess.denormalise(self.images) if known and self.preprocess else rescale_to_bytes(self.images)

    def label(self, image: int, k: int) -> str:
        """Class name and probability of a target, for display; a group has its own name or those of its classes."""
        name, probabilities = self.target_name(image, k), self.probabilities
        return name if probabilities is None else f"{name} ({_percent(float(probabilities[image, k]))})"

    def target_name(self, image: int, k: int) -> str:
        """Name of a target, for display: a class, a group of classes, or the text of a row of a CLIP model."""
        if self.named_targets is not None:
            return self.named_targets[image][k].title
        if self.targets is None:
            return self.target_labels[k] if self.target_labels and k < len(self.target_labels) else f"target {k}"
        index = int(self.targets[image, k])
        if self.groups and self.logits is not None and index >= self.logits.shape[1]:
            return self.groups[index - self.logits.shape[1]].title(self.classes)
        return self.classes[index].split(",")[0] if self.classes and index < len(self.classes) else f"class {index}"

    def overlay_names(self, stem: str = "overlay", suffix: str = "png") -> list[str]:
        """File names of the overlays, all targets of the first image first."""
        drawn = self.images is not None or (self.signal is not None and self.maps.dim() == 2 + len(self.axes))
        if not drawn:
            return []
        images, count = self.maps.shape[:2]
        if images == count == 1:
            return [f"{stem}.{suffix}"]
        return [f"{stem}-{b:03d}-{k}-{slug(self.label(b, k))}.{suffix}" for b in range(images) for k in range(count)]


def _percent(p: float) -> str:
    return f"{100 * p:.1f} %" if p >= 0.001 else "<0.1 %"
