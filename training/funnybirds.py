"""Fine-tune a ViT on rendered FunnyBirds: ``python -m training.funnybirds --assets DIR --out DIR``.

``--assets`` has ``funnybirds/parts`` (the part models of the authors) and ``weights`` (DINOv2 ViT-S/14 of timm). The
training images are rendered first, with 1,000 scenes per class as in the paper, as many as the time for it allows.
Parts are left out of half of them; the target is shared equally by the classes that agree with the parts that are left.
"""

from __future__ import annotations

import argparse
import copy
import random
from dataclasses import replace
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn

from training import START_TIME
from training.images import normalise, predict
from training.loop import train
from training.recipe import Clock, Recipe, TrainingTask
from training.run_writer import RunWriter, weights_metadata
from training.runtime import add_options, autocast, logger, set_up
from vitrail.data.funnybirds.birds import BirdScene, draw_bird_classes, draw_bird_scenes, possible_classes
from vitrail.data.funnybirds.renderer import BirdRenderer

NAME, BACKBONE, SIZE = "funnybirds", "vit_small_patch14_dinov2", 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RECIPE = Recipe(batch=256, lr=2e-4, final_lr=1e-6, decay=0.02, ema=0.999, ema_share=0.05, evaluate=1)
TRAIN_SEED, TEST_SEED = 1, 2
#: Seconds reserved for the last evaluation and for writing.
RESERVED_SECONDS = 8.0


def make_model(classes: int, weights: Path | None = None) -> nn.Module:
    """The ViT with a new head, with pretrained weights whose positions are resampled to its size."""
    model = timm.create_model(BACKBONE, img_size=SIZE, num_classes=classes)
    if weights is not None:
        state = checkpoint_filter_fn(load_file(weights), model)
        kept = {key: value.float() for key, value in state.items() if not key.startswith("head.")}
        missing, unexpected = model.load_state_dict(kept, strict=False)
        if set(missing) != {"head.weight", "head.bias"} or unexpected:
            raise RuntimeError(f"{weights} does not fit {BACKBONE}: missing {missing}, unexpected {unexpected}")
    return model


def load_trained(path: Path, device: torch.device) -> nn.Module:
    """Load a trained model in float32 from its file."""
    state = {key: value.float() for key, value in load_file(path).items()}
    model = make_model(len(state["head.bias"]))
    model.load_state_dict(state)
    return model.to(device).eval().requires_grad_(False)


def resize(images: Tensor) -> Tensor:
    """Rendered images (n, 3, h, w) at the size of the model, uint8, shape (n, size, size, 3)."""
    small = F.interpolate(images.float(), (SIZE, SIZE), mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def render_images(renderer: BirdRenderer, scenes: list[BirdScene], deadline: float) -> Tensor:
    """Images at the size of the model, as `resize` returns them; fewer than scenes if the time is over."""
    done: list[Tensor] = []
    for start in range(0, len(scenes), renderer.batch):
        if done and Clock.now() > deadline:
            break
        done.append(resize(renderer.render(scenes[start : start + renderer.batch])))
    return torch.cat(done)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.funnybirds", description=__doc__)
    add_options(parser, 6.0, "the whole run, with rendering")
    parser.add_argument("--assets", type=Path, required=True, help="folder with funnybirds/parts and weights")
    parser.add_argument("--render-minutes", type=float, default=1.5, help="part of it for rendering (%(default)s)")
    parser.add_argument("--classes", type=int, default=50, help="number of classes (%(default)s)")
    parser.add_argument("--train", type=int, default=1000, help="training scenes of each class (%(default)s)")
    parser.add_argument("--test", type=int, default=10, help="test scenes of each class (%(default)s)")
    args = parser.parse_args()
    if args.smoke:
        args.classes, args.train, args.test, args.batch, args.epochs = 5, 2, 1, args.batch or 4, args.epochs or 1
    return args


def main() -> None:
    """Render the images, train the model, save and evaluate it."""
    args = parse_options()
    device = set_up(args.seed)
    writer = RunWriter(args.out, vars(args))
    renderer = BirdRenderer(
        args.assets / "funnybirds" / "parts", device=device, batch=64 if device.type == "cuda" else 4
    )
    classes = draw_bird_classes(args.classes)
    tests = draw_bird_scenes(classes, args.test, removed=False, seed=TEST_SEED)
    scenes = draw_bird_scenes(classes, args.train, removed=True, seed=TRAIN_SEED)
    random.Random(TRAIN_SEED).shuffle(scenes)  # noqa: S311 -- not for secrets
    started = Clock.now()
    test_images = render_images(renderer, tests, float("inf"))
    test_labels = torch.tensor([scene["class_idx"] for scene in tests], device=device)
    images = render_images(renderer, scenes, START_TIME + 60 * args.render_minutes)
    targets = torch.zeros(len(images), len(classes))
    for row, scene in zip(targets, scenes, strict=False):
        own = possible_classes(scene, classes)
        row[own] = 1 / len(own)
    targets = targets.to(device)
    seconds = Clock.now() - started
    logger.info("rendered %d + %d images in %.1f s", len(tests), len(images), seconds)

    def loss(net: nn.Module, indices: Tensor) -> Tensor:
        own = normalise(images[indices], MEAN, STD)
        flipped = torch.rand(len(own), device=device) < 0.5  # a mirrored bird has the same parts
        own = torch.where(flipped[:, None, None, None], own.flip(3), own)
        with autocast(device):
            logits = net(own)
        return F.cross_entropy(logits.float(), targets[indices])

    def accuracy(model: nn.Module, fast: bool = True) -> float:
        model.eval()
        return (predict(model, test_images, MEAN, STD, device, fast).argmax(1) == test_labels).float().mean().item()

    net = make_model(len(classes), args.assets / "weights" / f"{BACKBONE}.safetensors").to(device)
    model = copy.deepcopy(net).eval().requires_grad_(False)
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=args.epochs)
    names = ["-".join(str(variant) for variant in own.values()) for own in classes]
    metadata = weights_metadata({"size": SIZE, "backbone": BACKBONE}, names, MEAN, STD, name=NAME, data="FunnyBirds")
    task = TrainingTask(NAME, net, model, len(images), loss, accuracy, metadata)
    compiled = device.type == "cuda" and not args.no_compile
    result = train(task, recipe, START_TIME + 60 * args.minutes - RESERVED_SECONDS, device, writer, compiled)
    description = {
        "training": f"{len(images)} rendered scenes of {len(classes)} classes, parts left out of half of them",
        "test": f"{len(tests)} rendered scenes", "augmentation": "flip", "started_from": BACKBONE,
        "render_seconds": round(seconds, 1),
    }  # fmt: skip
    writer.finish(task, recipe, result, description, args.seed, lambda m: {"test_top1": accuracy(m, False)}, device,
                  load_trained)  # fmt: skip


if __name__ == "__main__":
    main()
