"""ROAD, SaCo, monotonicity and infidelity, and SRG, on a half of the images."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from model_halves import Values, add, half_of, predictor, timely

from vitrail.data import ImageNet
from vitrail.models.preprocess import Preprocess
from vitrail.scores import Evaluator, PerturbationRecords, find_presets
from vitrail.scores.infidelity import patch_effects, score_infidelity
from vitrail.scores.monotonicity import score_monotonicity
from vitrail.scores.road import score_road
from vitrail.scores.saco import score_saco


def faithfulness(loaded: Any, squashed: Preprocess, args: argparse.Namespace) -> Values:
    """ROAD, SaCo, monotonicity and infidelity, and SRG on more images."""
    data, values = ImageNet(args.assets / "imagenet"), Values()
    predict = predictor(loaded.module)
    patch = loaded.module.patch_embed.patch_size[0]
    for part in timely(args, half_of(data, args.half, args.faithful)):
        images = torch.stack([squashed(data[i].image) for i in part]).to(args.device)
        classes = predict(images).argmax(1)
        single = patch_effects(predict, images, classes, patch, cumulative=False)
        for method, e in args.explain(loaded, images, args.methods, classes.tolist()).items():
            maps = e.maps[:, 0]
            add(values, method, score_road(predict, images, maps, classes), ("road", "road_morf", "road_lerf"))
            add(values, method, score_saco(predict, images, maps, classes))
            add(values, method, score_monotonicity(predict, images, maps, classes))
            add(values, method, score_infidelity(maps, single))
    presets = find_presets(args.presets)
    precision = torch.bfloat16 if args.device == "cuda" else None
    evaluate = Evaluator(loaded, presets, batch=args.batch, precision=precision)
    records = []
    for part in timely(args, half_of(data, args.half, args.srg), 50):
        samples = [data[i] for i in part]
        images = torch.stack([squashed(s.image) for s in samples]).to(args.device)
        maps = {method: e.maps[:, 0] for method, e in args.explain(loaded, images, args.methods, None).items()}
        labels = torch.tensor([s.label for s in samples], device=args.device)
        records.append(evaluate(images, maps, labels=labels, ids=[s.id for s in samples]))
    joined = PerturbationRecords.join(records) if records else None
    for method in maps if joined else ():
        for preset in presets:
            fill, areas = preset.fills[0], joined.sample_scores(preset, method)
            lerf, morf = (areas.column(preset.label(f"{c}({fill})")) for c in ("negative", "positive"))
            values.setdefault(f"SRG, {preset.name}", {})[method] = (lerf - morf).tolist()
    return values
