"""Train a small text classifier on ERASER's movie reviews: ``python -m training.movies --data ARCHIVE --out DIR``.

Without ``--from``, everything is trained on the training reviews alone: a WordPiece vocabulary, and a BERT encoder,
first with masked words and then with the labels NEG and POS. With ``--from DIR``, a local encoder and its tokenizer are
fine-tuned on the labels. With ``--warm FILE``, the labels of other reviews are learned first: the Large Movie Review
Dataset as one JSON list of ``{"t": text, "s": 0 or 1}``, which may be compressed with gzip. Without ``--from``, the
vocabulary and the masked words are then learned from these reviews as well. ``--size base`` makes an encoder of the
size of BERT-base.

Training uses a random passage of each review. Evaluation uses the whole review: the mean of the logits over its
windows. The epoch with the best accuracy on the validation reviews is kept. The test reviews are evaluated once, at the
end.
"""

from __future__ import annotations

import argparse
import copy
import gzip
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

from training import START_TIME
from training.recipe import Clock, Recipe
from training.run_writer import RunWriter, device_name, versions
from training.runtime import add_options, autocast, logger, set_up
from vitrail.data import Movies
from vitrail.text import TokenizerSettings, predict_texts

NAME = "movies"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ARCHITECTURE: dict[str, Any] = {
    "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 1024,
    "max_position_embeddings": 512, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
#: The size of BERT-base.
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "hidden_dropout_prob": 0.1}  # fmt: skip
TINY = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96,
        "max_position_embeddings": 128}  # fmt: skip
VOCABULARY_SIZE, BASE_VOCABULARY_SIZE = 8000, 16000
MASKED_WORDS_RECIPE = Recipe(batch=64, lr=1e-3, decay=0.01, evaluate=1)
FROM_SCRATCH_RECIPE = Recipe(batch=32, lr=2e-4, decay=0.05, evaluate=1)
#: For a pretrained encoder, as in the published experiments.
FINE_TUNING_RECIPE = Recipe(batch=10, lr=1e-5, decay=0.01, epochs=10, evaluate=1)
OTHER_REVIEWS_RECIPE = Recipe(batch=64, lr=1e-4, decay=0.01, epochs=2, evaluate=1)
#: Peak learning rates of encoders as wide as BERT-base, which diverge with those of small ones, by phase.
WIDE_LR = {"words": 2e-4, "warm": 5e-5, "verdicts": 2e-5}
#: Fraction of masked words: for masked-word training, and as augmentation while the labels are learned.
MASKED_FRACTION, AUGMENTATION_FRACTION = 0.15, 0.1
#: Seconds reserved for the last evaluation and for writing.
RESERVED_SECONDS = 20.0


@dataclass(frozen=True)
class Reviews:
    """Texts of a split, their tokens without special ones, and their labels."""

    texts: list[str]
    tokens: list[Tensor]
    labels: Tensor


def read_split(data: Path, split: str, count: int | None) -> Movies | list[Any]:
    """Read a split, or a number of its reviews with alternating labels."""
    reviews = Movies(data, split)
    if count is None:
        return reviews
    by_label = [[s for s in reviews if s.label == label] for label in (0, 1)]
    return [sample for pair in zip(*by_label, strict=False) for sample in pair][:count]


def read_other_reviews(file: Path, known: set[str], count: int | None) -> tuple[list[str], list[int]]:
    """Read the texts and labels of other reviews, without those that are among the known ones."""
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as stream:
        entries = json.load(stream)
    new = [entry for entry in entries[:count] if letters_only(entry["t"]) not in known]
    logger.info("%d other reviews, %d left out", len(new), len(entries[:count]) - len(new))
    return [re.sub(r"<[^>]*>", " ", entry["t"]) for entry in new], [int(entry["s"]) for entry in new]


def join_reviews(one: Reviews, other: Reviews) -> Reviews:
    """Reviews of two sets as one."""
    return Reviews(one.texts + other.texts, one.tokens + other.tokens, torch.cat([one.labels, other.labels]))


