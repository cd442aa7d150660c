"""Small tokenizers and text models for tests, created without downloads."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FILLERS = (
    "the", "a", "film", "plot", "scene", "actor", "music", "story", "camera", "light", "city", "man", "woman", "day",
    "night", "and", "with", "of", "in", "on",
)  # fmt: skip
GOOD, BAD = ("superb", "lovely"), ("dreadful", "tedious")
PIECES = (
    *FILLERS, "superb", "love", "##ly", "dread", "##ful", "tedious", "un", "##watch", "##able", "is", "!", ".", ",",
)  # fmt: skip
SIZE: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 24,
}  # fmt: skip
#: DeBERTa's disentangled attention: content-to-content, content-to-position and position-to-content.
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", SIZE),
    "distilbert": ("DistilBertForSequenceClassification", "DistilBertConfig",
                   {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 24}),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig",
                {**SIZE, "pad_token_id": 1, "max_position_embeddings": 40}),
    "electra": ("ElectraForSequenceClassification", "ElectraConfig", {**SIZE, "embedding_size": 16}),
    "albert": ("AlbertForSequenceClassification", "AlbertConfig", {**SIZE, "embedding_size": 16}),
    "deberta": ("DebertaForSequenceClassification", "DebertaConfig", {**SIZE, **DISENTANGLED}),
    "deberta-v2": ("DebertaV2ForSequenceClassification", "DebertaV2Config",
                   {**SIZE, **DISENTANGLED, "position_buckets": 8}),
}  # fmt: skip


def word_pieces(words: tuple[str, ...] = PIECES, **options: Any) -> Any:
    """Create a WordPiece tokenizer as BERT uses it."""
    inner = Tokenizer(models.WordPiece({w: i for i, w in enumerate((*SPECIAL, *words))}, unk_token=SPECIAL[1]))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names, **options)


def byte_pairs() -> Any:
    """Create a byte-level BPE tokenizer as RoBERTa uses it, with leading spaces and padding id 1."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    inner.train_from_iterator([" ".join((*FILLERS, *GOOD, *BAD)) * 3], trainer)
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True)
    names = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "eos_token": "</s>",
             "unk_token": "<unk>", "mask_token": "<mask>"}  # fmt: skip
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def text_model(family: str = "bert", seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """Create a model in float64, with weights perturbed so that no softmax is uniform, and its tokenizer."""
    tokenizer = byte_pairs() if family == "roberta" else word_pieces()
    name, config, size = FAMILIES[family]
    torch.manual_seed(seed)
    settings = getattr(transformers, config)(**{"vocab_size": len(tokenizer), "num_labels": 3, **size, **options})
    model = getattr(transformers, name)(settings).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, tokenizer


def reviews(count: int, generator: torch.Generator) -> tuple[list[str], torch.Tensor, list[int]]:
    """Generate texts of filler words with one decisive word each; returns texts, classes and positions of that word."""

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    texts, labels, positions = [], [], []
    for _ in range(count):
        label = number(0, 2)
        words = [FILLERS[number(0, len(FILLERS))] for _ in range(number(6, 13))]
        position = number(0, len(words))
        words[position] = (BAD, GOOD)[label][number(0, 2)]
        texts.append(" ".join(words))
        labels.append(label)
        positions.append(position)
    return texts, torch.tensor(labels), positions


def train_classifier(steps: int = 150, seed: int = 0) -> tuple[Any, Any, torch.Generator]:
    """Train a tiny BERT to classify reviews by their decisive word; takes seconds on one core."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    tokenizer = word_pieces()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).double()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        texts, labels, _ = reviews(32, generator)
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), tokenizer, generator
