"""A tokenizer of words and small decoders for tests of language models, created without downloads."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn

from tests.battery.decoders import WORDS as VOCABULARY
from tests.battery.decoders import decoder

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
NAMES = (
    "the", "capital", "of", "France", "is", "Paris", "Rome", "Anna", "Ben", "has", "code", "red", "blue", "green", ".",
    ",", "and", "a", "in", "user", "assistant", "says", "city", "key", "door", "opens", "with", "who", "what", "?",
    "one", "two", "three", "four", "five", "six",
)  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} says {{ m['content'] }} . {% endfor %}"
    "{% if add_generation_prompt %}assistant says{% endif %}"
)
PROMPT = "the capital of France is"


def word_tokens(bos: bool = True) -> Any:
    """A tokenizer with one token a word and a chat template, whose ids fit the decoders of `tests.battery`."""
    assert len(SPECIAL) + len(NAMES) == VOCABULARY
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate((*SPECIAL, *NAMES))}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if bos:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=TEMPLATE, **names)


@cache
def language_model(family: str = "Llama") -> tuple[Any, Any]:
    """A tiny decoder in double precision, and its tokenizer; products of experts have none but single precision."""
    model = decoder(family)
    return (model if family == "Mixtral" else model.double()), word_tokens()


class MarkedCopy(nn.Module):
    """A decoder that writes the name it has read: it attends to the tokens ``red``, ``blue`` and ``green`` alone.

    The prediction at each position is the colour before it, whatever stands between.
    """

    MARKED = tuple(len(SPECIAL) + NAMES.index(name) for name in ("red", "blue", "green"))

    def __init__(self) -> None:
        super().__init__()
        width = VOCABULARY + 8
        table = torch.zeros(VOCABULARY, width)
        table[:, :VOCABULARY] = torch.eye(VOCABULARY)
        table[list(self.MARKED), VOCABULARY] = 1.0
        table[:, VOCABULARY + 1] = 1.0
        self.embed = nn.Embedding.from_pretrained(table)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        with torch.no_grad():
            for layer in (self.query, self.key, self.value, self.out, self.head):
                layer.weight.zero_()
            self.query.weight[0, VOCABULARY + 1] = 12.0 * width**0.5
            self.key.weight[0, VOCABULARY] = 1.0
            self.value.weight[:VOCABULARY, :VOCABULARY] = torch.eye(VOCABULARY)
            self.out.weight[:VOCABULARY, :VOCABULARY] = 8 * torch.eye(VOCABULARY)
            self.head.weight[:, :VOCABULARY] = torch.eye(VOCABULARY)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        n = x.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()[None, None]
        if attention_mask is not None:
            own = torch.eye(n, dtype=torch.bool, device=x.device)  # a query without keys would be NaN
            allowed = (allowed & attention_mask.bool()[:, None, None]) | own
        q, k, v = (layer(x)[:, None] for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)[:, 0]
        return self.head(x + self.out(mixed))
