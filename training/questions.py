"""Train ``scenes-vlm``: ``python -m training.questions --out DIR``.

The scenes and questions are rendered first. Four questions about a scene share one pass: each attends to the image and
to itself.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import START_TIME
from training.loop import train
from training.question_data import QuestionData, render_questions
from training.recipe import Loss, Recipe, TrainingTask
from training.run_writer import RunWriter
from training.runtime import add_options, autocast, set_up
from training.world_data import WorldData
from training.world_losses import COLOURS, SHAPES, attribute_loss, attribute_targets, select_scenes
from training.world_models import initialise, run_blocks
from vitrail.data.questions import IMAGE, PAD, QUESTION_KINDS, QUESTION_LENGTH, QUESTION_WORDS
from vitrail.models.plain_vlm import PlainVLM

RECIPE = Recipe(batch=256, lr=1.5e-3, ema=0.999, ema_share=0.05, evaluate=20)
ARCHITECTURE = {"words": len(QUESTION_WORDS), "length": QUESTION_LENGTH}
RESERVED_SECONDS = 15.0
LABEL_SMOOTHING = 0.02
PACKED = 4
QUESTION_MARK = QUESTION_WORDS.index("?")


class TrainableVLM(PlainVLM):
    """A ``PlainVLM`` with heads that name the shape and the colour of each patch, and passes of several questions.

    Args:
        questions: Questions of a scene that share a pass.
        **architecture: Arguments of the model.
    """

    def __init__(self, questions: int = PACKED, **architecture: Any) -> None:
        super().__init__(**architecture)
        width, (patches, length) = self.embed.out_channels, (self.position.shape[1], self.text_position.shape[1])
        self.shape_head, self.colour_head = nn.Linear(width, SHAPES + 1), nn.Linear(width, COLOURS + 1)
        initialise(self, self.grid)
        nn.init.normal_(self.word_embed.weight, std=0.2)
        nn.init.normal_(self.text_position, std=0.05)
        for layer in (self.projector[0], self.projector[2], self.head):
            nn.init.normal_(layer.weight, std=width**-0.5)
        text = torch.zeros(patches, dtype=torch.long)
        group = torch.cat([text, torch.arange(1, questions + 1).repeat_interleave(length)])
        step = torch.arange(len(group))
        visible = (step[:, None] >= step) & ((group == 0) | (group[:, None] == group))
        self.register_buffer("visible", visible[None, None], persistent=False)

    def forward_packed(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the words, and of the shape and the colour of the patches after each block but the first.

        Args:
            images: Shape (b, 3, h, w).
            texts: Questions with answers, shape (b, questions, length).
        """
        outputs = run_blocks(self.blocks, self.embed(images).flatten(2).transpose(1, 2) + self.position)
        patches = F.layer_norm(torch.cat(outputs[1:]), outputs[0].shape[-1:])
        words = (self.word_embed(texts) + self.text_position[:, None]).flatten(1, 2)
        features = self.projector(self.norm(outputs[-1]))
        x = torch.cat([features.float(), words], 1)  # residual sums stay in single precision
        for block in self.text_blocks:
            x = block(x, self.visible)
        logits = self.head(self.text_norm(x[:, self.position.shape[1] :])).unflatten(1, texts.shape[1:])
        return logits, self.shape_head(patches), self.colour_head(patches)


def answer_positions(texts: Tensor) -> Tensor:
    """Which words are predicted from the word before them: the answer and the end, shape of the texts without one."""
    asked = (texts == QUESTION_MARK).cumsum(-1)[..., :-1] > 0
    return asked & (texts[..., 1:] != PAD)


def question_loss(data: QuestionData) -> Loss:
    """Cross-entropy of the words of the answers, each question with equal weight, plus shape and colour of patches."""

    def loss(net: TrainableVLM, indices: Tensor) -> Tensor:
        b, device = len(indices), indices.device
        batch = select_scenes(data.scenes, indices, move=False)
        images, owners = batch.images, batch.owners
        bits = torch.rand(3, b, device=device) < 0.5
        for chosen, turn in zip(bits, (_flip_columns, _flip_rows, _transpose), strict=True):
            images = torch.where(chosen.view(-1, 1, 1, 1), turn(images), images)
            owners = torch.where(chosen.view(-1, 1, 1), turn(owners), owners)
        contrast = torch.empty(b, 1, 1, 1, device=device).uniform_(0.9, 1.1)
        shift = torch.empty(b, 3, 1, 1, device=device).uniform_(-0.06, 0.06)
        images = (images * contrast + shift + 0.03 * torch.randn_like(images)).clamp(-1, 1).contiguous()
        symmetry = bits[0].long() + 2 * bits[1].long() + 4 * bits[2].long()
        drawn = torch.rand(b, data.texts.shape[2], device=device).argsort(1)[:, :PACKED]
        texts = data.texts[indices[:, None], symmetry[:, None], drawn].long()
        batch = replace(batch, images=images, owners=owners)
        targets = attribute_targets(batch, batch.coverage())
        with autocast(device):
            logits, shapes, colours = net.forward_packed(images, texts)
        asked, following = answer_positions(texts).float(), texts[..., 1:]
        terms = F.cross_entropy(
            logits[..., :-1, :].float().flatten(0, 2), following.flatten(), label_smoothing=LABEL_SMOOTHING,
            reduction="none",
        ).view_as(asked)  # fmt: skip
        answers = ((terms * asked).sum(-1) / asked.sum(-1)).mean()
        return answers + 0.5 * attribute_loss((shapes, colours), targets)

    return loss


