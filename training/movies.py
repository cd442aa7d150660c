"""Train a small text encoder on ERASER's movie reviews: ``python -m training.movies --data ARCHIVE --out DIR``.

Without ``--from`` everything is made here from the training reviews alone: a WordPiece vocabulary, then an encoder of
BERT's kind that first learns to fill in masked words and then to tell NEG from POS. With ``--from DIR`` an encoder and
its tokenizer, which the user has on disk, are trained on the verdicts only. With ``--warm FILE`` verdicts are first
learnt from other reviews: the Large Movie Review Dataset as one JSON list of ``{"t": text, "s": 0 or 1}``. A review is
learnt from by a random stretch of it, and judged as a whole, by the mean of the logits over windows. Of the epochs the
one with the best accuracy on the validation reviews is kept; the test reviews are measured once, at the end.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from training import STARTED
from training.journal import Journal, device_name, versions
from training.schedule import Clock, Recipe
from training.start import add_options, logger, set_up
from vitrail.data.movies import Movies
from vitrail.text.tokens import TokenizerSettings
from vitrail.text.windows import predict_texts

NAME = "movies"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ARCHITECTURE: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 1024,
    "max_position_embeddings": 512, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
TINY = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96,
        "max_position_embeddings": 128}  # fmt: skip
VOCABULARY = 8000
WORDS = Recipe(batch=64, lr=1e-3, decay=0.01, evaluate=1)
VERDICTS = Recipe(batch=32, lr=2e-4, decay=0.05, evaluate=1)
#: For an encoder that already knows the language, as the published experiments have it.
FINE = Recipe(batch=10, lr=1e-5, decay=0.01, epochs=10, evaluate=1)
#: For other reviews, of which there are many.
WARM = Recipe(batch=64, lr=1e-4, decay=0.01, epochs=2, evaluate=1)
#: Share of the words that are hidden: to be filled in, and while verdicts are learnt.
HIDDEN, DROPPED = 0.15, 0.1
RESERVE = 20.0


@dataclass(frozen=True)
class Reviews:
    """Reviews of one split: their texts, and their tokens without special ones."""

    texts: list[str]
    tokens: list[Tensor]
    labels: Tensor


def read(data: Path, split: str, most: int | None) -> Movies | list[Any]:
    """A split of the reviews, or as many of each verdict in turn as are asked for."""
    reviews = Movies(data, split)
    if most is None:
        return reviews
    by_label = [[s for s in reviews if s.label == label] for label in (0, 1)]
    return [sample for pair in zip(*by_label, strict=False) for sample in pair][:most]


def read_warm(file: Path, tokenizer: Any, taken: set[str], most: int | None) -> Reviews:
    """Other reviews with their verdicts, without those whose words are among the taken ones."""
    found = json.loads(file.read_text(encoding="utf-8"))
    fresh = [one for one in found[:most] if plain(one["t"]) not in taken]
    logger.info("%d other reviews to learn from first, %d left out", len(fresh), len(found[:most]) - len(fresh))
    texts = [re.sub(r"<[^>]*>", " ", one["t"]) for one in fresh]
    ids = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return Reviews(texts, [torch.tensor(own) for own in ids], torch.tensor([int(one["s"]) for one in fresh]))


def plain(text: str) -> str:
    """The beginning of a text, letters only: what two copies of a review share however they were cleaned."""
    return re.sub(r"[^a-z]", "", re.sub(r"<[^>]*>", " ", text).lower())[:200]


def vocabulary(texts: Sequence[str], size: int, length: int) -> transformers.PreTrainedTokenizerFast:
    """A WordPiece tokenizer of BERT's kind, made from texts."""
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 -- a token, not a password
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(SPECIAL)))
    ends = [(word, inner.token_to_id(word)) for word in ("[CLS]", "[SEP]")]
    inner.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=length, **names)


def tokenise(samples: Any, tokenizer: Any) -> Reviews:
    """Reviews with their tokens."""
    texts = [sample.text for sample in samples]
    found = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    labels = torch.tensor([sample.label for sample in samples])
    return Reviews(texts, [torch.tensor(ids) for ids in found], labels)


