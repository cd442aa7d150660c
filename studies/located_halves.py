"""Segmentation of pets, the check of single maps, and class discrimination on scenes."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from corner_effects import corner_effects
from model_halves import CHOSEN, OBJECT, Values, add, batches, half_of, predictor, timely
from torch import Tensor

import vitrail
from vitrail.data import MaskFolder, Scenes
from vitrail.models.preprocess import Preprocess
from vitrail.scores import SegmentationScores, score_segmentation, score_selectivity
from vitrail.scores.grid_pointing import score_grid_pointing


def localisation(loaded: Any, squashed: Preprocess, args: argparse.Namespace) -> tuple[Values, dict[str, Any]]:
    """Segmentation of pets (values are ratios, see `SegmentationScores`), and the check of single maps."""
    data, values = MaskFolder(args.assets / "pets"), Values()
    segmented: dict[str, SegmentationScores] = {}
    for part in timely(args, half_of(data, args.half, args.pets)):
        samples = [data[i] for i in part]
        images = torch.stack([squashed(s.image) for s in samples]).to(args.device)
        masks = torch.stack([_mask(s.mask, squashed.size) for s in samples]).to(args.device)
        for method, e in args.explain(loaded, images, args.methods, None).items():
            own = segmented.setdefault(method, SegmentationScores())
            own.add([s.id for s in samples], score_segmentation(e.maps[:, 0], masks))
            corners = score_grid_pointing(e.maps, n=1)["corners"]
            add(values, method, {"corners (pets)": corners})
        for name, effect in corner_effects(predictor(loaded.module), images, loaded.module).items():
            add(values, name, {"loss of probability (pets)": effect})
    ratios = {method: own.ratios() for method, own in segmented.items()}
    checks: dict[str, dict[str, int]] = {}
    for i in half_of(data, args.half, args.checks):
        image = squashed(data[i].image)[None].to(args.device)
        for method in (OBJECT, CHOSEN):
            verdict = vitrail.explain(loaded, image, method, check="quick").checks[0, 0].verdict
            own_verdicts = checks.setdefault(method, {})
            own_verdicts[verdict] = own_verdicts.get(verdict, 0) + 1
            add(values, method, {"check passes (pets)": torch.tensor([float(verdict == "faithful")])})
    return values, {"ratios": ratios, "checks": checks}


def _mask(mask: Any, size: tuple[int, int]) -> Tensor:
    whole = torch.from_numpy(np.array(mask))[None, None].float()
    return torch.nn.functional.interpolate(whole, size=size, mode="nearest")[0, 0].long()


def scenes(args: argparse.Namespace) -> Values:
    """Class discrimination on scenes with two objects."""
    loaded, values = vitrail.load("scenes"), Values()
    loaded.module.to(args.device)
    data = Scenes(("val", "test")[args.half], pairs=True, count=args.scenes)
    for part in batches(range(args.scenes), 50):
        own = [data[i] for i in part]
        masks = torch.from_numpy(np.stack([scene.masks for scene in own])).to(args.device)
        images, classes = data.batch(part)[0].to(args.device), [list(scene.classes) for scene in own]
        for method, e in args.explain(loaded, images, args.methods, classes).items():
            add(values, method, score_selectivity(e.maps, masks), ("share", "mass"))
    return values
