"""The grid pointing game, and DiFull and DiPart, in which the cells of a grid cannot influence each other."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from model_halves import Values, add, batches, half_of, predictor, raw_maps, timely
from torch import Tensor

from vitrail.data import ImageNet
from vitrail.data.image_grids import draw_grids
from vitrail.models.preprocess import Preprocess
from vitrail.scores.disconnected import DisconnectedGrid
from vitrail.scores.grid_pointing import compose_grids, score_grid_pointing


def grids(loaded: Any, squashed: Preprocess, args: argparse.Namespace) -> Values:
    """The grid pointing game, DiFull and DiPart."""
    if not args.grids and not args.disconnected:
        return {}
    data = ImageNet(args.assets / "imagenet")
    chosen = half_of(data, args.half, args.images)
    images = torch.stack([squashed(data[i].image) for i in chosen])
    labels = np.array([data[i].label for i in chosen])
    predict = predictor(loaded.module)
    probabilities = torch.cat([predict(part.to(args.device)).cpu() for part in batches(images, 100)])
    eligible = (probabilities[torch.arange(len(labels)), labels] >= args.confidence).nonzero()[:, 0].numpy()
    print(f"  {len(eligible)} of {len(chosen)} images are classified with confidence", flush=True)
    drawn = eligible[draw_grids(labels[eligible], max(args.grids, args.disconnected))]
    return grid_values(loaded, images, labels, drawn, args) | disconnected_values(
        loaded, squashed, images, labels, drawn, args
    )


def grid_values(loaded: Any, images: Tensor, labels: np.ndarray, drawn: np.ndarray, args: argparse.Namespace) -> Values:
    """Shares of the game itself, of maps and of relevance before scaling."""
    values: Values = {}
    for part in timely(args, drawn[: args.grids]):
        own = compose_grids(images[part.flatten()].unflatten(0, part.shape)).to(args.device)
        for method, e in args.explain(loaded, own, args.methods, labels[part].tolist()).items():
            shown = score_grid_pointing(e.maps)
            add(values, method, shown, ("cell_peak", "corners"))
            add(values, method, {"cell_share (maps)": shown["cell_share"]})
            add(values, method, {"cell_share": score_grid_pointing(raw_maps(e))["cell_share"]})
    return values


def disconnected_values(
    loaded: Any,
    squashed: Preprocess,
    images: Tensor,
    labels: np.ndarray,
    drawn: np.ndarray,
    args: argparse.Namespace,
) -> Values:
    """Shares of DiFull and DiPart, mean over the cells of a grid."""
    values: Values = {}
    size = (2 * squashed.size[0], 2 * squashed.size[1])
    models = {cell: DisconnectedGrid(loaded.module, cell=cell) for cell in (None, *range(4))}
    for part in timely(args, drawn[: args.disconnected], 4):
        own = compose_grids(images[part.flatten()].unflatten(0, part.shape), size=size).to(args.device)
        shares: dict[str, dict[str, list[Tensor]]] = {"difull": {}, "dipart": {}}
        for cell in range(4):
            for setting, model in (("difull", models[cell]), ("dipart", models[None])):
                target = labels[part][:, cell].tolist()
                model.to(args.device)
                for method, e in args.explain(
                    loaded=model, images=own, methods=args.methods, target=target, layout=model.layout
                ).items():
                    found = score_grid_pointing(raw_maps(e), torch.full((len(part), 1), cell))
                    shares[setting].setdefault(method, []).append(found["cell_share"])
        for setting, by_method in shares.items():
            for method, own_shares in by_method.items():
                add(values, method, {setting: torch.stack(own_shares).mean(0)})
    return values