def _flip_columns(t: Tensor) -> Tensor:
    return t.flip(-1)


def _flip_rows(t: Tensor) -> Tensor:
    return t.flip(-2)


def _transpose(t: Tensor) -> Tensor:
    return t.transpose(-1, -2)


@torch.no_grad()
def score_answers(model: Any, data: QuestionData) -> dict[str, float]:
    """Share of the questions of each kind that are answered right in every word, by the model as it is used."""
    images, texts = data.scenes.inputs, data.texts[:, 0].long()
    right = []
    for part, words in zip(images.split(100), texts.split(100), strict=True):
        pixels = (part.permute(0, 3, 1, 2).float() / 127.5 - 1).repeat_interleave(texts.shape[1], 0)
        flat = words.flatten(0, 1)
        front = torch.full((len(flat), model.position.shape[1]), IMAGE, device=flat.device)
        logits = model(torch.cat([front, flat], 1), pixels)["logits"][:, front.shape[1] :]
        wrong = (logits[:, :-1].argmax(-1) != flat[:, 1:]) & answer_positions(flat)
        right.append(~wrong.any(-1))
    answered, kinds = torch.cat(right).float(), data.kinds[:, 0].flatten()
    scores = {kind: answered[kinds == k].mean().item() for k, kind in enumerate(QUESTION_KINDS)}
    return {"colour_and_shape": (scores["colour"] + scores["shape"]) / 2, **scores}


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.questions", description=__doc__)
    add_options(parser, 5.5, "the run, with rendering")
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None, help="device; a GPU if there is one")
    parser.add_argument("--train", type=int, default=80_000, help="training scenes (%(default)s)")
    parser.add_argument("--test", type=int, default=1_000, help="held-out scenes (%(default)s)")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps rendered sets for further runs")
    parser.add_argument("--render-seconds", type=float, default=80.0, help="time limit to render the training set")
    args = parser.parse_args()
    if args.smoke:
        args.train, args.test, args.batch, args.epochs = min(args.train, 128), 32, args.batch or 32, args.epochs or 2
    return args


def rendered(args: argparse.Namespace, split: str) -> QuestionData:
    """Scenes of a split with questions, read from the cache if they are there."""
    file = None if args.cache is None else args.cache / f"questions-{split}.pt"
    if file is not None and file.is_file():
        content = torch.load(file, weights_only=True)
        return QuestionData(WorldData(**content["scenes"]), content["texts"], content["kinds"])
    count, seconds = (args.train, args.render_seconds) if split == "train" else (args.test, math.inf)
    data = render_questions(split, count, args.workers, seconds)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"scenes": vars(data.scenes), "texts": data.texts, "kinds": data.kinds}, file)
    return data


def main() -> None:
    """Render the scenes, then train, save and evaluate the model."""
    args = parse_options()
    device = set_up(args.seed)
    device = device if args.device is None else torch.device(args.device)
    writer = RunWriter(args.out, vars(args))
    sets = {split: rendered(args, split) for split in ("val", "test", "train")}
    sets = {split: one.to(device) for split, one in sets.items()}
    data = sets["train"]
    torch.manual_seed(args.seed)
    net = TrainableVLM(**ARCHITECTURE).to(device)
    model = PlainVLM(**ARCHITECTURE).to(device).eval().requires_grad_(False)
    model.load_state_dict({key: value for key, value in net.state_dict().items() if key in model.state_dict()})
    metadata = {
        "format": "pt", "kind": "vlm", "architecture": ARCHITECTURE, "classes": list(QUESTION_WORDS),
        "name": "scenes-vlm", "data": data.scenes.description,
        "preprocess": {"size": [128, 128], "mean": [0.5] * 3, "std": [0.5] * 3, "crop": 1.0},
    }  # fmt: skip
    task = TrainingTask(
        "scenes-vlm", net, model, len(data.texts), question_loss(data),
        lambda m: next(iter(score_answers(m, sets["val"]).values())), metadata,
    )  # fmt: skip
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=args.epochs)
    compiled = device.type == "cuda" and not args.no_compile
    end = START_TIME + 60 * args.minutes - RESERVED_SECONDS
    result = train(task, recipe, end, device, writer, compiled)
    description = {"training": data.scenes.description, "test": sets["test"].scenes.description}
    writer.finish(task, recipe, result, description, args.seed, lambda m: score_answers(m, sets["test"]), device)


if __name__ == "__main__":
    main()
