"""Train ``lm-recall``, a small language model of recall tasks: ``python -m training.recall --out DIR``.

The texts are drawn first. Every word is predicted from those before it; the answer counts ten times as much as any
other word.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import START_TIME
from training.loop import train
from training.recipe import Clock, Loss, Recipe, TrainingTask
from training.run_writer import RunWriter
from training.runtime import add_options, autocast, logger, parallel_map, set_up
from vitrail.data.recall import (
    RECALL_LENGTH,
    RECALL_TASKS,
    RECALL_WORDS,
    RecallPrompt,
    draw_recall,
    recall_tokenizer,
    replace_source,
)
from vitrail.models.plain_decoder import PlainDecoder

RECIPE = Recipe(batch=512, lr=2e-3, final_lr=2e-5, decay=0.02, betas=(0.9, 0.98), ema=0.999, ema_share=0.05, evaluate=5)
ARCHITECTURE = {
    "words": len(RECALL_WORDS), "length": RECALL_LENGTH, "width": 96, "depth": 4, "heads": 4, "hidden": 144,
}  # fmt: skip
ANSWER_WEIGHT, OTHER_WEIGHT = 1.0, 0.1
JOB = 2_000


@dataclass(frozen=True)
class RecallData:
    """Encoded texts: prompt, answer, full stop and end.

    Attributes:
        ids: Numbers of words, padded on the right, shape (texts, n).
        answers: Position of the answer in each text, shape (texts,).
        tasks: Number of the task of each text, shape (texts,).
    """

    ids: Tensor
    answers: Tensor
    tasks: Tensor

    def to(self, device: torch.device) -> RecallData:
        """The same on a device."""
        return RecallData(self.ids.to(device), self.answers.to(device), self.tasks.to(device))


def encode(prompts: Sequence[RecallPrompt], length: int) -> RecallData:
    """Encode prompts with their answers."""
    tokenizer, names = recall_tokenizer(), list(RECALL_TASKS)
    ids = torch.zeros(len(prompts), length, dtype=torch.int64)
    for row, prompt in zip(ids, prompts, strict=True):
        numbers = [1, *tokenizer.convert_tokens_to_ids((*prompt.words, prompt.answer, ".")), 2]
        row[: len(numbers)] = torch.tensor(numbers)
    answers = torch.tensor([len(prompt.words) + 1 for prompt in prompts])
    return RecallData(ids, answers, torch.tensor([names.index(prompt.task) for prompt in prompts]))


def _job(split: str, length: int, indices: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    data = encode([prompt for index in indices for prompt in draw_recall(0, index, split=split)], length)
    return data.ids, data.answers, data.tasks


def draw_texts(split: str, pairs: int, length: int, workers: int) -> RecallData:
    """Draw and encode both prompts of some pairs in parallel."""
    start = Clock.now()
    jobs = [range(first, min(first + JOB, pairs)) for first in range(0, pairs, JOB)]
    parts = list(parallel_map(partial(_job, split, length), jobs, workers))
    ids, answers, tasks = (torch.cat(column) for column in zip(*parts, strict=True))
    logger.info("%d texts of the %s split drawn in %.1f s", len(ids), split, Clock.now() - start)
    return RecallData(ids, answers, tasks)


def next_word_loss(data: RecallData) -> Loss:
    """Weighted cross-entropy of the next word. Nothing synchronises, so that steps can be captured."""

    def loss(net: nn.Module, indices: Tensor) -> Tensor:
        ids, answers = data.ids[indices], data.answers[indices]
        with autocast(ids.device):
            logits = net(ids[:, :-1])["logits"]
        places = torch.arange(1, ids.shape[1], device=ids.device)
        weights = torch.where(places == answers[:, None], ANSWER_WEIGHT, OTHER_WEIGHT) * (ids[:, 1:] != 0)
        errors = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        return (errors * weights.flatten()).sum() / len(ids)

    return loss


@torch.no_grad()
def predicted(model: Any, data: RecallData) -> Tensor:
    """Whether the likeliest word is the answer, shape (texts,)."""
    right = []
    for ids, answers in zip(data.ids.split(500), data.answers.split(500), strict=True):
        rows = torch.arange(len(ids), device=ids.device)
        right.append(model(ids[:, :-1])["logits"][rows, answers - 1].argmax(-1) == ids[rows, answers])
    return torch.cat(right)


def accuracies(model: Any, data: RecallData, changed: RecallData) -> dict[str, float]:
    """Share of right answers in all and by task, and of answers that follow a replaced source."""
    right = predicted(model, data).float()
    by_task = {name: float(right[data.tasks == k].mean()) for k, name in enumerate(RECALL_TASKS)}
    return {
        "answers": float(right.mean()),
        **by_task,
        "replaced_source": float(predicted(model, changed).float().mean()),
    }


class TrainableDecoder(PlainDecoder):
    """A `PlainDecoder` with the initialisation it is trained from."""

    def __init__(self, **architecture: int) -> None:
        super().__init__(**architecture)
        nn.init.normal_(self.word_embed.weight, std=0.3)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and name != "word_embed.weight":
                nn.init.normal_(parameter, std=0.06)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.recall", description=__doc__)
    add_options(parser, 2.5, "the run, after the texts are drawn")
    parser.add_argument("--device", default=None, help="device; a GPU if there is one by default")
    parser.add_argument("--threads", type=int, default=None, help="threads of a run on a CPU; all by default")
    parser.add_argument("--train", type=int, default=200_000, help="pairs of training texts (%(default)s)")
    parser.add_argument("--test", type=int, default=2_000, help="pairs of held-out texts (%(default)s)")
    args = parser.parse_args()
    if args.smoke:
        args.train, args.test, args.batch, args.epochs = min(args.train, 256), 64, args.batch or 32, args.epochs or 2
    return args


def main() -> None:
    """Draw the texts, then train, save and evaluate the model."""
    args = parse_options()
    device = set_up(args.seed)
    device = device if args.device is None else torch.device(args.device)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    writer = RunWriter(args.out, vars(args))
    length = RECALL_LENGTH - 16
    drawn = {s: draw_texts(s, args.train if s == "train" else args.test, length, args.workers)
             for s in ("val", "test", "train")}  # fmt: skip
    seen = {row.numpy().tobytes() for row in drawn["train"].ids}
    repeated = sum(row.numpy().tobytes() in seen for row in drawn["test"].ids)
    changed = encode([replace_source(p) for i in range(args.test) for p in draw_recall(0, i, split="test")], length)
    sets, changed = {split: one.to(device) for split, one in drawn.items()}, changed.to(device)
    torch.manual_seed(args.seed)
    net = TrainableDecoder(**ARCHITECTURE).to(device)
    model = PlainDecoder(**ARCHITECTURE).to(device).eval().requires_grad_(False)
    model.load_state_dict(net.state_dict())
    description = f"{len(sets['train'].ids)} recall texts, train split"
    metadata = {"format": "pt", "kind": "decoder", "architecture": ARCHITECTURE, "classes": list(RECALL_WORDS),
                "name": "lm-recall", "data": description}  # fmt: skip
    task = TrainingTask(
        "lm-recall", net, model, len(sets["train"].ids), next_word_loss(sets["train"]),
        lambda m: float(predicted(m, sets["val"]).float().mean()), metadata,
    )  # fmt: skip
    recipe = replace(RECIPE, batch=args.batch or RECIPE.batch, lr=args.lr or RECIPE.lr, epochs=args.epochs)
    compiled = device.type == "cuda" and not args.no_compile
    result = train(task, recipe, Clock.now() + 60 * args.minutes - 8.0, device, writer, compiled)
    texts = {"training": description, "test": f"{len(sets['test'].ids)} recall texts, test split",
             "test_texts_in_training": repeated}  # fmt: skip
    writer.finish(task, recipe, result, texts, args.seed, lambda m: accuracies(m, sets["test"], changed), device)
    logger.info("done in %.0f s", Clock.now() - START_TIME)


if __name__ == "__main__":
    main()
