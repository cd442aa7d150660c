"""Train the models of the worlds: ``python -m training.worlds --which clip --out DIR``.

``scenes-clip`` compares images with captions, ``scenes-detr`` detects objects, ``scenes-seg`` classifies pixels,
``scenes-video`` names movements, and ``tones`` names sounds in spectrograms. The scenes, videos and spectrograms are
rendered first.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training import START_TIME
from training.loop import train
from training.recipe import Clock, Loss, Recipe, TrainingTask
from training.run_writer import RunWriter
from training.runtime import add_options, set_up
from training.scenes import top2_accuracy
from training.world_data import WorldData, render_world
from training.world_losses import (
    COLOURS,
    PLACES,
    SHAPES,
    box_loss,
    caption_rows,
    caption_table,
    clip_loss,
    corners,
    generalised_iou,
    pixel_loss,
    places_of,
    select_scenes,
    sequence_inputs,
    sequence_loss,
)
from training.world_models import (
    TrainableCLIP,
    TrainableDetector,
    TrainableSegmenter,
    TrainableSpectrogramViT,
    TrainableVideoViT,
)
from vitrail.data.captions import CAPTION_LENGTH, CAPTION_WORDS
from vitrail.data.motions import MOVEMENTS
from vitrail.data.shapes import SCENE_CLASSES
from vitrail.data.tones import TONES
from vitrail.models.loading import EMBEDDED_KINDS

RECIPE = Recipe(batch=512, lr=2e-3, ema=0.999, ema_share=0.05, evaluate=10)
RESERVED_SECONDS = 8.0
VIDEO_FLIPS = ((-1, ((0, 1),)), (-2, ((2, 3),)))
TONE_FLIPS = ((-2, ((1, 2),)), (-1, ((1, 2),)))
Scores = dict[str, float]


# --- evaluation -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def score_clip(model: Any, data: WorldData) -> Scores:
    """Both shapes of a pair in the top two of twelve prompts; right colour and place of an object of a given shape."""
    device = data.inputs.device
    table = caption_table().to(device)
    batch = select_scenes(data, torch.arange(len(data.inputs), device=device), move=False)
    images = torch.cat([nn.functional.normalize(model.get_image_features(x), dim=-1) for x in batch.images.split(500)])

    def embed(shape: Tensor, colour: Tensor, place: Tensor) -> Tensor:
        rows = caption_rows(torch.zeros_like(shape), shape, colour, place)
        return nn.functional.normalize(model.get_text_features(table[rows.flatten()]), dim=-1).unflatten(0, rows.shape)

    line = torch.arange(SHAPES, device=device)
    shapes = images @ embed(line, torch.full_like(line, COLOURS), torch.full_like(line, PLACES)).T
    labels = torch.zeros_like(shapes).scatter(1, batch.shapes[:, :2], 0.5)
    places = places_of(batch.boxes(), batch.owners.shape[-1])
    own = batch.shapes[:, :2, None]
    colours, spots = torch.arange(COLOURS, device=device), torch.arange(PLACES, device=device)
    by_colour = embed(
        own.expand(-1, -1, COLOURS), colours.expand(len(own), 2, -1), own.new_full((len(own), 2, COLOURS), PLACES)
    )
    by_place = embed(
        own.expand(-1, -1, PLACES), own.new_full((len(own), 2, PLACES), COLOURS), spots.expand(len(own), 2, -1)
    )
    colour = torch.einsum("bd,bokd->bok", images, by_colour).argmax(-1) == batch.colours[:, :2]
    place = torch.einsum("bd,bokd->bok", images, by_place).argmax(-1) == places[:, :2]
    return {
        "pairs_both_shapes_in_top2": top2_accuracy(shapes, labels),
        "colour_of_shape": colour.float().mean().item(),
        "place_of_shape": place.float().mean().item(),
    }


@torch.no_grad()
def score_detr(model: Any, data: WorldData) -> Scores:
    """Share of the objects that a query finds with the right class and an IoU of at least one half, and precision."""
    batch = select_scenes(data, torch.arange(len(data.inputs), device=data.inputs.device), move=False)
    outputs = [model(x) for x in batch.images.split(500)]
    logits, boxes = (torch.cat([o[name] for o in outputs]) for name in ("logits", "pred_boxes"))
    truth = batch.boxes().float() / batch.owners.shape[-1]
    overlap = generalised_iou(corners(boxes)[:, :, None], truth[:, None])  # at most the IoU
    right = (logits.argmax(-1)[..., None] == batch.shapes[:, None]) & (overlap >= 0.5) & batch.present[:, None]
    claimed = logits.argmax(-1) < SHAPES
    recall = right.any(1).sum() / batch.present.sum()
    return {"recall": recall.item(), "precision": (right.any(2).sum() / claimed.sum()).item()}


@torch.no_grad()
def score_seg(model: Any, data: WorldData) -> Scores:
    """Mean intersection over union of the classes and the background, and pixel accuracy."""
    batch = select_scenes(data, torch.arange(len(data.inputs), device=data.inputs.device), move=False)
    predicted = torch.cat([model(x)["logits"].argmax(1) for x in batch.images.split(500)])
    step = batch.owners.shape[-1] // predicted.shape[-1]
    truth = batch.classes_of_owners(batch.shapes, SHAPES)[:, ::step, ::step]
    pairs = torch.bincount((truth * (SHAPES + 1) + predicted).flatten(), minlength=(SHAPES + 1) ** 2)
    table = pairs.view(SHAPES + 1, -1).double()
    union = table.sum(0) + table.sum(1) - table.diagonal()
    accuracy = (table.diagonal().sum() / table.sum()).item()
    return {"mean_iou": (table.diagonal() / union).mean().item(), "pixel_accuracy": accuracy}


@torch.no_grad()
def score_sequence(model: Any, data: WorldData) -> Scores:
    """Both classes of a pair in the top two."""
    logits = torch.cat([model(sequence_inputs(part)).float() for part in data.inputs.split(250)])
    return {"pairs_both_in_top2": top2_accuracy(logits, data.labels)}


# --- the models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorldModel:
    """How one of the models is trained.

    Attributes:
        name: Name of the model and its file.
        kind: Kind of the model, as its file states it.
        world: What is rendered.
        architecture: Arguments of the model.
        classes: Names of the classes or words.
        net: The module that is trained.
        loss: From the data and the options to the loss.
        score: Scores of the finished model on held-out pairs.
    """

    name: str
    kind: str
    world: str
    architecture: dict[str, Any]
    classes: tuple[str, ...]
    net: Callable[..., nn.Module]
    loss: Callable[[WorldData, argparse.Namespace], Loss]
    score: Callable[[Any, WorldData], Scores]


MODELS = {
    "clip": WorldModel(
        "scenes-clip", "clip", "scenes", {"words": len(CAPTION_WORDS), "length": CAPTION_LENGTH}, CAPTION_WORDS,
        lambda **a: TrainableCLIP(SHAPES, COLOURS, **a),
        lambda data, args: clip_loss(data, args.hidden, args.blended), score_clip,
    ),
    "detr": WorldModel(
        "scenes-detr", "detector", "scenes", {"classes": SHAPES}, SCENE_CLASSES, TrainableDetector,
        lambda data, _: box_loss(data), score_detr,
    ),
    "seg": WorldModel(
        "scenes-seg", "segmenter", "scenes", {"classes": SHAPES + 1}, (*SCENE_CLASSES, "background"),
        TrainableSegmenter, lambda data, _: pixel_loss(data), score_seg,
    ),
    "video": WorldModel(
        "scenes-video", "video", "motions", {"classes": len(MOVEMENTS)}, MOVEMENTS, TrainableVideoViT,
        lambda data, args: sequence_loss(data, (2, 8, 8), VIDEO_FLIPS, args.hidden, args.blended), score_sequence,
    ),
    "tones": WorldModel(
        "tones", "spectrogram", "tones", {"classes": len(TONES)}, TONES, TrainableSpectrogramViT,
        lambda data, args: sequence_loss(data, (8, 8), TONE_FLIPS, args.hidden, args.blended), score_sequence,
    ),
}  # fmt: skip


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.worlds", description=__doc__)
    add_options(parser, 4.0, "the run, after rendering")
    parser.add_argument("--which", choices=list(MODELS), required=True, help="model to train")
    parser.add_argument("--total-minutes", type=float, default=None, help="time limit for the run, with rendering")
    parser.add_argument("--train", type=int, default=40_000, help="training examples (%(default)s)")
    parser.add_argument("--test", type=int, default=1_000, help="held-out pairs (%(default)s)")
    parser.add_argument(
        "--hidden", type=float, default=0.5, help="fraction of examples with hidden patches (%(default)s)"
    )
    parser.add_argument("--blended", type=float, default=0.25, help="fraction of blended examples (%(default)s)")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps rendered sets for further runs")
    parser.add_argument("--render-only", action="store_true", help="render into --cache and stop")
    parser.add_argument("--render-seconds", type=float, default=90.0, help="time limit to render the training set")
    args = parser.parse_args()
    if args.smoke:
        args.train, args.test, args.batch, args.epochs = min(args.train, 128), 32, args.batch or 32, args.epochs or 2
    return args


def rendered(args: argparse.Namespace, world: str, split: str) -> WorldData:
    """Examples of a split: training examples, or held-out pairs; read from the cache if they are there."""
    file = None if args.cache is None else args.cache / f"{world}-{split}.pt"
    if file is not None and file.is_file():
        return WorldData(**torch.load(file, weights_only=True))
    count, seconds = (args.train, args.render_seconds) if split == "train" else (args.test, math.inf)
    data = render_world(world, split, count, split != "train", args.workers, seconds)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        torch.save(vars(data), partial)
        partial.replace(file)
    return data


def main() -> None:
    """Render the examples, then train, save and evaluate one model."""
    args = parse_options()
    device = set_up(args.seed)
    writer = RunWriter(args.out, vars(args))
    spec = MODELS[args.which]
    sets = {split: rendered(args, spec.world, split) for split in ("val", "test", "train")}
    if args.render_only:
        return
    sets = {split: one.to(device) for split, one in sets.items()}
    data = sets["train"]
    torch.manual_seed(args.seed)
    net = spec.net(**spec.architecture).to(device)
    model = EMBEDDED_KINDS[spec.kind](**spec.architecture).to(device).eval().requires_grad_(False)
    model.load_state_dict({key: value for key, value in net.state_dict().items() if key in model.state_dict()})
    metadata = {"format": "pt", "kind": spec.kind, "architecture": spec.architecture, "classes": list(spec.classes),
                "name": spec.name, "data": data.description}  # fmt: skip
    if spec.world == "scenes":
        metadata["preprocess"] = {"size": [128, 128], "mean": [0.5] * 3, "std": [0.5] * 3, "crop": 1.0}
    task = TrainingTask(
        spec.name, net, model, len(data.inputs), spec.loss(data, args),
        lambda m: next(iter(spec.score(m, sets["val"]).values())), metadata,
    )  # fmt: skip
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=args.epochs)
    compiled = device.type == "cuda" and not args.no_compile
    end = Clock.now() + 60 * args.minutes
    end = end if args.total_minutes is None else min(end, START_TIME + 60 * args.total_minutes)
    result = train(task, recipe, end - RESERVED_SECONDS, device, writer, compiled)
    description = {"training": data.description, "hidden": args.hidden, "blended": args.blended,
                   "test": sets["test"].description}  # fmt: skip
    writer.finish(task, recipe, result, description, args.seed, lambda m: spec.score(m, sets["test"]), device)


if __name__ == "__main__":
    main()