def letters_only(text: str) -> str:
    """The first 200 letters of a text, to recognise copies of a review that were cleaned differently."""
    return re.sub(r"[^a-z]", "", re.sub(r"<[^>]*>", " ", text).lower())[:200]


def train_tokenizer(texts: Sequence[str], size: int, length: int) -> transformers.PreTrainedTokenizerFast:
    """Train a WordPiece tokenizer as BERT uses it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 -- a token, not a password
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(SPECIAL_TOKENS))
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=length, **names)


def tokenize(texts: Sequence[str], labels: Sequence[int], tokenizer: Any) -> Reviews:
    """Tokenize reviews."""
    ids = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    return Reviews(list(texts), [torch.tensor(row) for row in ids], torch.tensor(labels))


class RandomPassages:
    """Random passages of reviews as batches for the model."""

    def __init__(self, reviews: Reviews, tokenizer: Any, length: int, device: torch.device) -> None:
        self._reviews, self._tokenizer, self._length, self._device = reviews, tokenizer, length, device

    def __call__(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and the mask of tokens that are not padding, both of shape (b, n)."""
        max_length = self._length - 2
        rows = []
        for i in indices.tolist():
            ids = self._reviews.tokens[i]
            start = int(torch.randint(0, max(1, len(ids) - max_length + 1), ()))
            rows.append(ids[start : start + max_length])
        n = max(map(len, rows)) + 2
        tokens = torch.full((len(rows), n), int(self._tokenizer.pad_token_id))
        for padded, row in zip(tokens, rows, strict=True):
            padded[0], padded[len(row) + 1] = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
            padded[1 : len(row) + 1] = row
        mask = torch.arange(n)[None] < torch.tensor([len(row) + 2 for row in rows])[:, None]
        return tokens.to(self._device), mask.to(self._device)

    def mask_words(self, tokens: Tensor, mask: Tensor, fraction: float) -> tuple[Tensor, Tensor]:
        """Replace a random fraction of the tokens by [MASK]; returns the tokens and which were replaced."""
        special = (tokens == self._tokenizer.cls_token_id) | (tokens == self._tokenizer.sep_token_id)
        masked = (torch.rand(tokens.shape, device=tokens.device) < fraction) & mask & ~special
        return torch.where(masked, int(self._tokenizer.mask_token_id), tokens), masked


BatchLoss = Callable[[Tensor], Tensor]
"""Function from indices of reviews to the loss."""


