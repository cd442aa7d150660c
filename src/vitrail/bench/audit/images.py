"""Images, masks and checks of an audit: read from the data set of a run, or from an explained folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.bench.context import BenchContext, BenchModel, open_context
from vitrail.bench.folder import folder_settings, open_listed
from vitrail.bench.folder_chunk import open_folder_context
from vitrail.bench.ground_truth import IGNORE, GroundTruth, prepare_ground_truth
from vitrail.bench.map_store import MapStore
from vitrail.bench.plan import Plan
from vitrail.data.source import Source, SourceItem
from vitrail.errors import DataError, VitrailError
from vitrail.methods import find
from vitrail.methods.postprocess import normalise, upsample
from vitrail.models.preprocess import open_image
from vitrail.pipeline.explain import explain
from vitrail.scores.statistics import Array
from vitrail.viz.colormap import overlay

Row = Mapping[str, Any]


class AuditImages:
    """The images behind a store of maps."""

    def __init__(self, store: MapStore, device: str = "cpu") -> None:
        self.store, self.device = store, device
        self._positions: dict[int, dict[str, int]] = {}

    @cached_property
    def plan(self) -> Plan | None:
        """Plan of the run; None for an explained folder."""
        given = self.store.manifest.get("plan")
        return None if given is None else Plan.model_validate(given)

    @cached_property
    def _context(self) -> BenchContext:
        if self.plan is None:
            return open_folder_context(folder_settings(self.store.manifest), self.device)
        return open_context(self.plan.model_dump_json(), self.device)

    @cached_property
    def _source(self) -> tuple[Source, dict[str, SourceItem]]:
        """Source of an explained folder, and where each image is."""
        source = open_listed(self.store.manifest, self.store.folder)
        return source, {item.id: item for item in source.items}

    def model(self, row: Row) -> BenchModel:
        """The model whose map a row describes."""
        titles = [] if self.plan is None else [spec.title for spec in self.plan.models]
        return self._context.model(titles.index(row["model"]) if titles else 0)

    def read(self, row: Row) -> GroundTruth:
        """The image of a row, preprocessed for its model, with its objects where the data set has masks."""
        model = self.model(row)
        if self.plan is None:
            source, items = self._source
            if row["image"] not in items:
                raise DataError(f"{row['image']} is no longer in {self.store.manifest['folder']}")
            image = model.preprocess(open_image(row["image"], source.open(items[row["image"]])))
            return GroundTruth(row["image"], image)
        number = [spec.title for spec in self.plan.dataset].index(row["dataset"])
        images = self._context.images(number)
        if number not in self._positions:
            self._positions[number] = {name: i for i, name in enumerate(images.dataset.ids)}
        by_class = self._context.same_classes([m.title for m in self.plan.models].index(row["model"]), number)
        return prepare_ground_truth(images.dataset, self._positions[number][row["image"]], model.preprocess, by_class)

    def masks(self, rows: Sequence[Row], grid: tuple[int, int]) -> Array:
        """Share of each patch that the explained object covers, shape (maps, rows, columns); NaN where unknown."""
        covered = np.full((len(rows), *grid), np.nan)
        for number, row in enumerate(rows if self.plan is not None else ()):
            try:
                mask = self.read(row).mask_of(row["class"])
            except VitrailError:  # an image that is no longer there has no mask
                continue
            if mask is not None:
                inside = ((mask != 0) & (mask != IGNORE)).float()
                covered[number] = F.adaptive_avg_pool2d(inside[None, None], grid)[0, 0].numpy()
        return covered

    def thumbnail(self, row: Row) -> NDArray[np.uint8] | None:
        """The map of a row over its image, bytes of shape (height, width, 3); None if the image is not there."""
        try:
            model, image = self.model(row), self.read(row).image
        except (VitrailError, OSError):
            return None
        _, method, options = find(row["method"])
        pixels = model.preprocess.denormalise(image[None])[0]
        size = (image.shape[-2], image.shape[-1])
        relevance: Tensor = normalise(upsample(self.store.read(row), size), method.is_signed(options))
        drawn: NDArray[np.uint8] = overlay(pixels, relevance.numpy(), method.is_signed(options))
        return drawn

    def check(self, rows: Sequence[Row], advance: Callable[[], None] = lambda: None) -> dict[str, int]:
        """Compute maps again and check them; return the number of maps by verdict."""
        verdicts: Counter[str] = Counter()
        for row in rows:
            try:
                image = self.read(row).image[None].to(self.device)
                maps = explain(self.model(row).loaded, image, row["method"], target=torch.tensor([[row["class"]]]))
                verdicts[maps.check().verdict] += 1
            except VitrailError:
                verdicts["could not be checked"] += 1
            advance()
        return dict(verdicts.most_common())