class Stretches:
    """Random stretches of the reviews, as the model takes them."""

    def __init__(self, reviews: Reviews, tokenizer: Any, length: int, device: torch.device) -> None:
        self._reviews, self._tokenizer, self._length, self._device = reviews, tokenizer, length, device

    def __call__(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens, shape (b, n), and which of them are no padding."""
        room = self._length - 2
        rows = []
        for i in indices.tolist():
            ids = self._reviews.tokens[i]
            start = int(torch.randint(0, max(1, len(ids) - room + 1), ()))
            rows.append(ids[start : start + room])
        n = max(map(len, rows)) + 2
        tokens = torch.full((len(rows), n), int(self._tokenizer.pad_token_id))
        for own, row in zip(tokens, rows, strict=True):
            own[0], own[len(row) + 1] = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
            own[1 : len(row) + 1] = row
        mask = torch.arange(n)[None] < torch.tensor([len(row) + 2 for row in rows])[:, None]
        return tokens.to(self._device), mask.to(self._device)

    def hide(self, tokens: Tensor, mask: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """The same with a share of the words hidden, and which those are."""
        ends = (tokens == self._tokenizer.cls_token_id) | (tokens == self._tokenizer.sep_token_id)
        hidden = (torch.rand(tokens.shape, device=tokens.device) < share) & mask & ~ends
        return torch.where(hidden, int(self._tokenizer.mask_token_id), tokens), hidden


Loss = Callable[[Tensor], Tensor]
Measure = Callable[[], float]


def train(
    name: str,
    net: nn.Module,
    loss: Loss,
    count: int,
    recipe: Recipe,
    deadline: float,
    journal: Journal,
    measure: Measure | None,
) -> dict[str, Any]:
    """Train until the schedule is complete; with a measure, leave the net as it was after its best epoch."""
    decayed = [p for p in net.parameters() if p.ndim >= 2]
    free = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": free, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas)
    each = count // recipe.batch
    if not each:
        raise RuntimeError(f"{count} reviews are fewer than one batch of {recipe.batch}")
    clock = Clock(deadline, None if recipe.epochs is None else recipe.epochs * each)
    clock.begin()
    began, step, epoch, progress, lr, best, kept = Clock.now(), 0, 0, 0.0, 0.0, -1.0, (0, {})
    while progress < 1:
        epoch_began, total, steps = Clock.now(), 0.0, 0
        for indices in torch.randperm(count)[: each * recipe.batch].split(recipe.batch):
            lr = recipe.rate(progress)
            for group in optimizer.param_groups:
                group["lr"] = lr
            net.train()
            value = loss(indices)
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
            optimizer.step()
            total, step, steps = total + float(value.detach()), step + 1, steps + 1
            progress = clock.progress(step)
            if progress >= 1:
                break
        epoch += 1
        if total != total:
            raise RuntimeError(f"{name}: the loss is not a number in epoch {epoch}; lower --lr")
        accuracy = None if measure is None else measure()
        if accuracy is not None and accuracy >= best:
            best, kept = accuracy, (epoch, copy.deepcopy(net.state_dict()))
        journal.epoch(model=name, epoch=epoch, step=step, progress=round(progress, 4), lr=lr, train_loss=total / steps,
                      val_accuracy=accuracy, seconds=round(Clock.now() - epoch_began, 3))  # fmt: skip
    if measure is not None:
        net.load_state_dict(kept[1])
    return {"epochs": epoch, "steps": step, "train_loss": total / steps, "kept_epoch": kept[0] or epoch,
            "seconds": round(Clock.now() - began, 1), "recipe": asdict(recipe)}  # fmt: skip


def fill_in(net: Any, stretches: Stretches, half: Callable[[], Any]) -> Loss:
    """The loss of filling in hidden words."""

    def loss(indices: Tensor) -> Tensor:
        tokens, mask = stretches(indices)
        shown, hidden = stretches.hide(tokens, mask, HIDDEN)
        with half():
            logits = net(input_ids=shown, attention_mask=mask.long()).logits
        return F.cross_entropy(logits[hidden].float(), tokens[hidden])

    return loss


def judge(net: Any, stretches: Stretches, labels: Tensor, half: Callable[[], Any]) -> Loss:
    """The loss of telling the verdict."""

    def loss(indices: Tensor) -> Tensor:
        tokens, mask = stretches(indices)
        shown, _ = stretches.hide(tokens, mask, DROPPED)
        with half():
            logits = net(input_ids=shown, attention_mask=mask.long()).logits
        return F.cross_entropy(logits.float(), labels[indices].to(logits.device))

    return loss


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="python -m training.movies", description=__doc__)
    add_options(parser, 8.0, "the whole run, from start to manifest")
    parser.add_argument("--data", type=Path, required=True, help="ERASER's movies: the folder, or movies.tar.gz")
    parser.add_argument("--from", dest="encoder", type=Path, default=None, help="folder with an encoder to start from")
    parser.add_argument("--warm", type=Path, default=None, help="JSON file with other reviews to learn from first")
    parser.add_argument("--length", type=int, default=None, help="most tokens at a time")
    parser.add_argument("--words", type=float, default=0.6, help="share of the time for masked words (%(default)s)")
    args = parser.parse_args()
    if args.smoke:
        args.minutes, args.epochs, args.batch = min(args.minutes, 0.8), args.epochs or 1, args.batch or 16
    return args


def main() -> None:
    """Read the reviews, train, keep the best epoch, save and measure it."""
    args = options()
    device = set_up(args.seed)
    journal = Journal(args.out, vars(args))
    samples = {split: read(args.data, split, 64 if args.smoke else None) for split in ("train", "val", "test")}
    labels = {"id2label": {0: "NEG", 1: "POS"}, "label2id": {"NEG": 0, "POS": 1}}
    sizes = {**ARCHITECTURE, **(TINY if args.smoke else {})}
    if args.encoder is None:
        tokenizer = vocabulary([s.text for s in samples["train"]], 1000 if args.smoke else VOCABULARY,
                               sizes["max_position_embeddings"])  # fmt: skip
        config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=0, num_labels=2, **labels, **sizes)
        net = transformers.BertForSequenceClassification(config)
        recipe = VERDICTS
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.encoder)
        factory = transformers.AutoModelForSequenceClassification
        # A file in half precision would otherwise be trained in it, and Adam's small steps vanish or overflow there.
        net = factory.from_pretrained(args.encoder, num_labels=2, dtype=torch.float32, **labels)
        recipe = FINE
    net.to(device)
    length = args.length or min(512, sizes["max_position_embeddings"] if args.encoder is None else 512)
    splits = {name: tokenise(own, tokenizer) for name, own in samples.items()}
    reading = TokenizerSettings(tokenizer, window=length)
    stretches = Stretches(splits["train"], tokenizer, length, device)
    deadline = STARTED + 60 * args.minutes - (5 if args.smoke else RESERVE)
    count, taught = len(splits["train"].texts), {}

    def half() -> torch.autocast:
        return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")

    def accuracy(split: str) -> float:
        said = predict_texts(splits[split].texts, reading, net, 64).argmax(1).cpu()
        return float((said == splits[split].labels).float().mean())

    if args.encoder is None and args.words > 0:
        words = transformers.BertForMaskedLM(net.config).to(device)
        words.bert.embeddings, words.bert.encoder = net.bert.embeddings, net.bert.encoder
        words.tie_weights()
        own = replace(WORDS, batch=args.batch or WORDS.batch, epochs=args.epochs)
        until = Clock.now() + args.words * (deadline - Clock.now())
        taught["words"] = train("words", words, fill_in(words, stretches, half), count, own, until, journal, None)
    if args.warm is not None:
        taken = {plain(text) for own in splits.values() for text in own.texts}
        more = read_warm(args.warm, tokenizer, taken, 64 if args.smoke else None)
        warm = replace(WARM, batch=args.batch or WARM.batch, epochs=args.epochs or WARM.epochs)
        until = Clock.now() + 0.5 * (deadline - Clock.now())
        first = judge(net, Stretches(more, tokenizer, length, device), more.labels, half)
        taught["warm"] = train("warm", net, first, len(more.texts), warm, until, journal, None)
        taught["warm"]["reviews"] = len(more.texts)
    recipe = replace(recipe, batch=args.batch or recipe.batch, lr=args.lr or recipe.lr)
    recipe = replace(recipe, epochs=args.epochs or recipe.epochs)
    loss = judge(net, stretches, splits["train"].labels, half)
    taught["verdicts"] = train("verdicts", net, loss, count, recipe, deadline, journal, lambda: accuracy("val"))
    net.eval().save_pretrained(args.out / NAME)
    tokenizer.save_pretrained(args.out / NAME)
    entry = {
        "folder": NAME, "parameters": sum(p.numel() for p in net.parameters()), "architecture": type(net).__name__,
        "from": None if args.encoder is None else args.encoder.name, "length": length, "vocabulary": len(tokenizer),
        "accuracy": {f"{split}_top1": accuracy(split) for split in ("val", "test")},
        "data": {split: len(own.texts) for split, own in splits.items()}, "training": taught, "seed": args.seed,
        "hidden": {"words": HIDDEN, "verdicts": DROPPED}, "options": journal.options,
        "run_seconds": round(Clock.now() - STARTED, 1), "device": device_name(device),
        "versions": {**versions(), "transformers": transformers.__version__},
    }  # fmt: skip
    (args.out / "manifest.json").write_text(json.dumps({"models": {NAME: entry}}, indent=2, default=str) + "\n")
    logger.info("%s done: %s", NAME, "  ".join(f"{k} {v:.4f}" for k, v in entry["accuracy"].items()))


if __name__ == "__main__":
    main()