def train(
    name: str,
    net: nn.Module,
    loss: BatchLoss,
    count: int,
    recipe: Recipe,
    deadline: float,
    writer: RunWriter,
    evaluate: Callable[[], float] | None,
) -> dict[str, Any]:
    """Train until the schedule is complete; if ``evaluate`` is given, restore the weights of the best epoch."""
    decayed = [p for p in net.parameters() if p.ndim >= 2]
    not_decayed = [p for p in net.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": recipe.decay}, {"params": not_decayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas)
    steps_per_epoch = count // recipe.batch
    if not steps_per_epoch:
        raise RuntimeError(f"{count} reviews are fewer than one batch of {recipe.batch}: lower --batch")
    clock = Clock(deadline, None if recipe.epochs is None else recipe.epochs * steps_per_epoch)
    clock.start()
    start_time, step, epoch, progress, lr, best, kept = Clock.now(), 0, 0, 0.0, 0.0, -1.0, (0, {})
    while progress < 1:
        epoch_start, total, steps = Clock.now(), 0.0, 0
        for indices in torch.randperm(count)[: steps_per_epoch * recipe.batch].split(recipe.batch):
            lr = recipe.learning_rate(progress)
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
            raise RuntimeError(f"{name}: the loss is NaN in epoch {epoch}: lower --lr")
        accuracy = None if evaluate is None else evaluate()
        if accuracy is not None and accuracy >= best:
            best, kept = accuracy, (epoch, copy.deepcopy(net.state_dict()))
        writer.log_epoch(model=name, epoch=epoch, step=step, progress=round(progress, 4), lr=lr,
                         train_loss=total / steps, val_accuracy=accuracy,
                         seconds=round(Clock.now() - epoch_start, 3))  # fmt: skip
    if evaluate is not None:
        net.load_state_dict(kept[1])
    return {"epochs": epoch, "steps": step, "train_loss": total / steps, "kept_epoch": kept[0] or epoch,
            "seconds": round(Clock.now() - start_time, 1), "recipe": asdict(recipe)}  # fmt: skip


def masked_word_loss(net: Any, passages: RandomPassages, device: torch.device) -> BatchLoss:
    """Cross-entropy of masked words."""

    def loss(indices: Tensor) -> Tensor:
        tokens, mask = passages(indices)
        shown, masked = passages.mask_words(tokens, mask, MASKED_FRACTION)
        with autocast(device):
            logits = net(input_ids=shown, attention_mask=mask.long()).logits
        return F.cross_entropy(logits[masked].float(), tokens[masked])

    return loss


def label_loss(net: Any, passages: RandomPassages, labels: Tensor, device: torch.device) -> BatchLoss:
    """Cross-entropy of the label, with some words masked."""

    def loss(indices: Tensor) -> Tensor:
        tokens, mask = passages(indices)
        shown, _ = passages.mask_words(tokens, mask, AUGMENTATION_FRACTION)
        with autocast(device):
            logits = net(input_ids=shown, attention_mask=mask.long()).logits
        return F.cross_entropy(logits.float(), labels[indices].to(logits.device))

    return loss


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m training.movies", description=__doc__)
    add_options(parser, 8.0, "the whole run")
    parser.add_argument("--data", type=Path, required=True, help="ERASER's movies: the folder, or movies.tar.gz")
    parser.add_argument("--from", dest="encoder", type=Path, default=None, help="folder with a pretrained encoder")
    parser.add_argument("--warm", type=Path, default=None, help="JSON file with other reviews to train on first")
    parser.add_argument("--size", choices=("small", "base"), default="small", help="of an encoder without --from")
    parser.add_argument("--length", type=int, default=None, help="maximum number of tokens in a forward pass")
    parser.add_argument("--words", type=float, default=0.6, help="fraction of the time for masked words (%(default)s)")
    args = parser.parse_args()
    if args.smoke:
        args.minutes, args.epochs, args.batch = min(args.minutes, 0.8), args.epochs or 1, args.batch or 16
    return args


def main() -> None:
    """Read the reviews, train, keep the best epoch, save and evaluate it."""
    args = parse_options()
    device = set_up(args.seed)
    writer = RunWriter(args.out, vars(args))
    samples = {split: read_split(args.data, split, 64 if args.smoke else None) for split in ("train", "val", "test")}
    labels = {"id2label": {0: "NEG", 1: "POS"}, "label2id": {"NEG": 0, "POS": 1}}
    sizes = {**ARCHITECTURE, **(BASE if args.size == "base" else {}), **(TINY if args.smoke else {})}
    known = {letters_only(sample.text) for split in samples.values() for sample in split}
    other_texts, other_labels = ([], []) if args.warm is None else read_other_reviews(
        args.warm, known, 64 if args.smoke else None
    )  # fmt: skip
    if args.encoder is None:
        vocabulary = 1000 if args.smoke else BASE_VOCABULARY_SIZE if args.size == "base" else VOCABULARY_SIZE
        own_texts = [s.text for s in samples["train"]]
        tokenizer = train_tokenizer(own_texts + other_texts, vocabulary, sizes["max_position_embeddings"])
        config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=0, num_labels=2, **labels, **sizes)
        net = transformers.BertForSequenceClassification(config)
        recipe = FROM_SCRATCH_RECIPE
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.encoder)
        factory = transformers.AutoModelForSequenceClassification
        # float32, even if the file is in half precision: the small updates of Adam would vanish or overflow there.
        net = factory.from_pretrained(args.encoder, num_labels=2, dtype=torch.float32, **labels)
        recipe = FINE_TUNING_RECIPE
    net.to(device)
    length = args.length or min(512, sizes["max_position_embeddings"] if args.encoder is None else 512)
    splits = {
        name: tokenize([s.text for s in split], [s.label for s in split], tokenizer) for name, split in samples.items()
    }
    other = tokenize(other_texts, other_labels, tokenizer) if other_texts else None
    settings = TokenizerSettings(tokenizer, window=length)
    passages = RandomPassages(splits["train"], tokenizer, length, device)
    wide = int(net.config.hidden_size) >= int(BASE["hidden_size"])
    deadline = START_TIME + 60 * args.minutes - (5 if args.smoke else RESERVED_SECONDS)
    count, phases = len(splits["train"].texts), {}

    def accuracy(split: str) -> float:
        predicted = predict_texts(splits[split].texts, settings, net, 64).argmax(1).cpu()
        return float((predicted == splits[split].labels).float().mean())

    if args.encoder is None and args.words > 0:
        language_model = transformers.BertForMaskedLM(net.config).to(device)
        language_model.bert.embeddings, language_model.bert.encoder = net.bert.embeddings, net.bert.encoder
        language_model.tie_weights()
        words_recipe = replace(MASKED_WORDS_RECIPE, batch=args.batch or MASKED_WORDS_RECIPE.batch, epochs=args.epochs)
        words_recipe = replace(words_recipe, lr=WIDE_LR["words"] if wide else words_recipe.lr)
        end = Clock.now() + args.words * (deadline - Clock.now())
        read = splits["train"] if other is None else join_reviews(splits["train"], other)
        loss = masked_word_loss(language_model, RandomPassages(read, tokenizer, length, device), device)
        phases["words"] = train("words", language_model, loss, len(read.texts), words_recipe, end, writer, None)
    if other is not None:
        other_recipe = replace(
            OTHER_REVIEWS_RECIPE, batch=args.batch or OTHER_REVIEWS_RECIPE.batch,
            epochs=args.epochs or OTHER_REVIEWS_RECIPE.epochs,
        )  # fmt: skip
        other_recipe = replace(other_recipe, lr=WIDE_LR["warm"] if wide else other_recipe.lr)
        end = Clock.now() + 0.5 * (deadline - Clock.now())
        loss = label_loss(net, RandomPassages(other, tokenizer, length, device), other.labels, device)
        phases["warm"] = train("warm", net, loss, len(other.texts), other_recipe, end, writer, None)
        phases["warm"]["reviews"] = len(other.texts)
    recipe = replace(recipe, batch=args.batch or recipe.batch)
    recipe = replace(recipe, lr=args.lr or (WIDE_LR["verdicts"] if wide else recipe.lr))
    recipe = replace(recipe, epochs=args.epochs or recipe.epochs)
    loss = label_loss(net, passages, splits["train"].labels, device)
    phases["verdicts"] = train("verdicts", net, loss, count, recipe, deadline, writer, lambda: accuracy("val"))
    net.eval().save_pretrained(args.out / NAME)
    tokenizer.save_pretrained(args.out / NAME)
    entry = {
        "folder": NAME, "parameters": sum(p.numel() for p in net.parameters()), "architecture": type(net).__name__,
        "from": None if args.encoder is None else args.encoder.name, "length": length, "vocabulary": len(tokenizer),
        "accuracy": {f"{split}_top1": accuracy(split) for split in ("val", "test")},
        "data": {name: len(split.texts) for name, split in splits.items()}, "training": phases, "seed": args.seed,
        "hidden": {"words": MASKED_FRACTION, "verdicts": AUGMENTATION_FRACTION}, "options": writer.options,
        "run_seconds": round(Clock.now() - START_TIME, 1), "device": device_name(device),
        "versions": {**versions(), "transformers": transformers.__version__},
    }  # fmt: skip
    (args.out / "manifest.json").write_text(json.dumps({"models": {NAME: entry}}, indent=2, default=str) + "\n")
    logger.info("%s done: %s", NAME, "  ".join(f"{k} {v:.4f}" for k, v in entry["accuracy"].items()))


if __name__ == "__main__":
    main()
